"""Learn then Test: pick a candidate whose risk stays within a limit, with a guarantee (Angelopoulos et al. 2021).

Losses are those of held-out examples that had no part in training or pruning, one for each example and between 0 and 1.
Put the candidates in order before looking at them (say, from the lightest pruning to the heaviest), test each with
`exact_binomial` (right or wrong) or `betting` (anything between, and drops), and `fixed_sequence` gives the last one
that passed. Its true risk is above the limit with probability delta at most, at any sample size: over draws of the
held-out examples, for the model and the candidates as they were before.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from prunewald.util.arguments import real


def exact_binomial(losses: Tensor, limit: float) -> float:
    """The p-value of "the expected loss is above `limit`" for losses of 0 or 1: P(Bin(n, limit) <= their sum).

    It is exact: at the limit p <= delta is less likely than delta only as far as counts are whole numbers.  Clopper &
    Pearson (1934).

    >>> round(exact_binomial(torch.tensor([1.0] + 99 * [0.0]), 0.1), 4)
    0.0003
    """
    real("limit", limit, above=0, below=1, what="the highest expected loss to allow,")
    values = checked_losses("losses", losses)
    between = (values > 0) & (values < 1)
    if between.any():
        at = int(between.nonzero()[0])
        raise ValueError(
            f"the losses hold {float(values[at])!r} at index {at}, neither 0 nor 1: test losses in between by betting()"
        )
    from scipy import stats

    return float(stats.binom.cdf(int(values.sum()), len(values), limit))


def hoeffding_bentkus(losses: Tensor, limit: float) -> float:
    """The p-value of "the expected loss is above `limit`": small where the losses speak against that.

    min(exp(-n h(min(R, limit), limit)), e P(Bin(n, limit) <= ceil(n R))), R the mean of the n losses, h the relative
    entropy of two coins. Hoeffding (1963), Bentkus (2004); Bates et al. (2021). It knows the mean only: for 0 and 1
    `exact_binomial` is never larger, and for losses in between `betting` needs fewer examples, unless nearly all of
    them are close to 0 or 1.

    >>> round(hoeffding_bentkus(torch.tensor([1.0] + 99 * [0.0]), 0.1), 4)
    0.0008
    """
    real("limit", limit, above=0, below=1, what="the highest expected loss to allow,")
    values = checked_losses("losses", losses)
    n, total = len(values), float(values.sum())
    from scipy import special, stats

    mean = min(total / n, limit)
    entropy = special.rel_entr(mean, limit) + special.rel_entr(1 - mean, 1 - limit)
    # From the sum: n times the mean may round past a whole number, and the ceiling would take one more.
    bentkus = math.e * stats.binom.cdf(math.ceil(total), n, limit)
    return float(min(math.exp(-n * entropy), bentkus, 1.0))


def drop_losses(pruned: Tensor, dense: Tensor) -> Tensor:
    """How much more each example loses after pruning, from the losses before and after: (pruned - dense + 1) / 2.

    A budget b on the mean drop becomes the limit (b + 1) / 2. With 0 or 1 for right or wrong, that is a drop in
    accuracy of at most b.

    >>> drop_losses(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    after = checked_losses("losses of the pruned model", pruned)
    before = checked_losses("losses of the dense model", dense)
    if len(after) != len(before):
        raise ValueError(
            f"{len(after)} losses of the pruned model and {len(before)} of the dense one: "
            "give both for the same examples, in the same order"
        )
    return (after - before + 1) / 2


def fixed_sequence(p_values: Iterable[float], delta: float) -> int | None:
    """The index of the last candidate that passes, in the order given; None where the first one fails.

    Testing stops at the first p-value above delta, which is why none of them has to be corrected: the chance that any
    candidate up to the index breaks its limit is delta at most. The order must not come from the same losses. An
    iterator is asked for no p-value after that one, so later candidates need not even be trained.

    >>> fixed_sequence([0.001, 0.02, 0.3, 0.01], delta=0.05)
    1
    """
    real("delta", delta, above=0, below=1, what="the chance of a wrong choice to allow,")
    last = None
    for at, p in enumerate(map(float, p_values)):
        real(f"p_values[{at}]", p, least=0, most=1, what="a p-value, such as betting() returns,")
        if p > delta:
            return last
        last = at
    if last is None:
        raise ValueError("there are no p-values: give one for each candidate, in the order to test them")
    return last


def checked_losses(what: str, losses: Tensor) -> Tensor:
    """The losses in double precision, on the CPU; an error says which of them is not between 0 and 1."""
    if losses.dim() != 1 or not len(losses):
        raise ValueError(f"the {what} have shape {tuple(losses.shape)}: give one number for each held-out example")
    values = losses.detach().cpu().to(torch.float64)
    inside = (values >= 0) & (values <= 1)  # false for NaN
    if not inside.all():
        at = int((~inside).nonzero()[0])
        raise ValueError(
            f"the {what} hold {float(values[at])!r} at index {at}: give numbers from 0 to 1, such as 0 for right and 1 "
            "for wrong; clip or rescale any others"
        )
    return values
