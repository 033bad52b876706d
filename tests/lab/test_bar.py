"""The bar on forged records: each claim holds, fails, and is left open where it must be."""

from typing import Any

from prunewald.lab.bar import Verdict, bar_text, verdicts
from prunewald.lab.records import Record
from prunewald.lab.standing import adjusted, standings
from tests.lab.test_standing import forged


def told(network: str, records: list[Record]) -> dict[tuple[int, str], Verdict]:
    return {(one.claim, one.where): one for one in verdicts(adjusted(standings(network, records)))}


def rows(default: float, same: float = 0.85, layer: float = 0.80, **given: Any) -> list[Record]:
    given = {"seeds": 20} | given
    pairs = {"moment:1@lamp": default, "abs@lamp": same, "abs": layer}
    return [record for row, value in pairs.items() for record in forged(row, value, **given)]


def holds(found: dict[tuple[int, str], Verdict], claim: int, where: str) -> bool | None:
    return found[claim, where].holds


def test_not_worse_than_magnitude_with_the_same_counts() -> None:
    assert holds(told("mnist", rows(0.86)), 1, "mnist 90 %") is True
    assert holds(told("mnist", rows(0.8495)), 1, "mnist 90 %") is True  # within a tenth of a point
    assert holds(told("mnist", rows(0.845)), 1, "mnist 90 %") is False


def test_what_holds_with_too_few_networks_is_not_told_yet_but_what_fails_fails() -> None:
    found = told("mnist", rows(0.86, seeds=12))
    assert holds(found, 1, "mnist 90 %") is None
    assert "n = 12 of 20" in found[1, "mnist 90 %"].said
    assert holds(told("resnet", rows(0.86, seeds=12)), 1, "resnet 90 %") is True  # which needs ten
    assert holds(told("mnist", rows(0.80, seeds=12)), 1, "mnist 90 %") is False


def test_significantly_better_where_magnitude_loses_more_than_a_point() -> None:
    assert holds(told("mnist", rows(0.86, level=0.95)), 2, "mnist 95 %") is True
    assert holds(told("mnist", rows(0.85, level=0.95)), 2, "mnist 95 %") is False
    assert (2, "mnist 95 %") not in told("mnist", rows(0.90, same=0.895, level=0.95))  # loses less than a point
    assert (2, "mnist 90 %") not in told("mnist", rows(0.86))


def test_at_most_half_of_what_pruning_each_layer_alike_loses() -> None:
    assert holds(told("mnist", rows(0.86, layer=0.80)), 5, "mnist 90 %") is True
    assert holds(told("mnist", rows(0.86, layer=0.83)), 5, "mnist 90 %") is False
    assert (5, "mnist 90 %") not in told("mnist", rows(0.86, layer=0.889))


def test_best_or_level_right_after_pruning() -> None:
    def at_once(default: float, other: float, **given: Any) -> bool | None:
        records = [
            *forged("moment:1@lamp", 0.8, pruned=default, seeds=20),
            *forged("wanda@lamp", 0.8, pruned=other, seeds=20),
        ]
        return holds(told("mnist", records), 4, "mnist 90 %")

    assert at_once(0.6, 0.5) is True
    assert at_once(0.5, 0.5005) is True
    assert at_once(0.5, 0.6) is False


def test_level_with_every_row_on_average_over_networks() -> None:
    def networks(first: float, second: float) -> bool | None:
        found = []
        for name, value in (("mnist", first), ("resnet", second)):
            found += standings(name, [*forged("moment:1@lamp", 0.8, seeds=20), *forged("obd@lamp", value, seeds=20)])
        (one,) = (one for one in verdicts(adjusted(found)) if one.claim == 3)
        assert "2 networks" in one.said
        return one.holds

    assert networks(0.82, 0.76) is True  # behind on one, ahead on average
    assert networks(0.82, 0.80) is False


def test_what_does_not_hold_is_said_first() -> None:
    found = verdicts(adjusted(standings("mnist", rows(0.84, layer=0.80))))
    order = [{False: 0, None: 1, True: 2}[one.holds] for one in found]
    assert order == sorted(order)
    assert {0, 2} <= set(order)
    text = bar_text(found)
    assert text.index("\ndoes not hold") < text.index("\nholds")
    assert f"does not hold {order.count(0)}" in text.splitlines()[0]
