"""The p-value of a bettor: how rich one can get on losses that are said to be too high (Waudby-Smith & Ramdas 2023).

Who believes that the expected loss is below a limit bets on it, example by example, at odds that are fair for an
expectation at the limit and bad for any above it. Whatever the bets, the capital then grows k-fold by chance in at most
one of k cases, at any number of examples: one over the capital is a p-value.
"""

import math

import torch
from torch import Tensor

from prunewald.statistics.learn_then_test import checked_losses
from prunewald.util.arguments import real

ORDERS = 10  # more of them make p depend less on the order given, and take longer
LARGEST = 0.75  # of the stake that could lose everything, so that one bad example never ruins the bettor


def betting(losses: Tensor, limit: float, delta: float = 0.05) -> float:
    """The p-value of "the expected loss is above `limit`", small where the losses, or drops, are steadily below it.

    It is valid for any losses between 0 and 1, as `hoeffding_bentkus` is, but gains from a small variance. Stakes are
    sized for the level `delta` (the predictable plug-in of Waudby-Smith & Ramdas for a fixed number of examples); p is
    a p-value for every level. Each stake depends on the losses before it, so the capital depends on their order: it is
    the mean over ten orders, drawn with a fixed seed, as a mean of such capitals serves like each of them. The same
    losses in the same order give the same p.

    >>> round(betting(torch.full((250,), 0.5), 0.51), 4)  # 250 examples, none of which changes: a drop below 0.02
    0.0252
    """
    real("limit", limit, above=0, below=1, what="the highest expected loss to allow,")
    real("delta", delta, above=0, below=1, what="the chance of a wrong choice to allow,")
    values = checked_losses("losses", losses)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(values), generator=generator) for _ in range(ORDERS)]
    capitals = torch.stack([_log_capital(values[order], limit, delta) for order in orders])
    return math.exp(min(0.0, math.log(ORDERS) - float(capitals.logsumexp(0))))


def _log_capital(losses: Tensor, limit: float, delta: float) -> Tensor:
    """The logarithm of what a capital of 1 has become: the product of 1 + stake (limit - loss)."""
    n = len(losses)
    count = torch.arange(2, n + 2, dtype=torch.float64)  # one more than were seen: as if a 1/2 had come before them
    mean = (losses.cumsum(0) + 1 / 2) / count
    variance = ((losses - mean).square().cumsum(0) + 1 / 4) / count
    known = torch.cat([variance.new_tensor([1 / 4]), variance[:-1]])  # a stake must not know its own loss
    stakes = (2 * math.log(1 / delta) / (n * known)).sqrt().clamp(max=LARGEST / (1 - limit))
    return (stakes * (limit - losses)).log1p().sum()
