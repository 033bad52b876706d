"""Where each row of the contest stands on one network: by the try that validation images chose, never test images."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prunewald.lab.methods import CONTROL, FACTORS, parse
from prunewald.lab.records import Record
from prunewald.statistics import Difference, holm, paired


@dataclass(frozen=True)
class Cells:
    """The records of one network by row, level and seed, and how many of its first seeds tries are chosen by."""

    by_place: Mapping[tuple[str, float], Mapping[int, Record]]
    tuning: int

    @classmethod
    def of(cls, records: Iterable[Record], tuning: int) -> "Cells":
        """These records; 0: tries are chosen by all seeds."""
        found: dict[tuple[str, float], dict[int, Record]] = {}
        for record in records:
            found.setdefault((record.row, record.level), {})[record.seed] = record
        return cls(found, tuning)

    def complete(self, row: str, level: float) -> int:
        """How many tries of a row, in order, are there for all networks that choose."""
        seeds, count = self._choosing(row, level), 0
        for method in parse(row).tries(len(FACTORS)):
            if not seeds <= self.by_place.get((method.text, level), {}).keys():
                break
            count += 1
        return count

    def chosen(self, row: str, level: float, tries: int) -> str:
        """Of so many tries the one with the best mean accuracy on validation images; of equal ones the first."""
        seeds = self._choosing(row, level)
        texts = [method.text for method in parse(row).tries(tries)]
        return max(
            texts, key=lambda text: statistics.fmean(self.by_place[text, level][seed].validation for seed in seeds)
        )

    def _choosing(self, row: str, level: float) -> set[int]:
        known = sorted(self.by_place[row, level])
        return set(known[: self.tuning or len(known)])


@dataclass(frozen=True)
class Standing:
    """One row at one level on one network, by the try that was chosen: accuracies in percent, differences in points."""

    network: str
    level: float
    row: str  # as it was given
    chosen: str  # the try, as spelled
    tries: int  # of how many; the same for all rows of the level
    n: int
    validation: float  # what the choice went by
    dense: float
    pruned: float  # right after pruning
    at_once: float  # the same; with BatchNorm's statistics measured anew, where there is BatchNorm
    retrained: float
    median: float  # of retrained - dense
    worst: float
    change: Difference | None  # retrained - dense; None for a single network
    gain: Difference | None  # over ABS with the same counts, retrained; None for it itself
    gain_at_once: Difference | None
    p_holm: float | None = None  # of the gain, over all tests of the table
    records: Mapping[int, Record] = field(default_factory=dict, repr=False, compare=False)  # of the try, by seed


def standings(network: str, records: Iterable[Record], tuning: int = 0) -> list[Standing]:
    """Every row at every level of one network, level by level, in the order of the rows' spellings. Needs scipy.

    Tries are chosen by the first `tuning` networks; 0: by all.
    """
    cells = Cells.of(records, tuning)
    rows, found = base_rows({row for row, _ in cells.by_place}), []
    for level in sorted({level for row, level in cells.by_place if row != CONTROL}):
        here = [row for row in rows if (row, level) in cells.by_place]
        tries = min(cells.complete(row, level) for row in here)
        chosen = {row: cells.chosen(row, level, tries) for row in here}
        found += [_standing(network, cells, level, row, chosen, tries) for row in here]
    return found


def base_rows(spelled: Iterable[str]) -> list[str]:
    """The rows that were asked for, without those that are only further tries of another one."""
    known = {text for text in spelled if text != CONTROL}
    further = {other.text for text in known for other in parse(text).tries(len(FACTORS))[1:] if parse(text).rate == 1}
    return sorted(known - further)


def adjusted(found: Sequence[Standing]) -> list[Standing]:
    """With Holm's correction over all tests of a table, of however many networks."""
    tested = [one.gain.p for one in found if one.gain is not None]
    values = iter(holm(tested))
    return [one if one.gain is None else replace(one, p_holm=next(values)) for one in found]


def at_once(record: Record) -> float:
    """The accuracy right after pruning, in percent: with BatchNorm's statistics measured anew, where there is any."""
    return 100 * (record.pruned if record.recalibrated is None else record.recalibrated)


def difference(
    one: Mapping[int, Record], other: Mapping[int, Record], *, pruned: bool = False, confidence: float = 0.95
) -> Difference | None:
    """The paired difference in points over the networks that have both, retrained or at once; None for fewer than 2."""
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 2:
        return None
    value = at_once if pruned else _retrained
    return paired([value(one[s]) for s in seeds], [value(other[s]) for s in seeds], confidence)


def _retrained(record: Record) -> float:
    return 100 * record.retrained


def _standing(network: str, cells: Cells, level: float, row: str, chosen: Mapping[str, str], tries: int) -> Standing:
    own, reference = cells.by_place[chosen[row], level], parse(row).reference
    versus = cells.by_place[chosen[reference], level] if reference in chosen and reference != row else {}
    records = list(own.values())
    drops = [100 * (record.retrained - record.dense) for record in records]
    dense = [100 * record.dense for record in records]
    return Standing(
        network=network,
        level=level,
        row=row,
        chosen=chosen[row],
        tries=tries,
        n=len(records),
        validation=statistics.fmean(100 * record.validation for record in records),
        dense=statistics.fmean(dense),
        pruned=statistics.fmean(100 * record.pruned for record in records),
        at_once=statistics.fmean(map(at_once, records)),
        retrained=statistics.fmean(map(_retrained, records)),
        median=statistics.median(drops),
        worst=min(drops),
        change=paired([_retrained(record) for record in records], dense) if len(records) > 1 else None,
        gain=difference(own, versus),
        gain_at_once=difference(own, versus, pruned=True),
        records=own,
    )
