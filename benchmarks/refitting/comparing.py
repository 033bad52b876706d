"""Records of the same networks, compared: changes against dense, differences of two ways, and the bar."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.records import Record
from prunewald.statistics import Difference, holm, paired

OURS, TWO_FOUR, HEAD_DENSE = "moment+refit", "2:4", "moment+refit, head dense"
PUBLISHED = ("published sparsegpt", "published wanda")
HALF = "half of what the better of the published loses"
LEVELS = ("0.5", "0.8", "0.9", "0.95", "0.98", "0.99", TWO_FOUR)


@dataclass(frozen=True)
class Change:
    """How far a way ends from dense, in points of accuracy: mean with interval, median and worst network."""

    difference: Difference
    median: float
    worst: float
    bits: float  # mean change of the cross entropy
    kept: float  # mean share of weights left
    seconds: float  # median


@dataclass(frozen=True)
class Verdict:
    """One comparison of the bar, and whether it holds."""

    network: str
    level: str
    what: str
    ours: float  # points lost against dense
    other: float
    difference: Difference  # ours less the other, in points of accuracy
    holds: bool


class Compared:
    """Records by network, way and level."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.found: dict[tuple[str, str, str], dict[int, Record]] = {}
        for record in records:
            self.found.setdefault((record.network, record.way, record.level), {})[record.seed] = record

    def seeds(self, network: str, level: str, ways: Sequence[str]) -> list[int]:
        """Networks that have all of these."""
        own = [self.found.get((network, way, level), {}).keys() for way in ways]
        return sorted(set.intersection(*map(set, own))) if own else []

    def has(self, network: str, level: str, *ways: str) -> bool:
        """Whether these can be compared: an interval needs two networks."""
        return len(self.seeds(network, level, ways)) > 1

    def values(self, network: str, way: str, level: str, seeds: Sequence[int]) -> list[float]:
        """Accuracies of networks."""
        return [self.found[network, way, level][seed].accuracy for seed in seeds]

    def dense(self, network: str, seeds: Sequence[int]) -> list[float]:
        """The same before pruning."""
        return self.values(network, "dense", "0", seeds)

    def change(self, network: str, way: str, level: str) -> Change:
        """Against dense."""
        seeds = self.seeds(network, level, [way])
        values, dense = self.values(network, way, level, seeds), self.dense(network, seeds)
        gaps = [value - before for value, before in zip(values, dense, strict=True)]
        own = [self.found[network, way, level][seed] for seed in seeds]
        bits = [r.bits - self.found[network, "dense", "0"][r.seed].bits for r in own]
        kept, seconds = statistics.fmean(r.kept for r in own), statistics.median(r.seconds for r in own)
        return Change(paired(values, dense), statistics.median(gaps), min(gaps), statistics.fmean(bits), kept, seconds)

    def difference(self, network: str, way: str, other: str, level: str) -> Difference:
        """One way less another, over the networks that have both."""
        seeds = self.seeds(network, level, [way, other])
        return paired(self.values(network, way, level, seeds), self.values(network, other, level, seeds))

    def better(self, network: str, level: str) -> str | None:
        """The published way that is better on average."""
        known = [way for way in PUBLISHED if self.has(network, level, way, OURS)]
        return max(known, key=lambda way: self.change(network, way, level).difference.mean, default=None)

    def networks(self) -> list[str]:
        """Networks in the order in which they are listed."""
        return [name for name in NETWORKS if any(network == name for network, *_ in self.found)]


def bar(found: Compared) -> list[Verdict]:
    """All that is asked; "significantly worse" is a 95 % interval below zero that is not adjusted for their number."""
    verdicts = []
    for network in found.networks():
        for level in LEVELS:
            better = found.better(network, level)
            if better is not None and level != TWO_FOUR:
                verdicts += _half(found, network, level, better)
            if better is not None and level == TWO_FOUR:
                like = HEAD_DENSE if found.has(network, level, HEAD_DENSE) else OURS
                verdicts.append(
                    _verdict(found, network, level, like, better, "the better of the published, same layers")
                )
                verdicts.append(_verdict(found, network, level, OURS, "sparsegpt", "SparseGPT, last layer pruned too"))
            if found.has(network, level, OURS, "sparsegpt+refit"):
                verdicts.append(_verdict(found, network, level, OURS, "sparsegpt+refit", "SparseGPT's mask, refitted"))
    return verdicts


def _half(found: Compared, network: str, level: str, better: str) -> list[Verdict]:
    """Where the better of the published loses over a point, ours loses at most half."""
    lost = -found.change(network, better, level).difference.mean
    ours = -found.change(network, OURS, level).difference.mean
    if lost <= 1:
        return []
    difference = found.difference(network, OURS, better, level)
    return [Verdict(network, level, HALF, ours, lost, difference, ours <= lost / 2)]


def _verdict(found: Compared, network: str, level: str, way: str, other: str, what: str) -> Verdict:
    ours, lost = (-found.change(network, each, level).difference.mean for each in (way, other))
    difference = found.difference(network, way, other, level)
    return Verdict(network, level, what, ours, lost, difference, difference.high >= 0)


def stars(differences: Sequence[Difference]) -> list[str]:
    """A star where a difference is one by Holm's adjustment for all of them."""
    return [" *" if p < 0.05 else "" for p in holm([one.p for one in differences])] if differences else []
