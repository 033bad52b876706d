"""The contest's bar: what has to hold of the default, told claim by claim from the standings."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prunewald.lab.settings import CONTEST
from prunewald.lab.standing import Standing, difference
from prunewald.statistics import Difference, paired
from prunewald.util.tables import text_table

DEFAULT, SAME_COUNTS, EACH_LAYER = "moment:1@lamp", "abs@lamp", "abs"
MARGIN = 0.1  # points that are no loss
_ONE_SIDED = 0.9  # the two-sided confidence whose ends are one-sided bounds of 95 %
_Z = 1.645  # the normal quantile of a one-sided 95 %
_LEAST = 10  # networks, where the contest's settings do not say how many

CLAIMS = {
    1: "not worse than ABS with the same counts by more than 0.1 (one-sided 95 %)",
    2: "from 95 %, where ABS with the same counts loses over a point: better (Holm)",
    3: "on average over networks at least level with each row",
    4: "right after pruning best, or level with the best",
    5: "at 90 %, where per-layer ABS loses over half a point: at most half of that",
}


@dataclass(frozen=True)
class Verdict:
    """One claim at one place: whether it holds, and the numbers. None: it cannot be told yet."""

    claim: int  # of CLAIMS
    where: str
    holds: bool | None
    said: str


def verdicts(found: Iterable[Standing]) -> list[Verdict]:
    """What holds and what does not: what does not first, then what cannot be told yet."""
    at: dict[tuple[str, float], dict[str, Standing]] = {}
    for one in found:
        at.setdefault((one.network, one.level), {})[one.row] = one
    at = {place: rows for place, rows in at.items() if DEFAULT in rows}
    told = [verdict for (network, level), rows in at.items() for verdict in _here(network, level, rows)]
    told += _averages(list(at.values()))
    return sorted(told, key=lambda one: (one.holds is not False, one.holds is not None, one.claim, one.where))


def _here(network: str, level: float, rows: dict[str, Standing]) -> list[Verdict]:
    """The claims that are of one network at one level."""
    where, default = f"{network} {100 * level:g} %", rows[DEFAULT]
    found = [_at_once(default, rows.values())]
    if (same := rows.get(SAME_COUNTS)) is not None:
        found.append(_not_below(default, same))
        if level >= 0.95 and (loss := same.dense - same.retrained) > 1:
            found.append(_better(default, loss))
    if level == 0.9 and (layer := rows.get(EACH_LAYER)) is not None and (loss := layer.dense - layer.retrained) > 0.5:
        own = default.dense - default.retrained
        found.append((5, own <= loss / 2, f"loses {own:.2f}, per-layer ABS {loss:.2f}"))
    n = min(default.n, rows.get(SAME_COUNTS, default).n)
    enough = n >= _needed(network)
    few = f", n = {n}" + ("" if enough else f" of {_needed(network)}")
    return [Verdict(claim, where, _told(claim, holds, enough), said + few) for claim, holds, said in found]


def _told(claim: int, holds: bool | None, enough: bool) -> bool | None:
    """What fails fails with few networks too, but for what they may be too few to show; what holds needs them all."""
    return holds if enough or (holds is False and claim != 2) else None


def _not_below(default: Standing, same: Standing) -> tuple[int, bool | None, str]:
    gap = difference(default.records, same.records, confidence=_ONE_SIDED)
    return (1, None, "a single network") if gap is None else (1, gap.high >= -MARGIN, _bound(gap))


def _better(default: Standing, loss: float) -> tuple[int, bool | None, str]:
    said = f"{default.gain}, ABS loses {loss:.2f}"
    if default.gain is None or default.p_holm is None:
        return 2, None, said
    return 2, default.gain.mean > 0 and default.p_holm < 0.05, f"{said}, p Holm {default.p_holm:.2g}"


def _at_once(default: Standing, rows: Iterable[Standing]) -> tuple[int, bool | None, str]:
    best = max(rows, key=lambda one: one.at_once)
    said = f"{default.at_once:.2f} %"
    if best is default:
        return 4, True, f"{said}, the best"
    gap = difference(default.records, best.records, pruned=True, confidence=_ONE_SIDED)
    holds = None if gap is None else gap.high >= -MARGIN
    return 4, holds, f"{said}, {best.row} {best.at_once:.2f}" + ("" if gap is None else f": {_bound(gap)}")


def _averages(places: Sequence[dict[str, Standing]]) -> list[Verdict]:
    """The default against each row with the same counts, on average over networks."""
    told = []
    for row in sorted({row for rows in places for row in rows if row.endswith("@lamp")} - {DEFAULT}):
        by_network: dict[str, list[dict[str, Standing]]] = {}
        for rows in places:
            if row in rows:
                by_network.setdefault(rows[row].network, []).append(rows)
        found = {network: _over_levels(own, row) for network, own in by_network.items()}
        gaps = [gap for gap in found.values() if gap is not None]
        if gaps:
            enough = all(gap is not None and gap.n >= _needed(network) for network, gap in found.items())
            mean = statistics.fmean(gap.mean for gap in gaps)
            error = math.sqrt(sum(_error(gap) ** 2 for gap in gaps)) / len(gaps)
            said = f"{mean:+.2f}, at most {mean + _Z * error:+.2f}, {len(gaps)} networks" + (
                "" if enough else ", some of too few seeds"
            )
            told.append(Verdict(3, f"over {row}", _told(3, mean + _Z * error >= 0, enough), said))
    return told


def _over_levels(places: Sequence[dict[str, Standing]], row: str) -> Difference | None:
    """The default minus another row on one network, each of whose seeds counts by its mean over the levels."""
    pairs = [(rows[DEFAULT].records, rows[row].records) for rows in places]
    seeds = set.intersection(*(set(own) & set(other) for own, other in pairs))
    if len(seeds) < 2:
        return None
    own, other = (
        [100 * statistics.fmean(pair[side][seed].retrained for pair in pairs) for seed in sorted(seeds)]
        for side in (0, 1)
    )
    return paired(own, other, _ONE_SIDED)


def _error(gap: Difference) -> float:
    """The standard error that an interval was made of."""
    from scipy.stats import t

    return (gap.high - gap.mean) / float(t.ppf((1 + _ONE_SIDED) / 2, gap.n - 1))


def _bound(gap: Difference) -> str:
    return f"{gap.mean:+.2f}, at most {gap.high:+.2f}"


def _needed(network: str) -> int:
    return CONTEST[network].repetitions if network in CONTEST else _LEAST


def bar_text(told: Sequence[Verdict]) -> str:
    """The verdicts as a table, after how many there are of each kind."""
    words = {False: "does not hold", None: "not told yet", True: "holds"}
    counts = ", ".join(f"{word} {sum(one.holds is holds for one in told)}" for holds, word in words.items())
    rows = [[words[one.holds], str(one.claim), one.where, one.said] for one in told]
    claims = [f"{number}: the default ({DEFAULT}) is {claim}" for number, claim in CLAIMS.items()]
    table = text_table(["", "claim", "where", "points"], rows, left={0, 2, 3})
    return "\n".join([f"The bar: {counts}", "", *claims, "", table])
