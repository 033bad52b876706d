"""The statistics of pruning, each a plain function of numbers or tensors.

A weight is a Wald statistic away from zero (`wald_test`), and of many weights tested at once a false discovery rate
says how many may be kept by mistake (`discoveries`). Whether one uncertainty can stand in for another is a matter of
their `agreement`. How far a network can be pruned with a guarantee is Learn then Test (`exact_binomial`,
`betting`, `fixed_sequence`), and whether one method is better than another over the same seeds is a `paired`
comparison, with `holm` for more than one.

    >>> import torch
    >>> from prunewald.statistics import discoveries, wald_test
    >>> test = wald_test(torch.tensor([0.5, -3.0, 0.1]), torch.tensor([0.1, 1.0, 0.2]))
    >>> discoveries(test.p, q=0.05)
    tensor([ True,  True, False])
"""

from prunewald.statistics.capital import betting
from prunewald.statistics.concordance import Agreement, agreement, rank_correlation
from prunewald.statistics.differences import Difference, holm, paired
from prunewald.statistics.learn_then_test import drop_losses, exact_binomial, fixed_sequence, hoeffding_bentkus
from prunewald.statistics.wald import WaldTest, critical_value, discoveries, p_value, wald_test

__all__ = [
    "Agreement",
    "Difference",
    "WaldTest",
    "agreement",
    "betting",
    "critical_value",
    "discoveries",
    "drop_losses",
    "exact_binomial",
    "fixed_sequence",
    "hoeffding_bentkus",
    "holm",
    "p_value",
    "paired",
    "rank_correlation",
    "wald_test",
]
