"""Comparisons of methods that ran on the same seeds: the paired difference, and several of them at once."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from prunewald.util.arguments import real


@dataclass(frozen=True)
class Difference:
    """A mean paired difference, its confidence interval, and the p-value of no difference."""

    mean: float
    low: float
    high: float
    p: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Difference:
    """The mean of a - b over pairs, such as two methods on the same seeds, with its t interval and paired t-test.

    >>> print(paired([3.0, 4.0, 5.0], [1.0, 2.5, 2.5]))
    +2.00 [+0.76, +3.24]
    """
    real("confidence", confidence, above=0, below=1, what="the share of intervals that hold the true mean,")
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"a paired interval needs two or more pairs, got {len(a)} and {len(b)} values")
    from scipy.stats import t

    n = len(a)
    gaps = [left - right for left, right in zip(a, b, strict=True)]
    mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(n)
    if error == 0:
        return Difference(mean, mean, mean, p=float(mean == 0), n=n)
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * error
    p = float(2 * t.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - half, mean + half, p, n)


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, adjusted for their number.  Holm (1979).

    Whoever takes those of at most alpha for differences makes any mistake at all with probability alpha at most.

    >>> holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    for at, value in enumerate(p):
        real(f"p[{at}]", value, least=0, most=1, what="a p-value,")
    order = sorted(range(len(p)), key=p.__getitem__)
    adjusted = [0.0] * len(p)
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = worst
    return adjusted
