"""Standings on forged records: what is chosen, from how many tries, and what it is compared with."""

import pytest

from prunewald.lab.records import Record
from prunewald.lab.standing import Standing, adjusted, at_once, base_rows, standings


def forged(
    row: str,
    retrained: float,
    validation: float = 0.8,
    *,
    seeds: int = 4,
    level: float = 0.9,
    pruned: float = 0.5,
    recalibrated: float | None = None,
) -> list[Record]:
    """One record a network; the networks differ a little, and the row a little from network to network."""
    own = sum(map(ord, row)) % 7
    each = [(seed, 0.001 * seed + 0.0002 * ((seed * own) % 3)) for seed in range(seeds)]
    return [
        Record(
            seed=2000 + seed,
            row=row,
            level=level,
            dense=0.9,
            pruned=pruned + more,
            retrained=retrained + more,
            validation=validation + more,
            sparsity=level,
            compression=1 / (1 - level),
            speedup=1.0,
            overlap=1.0,
            frozen=None,
            environment={},
            recalibrated=None if recalibrated is None else recalibrated + more,
        )
        for seed, more in each
    ]


def by_row(found: list[Standing]) -> dict[str, Standing]:
    return {one.row: one for one in found}


def test_further_tries_are_not_rows_of_their_own() -> None:
    spelled = [
        "dense",
        "abs@lamp",
        "abs@lamp,lr=0.3",
        "abs@lamp,lr=3",
        "moment:1@lamp",
        "moment:0.3@lamp",
        "moment:3@lamp",
    ]
    assert base_rows(spelled) == ["abs@lamp", "moment:1@lamp"]
    assert base_rows(["moment:0.3", "moment:1@lamp"]) == ["moment:0.3", "moment:1@lamp"]


def test_validation_images_choose_and_test_images_have_no_say() -> None:
    records = [
        *forged("abs@lamp", 0.70, 0.80),
        *forged("abs@lamp,lr=0.3", 0.60, 0.85),  # worse on test images, better on validation images
        *forged("abs@lamp,lr=3", 0.89, 0.79),
        *forged("moment:1@lamp", 0.80, 0.80),
        *forged("moment:0.3@lamp", 0.85, 0.79),
        *forged("moment:3@lamp", 0.85, 0.79),
    ]
    found = by_row(standings("one", records))
    assert found["abs@lamp"].chosen == "abs@lamp,lr=0.3"
    assert found["abs@lamp"].retrained == pytest.approx(60, abs=0.5)
    assert found["moment:1@lamp"].chosen == "moment:1@lamp"
    assert {one.tries for one in found.values()} == {3}
    gain = found["moment:1@lamp"].gain
    assert gain is not None
    assert gain.mean == pytest.approx(20, abs=0.5)  # over what was chosen for ABS


def test_every_row_of_a_level_has_as_many_tries_as_the_one_that_has_fewest() -> None:
    records = [
        *forged("abs@lamp", 0.70, 0.80),
        *forged("abs@lamp,lr=0.3", 0.75, 0.85),
        *forged("moment:1@lamp", 0.80, 0.80),
        *forged("moment:0.3@lamp", 0.90, 0.99, seeds=3),  # not finished for all networks
    ]
    found = by_row(standings("one", records))
    assert {one.tries for one in found.values()} == {1}
    assert [one.chosen for one in found.values()] == ["abs@lamp", "moment:1@lamp"]


def test_each_level_chooses_for_itself() -> None:
    records = []
    for level, best in ((0.8, 0.9), (0.9, 0.7)):
        records += [*forged("abs", 0.7, 0.8, level=level), *forged("abs,lr=0.3", 0.7, best, level=level)]
    assert [one.chosen for one in standings("one", records)] == ["abs,lr=0.3", "abs"]


def test_medians_and_worst_cases_stand_beside_means() -> None:
    records = forged("abs", 0.88, seeds=5)
    records[0] = forged("abs", 0.20, seeds=1)[0]
    (one,) = standings("one", records)
    assert one.change is not None
    assert one.change.mean < -14
    assert one.median > -2
    assert one.worst == pytest.approx(-70)


def test_right_after_pruning_is_recalibrated_where_it_can_be() -> None:
    plain, measured = forged("abs", 0.8, pruned=0.1)[0], forged("abs", 0.8, pruned=0.1, recalibrated=0.7)[0]
    assert [at_once(plain), at_once(measured)] == pytest.approx([10, 70])


def test_holm_is_over_all_tests_of_all_networks() -> None:
    records = [*forged("abs", 0.80), *forged("moment:1", 0.801), *forged("random", 0.8005)]
    one, both = standings("one", records), standings("one", records) + standings("other", records)
    alone, together = by_row(adjusted(one))["moment:1"], adjusted(both)
    assert alone.gain is not None
    assert alone.p_holm == pytest.approx(2 * alone.gain.p)
    assert min(each.p_holm for each in together if each.p_holm is not None) == pytest.approx(4 * alone.gain.p)


def test_the_first_networks_choose_for_all() -> None:
    records = [
        *forged("abs@lamp", 0.70, 0.80, seeds=6),
        *forged("abs@lamp,lr=0.3", 0.75, 0.85, seeds=6),
        *forged("abs@lamp,lr=3", 0.90, 0.10, seeds=2),
        *forged("moment:1@lamp", 0.80, 0.80, seeds=6),
        *forged("moment:0.3@lamp", 0.90, 0.10, seeds=2),
        *forged("moment:3@lamp", 0.60, 0.20, seeds=2),
    ]
    found = by_row(standings("one", records, tuning=2))
    assert {one.tries for one in found.values()} == {3}
    assert found["abs@lamp"].chosen == "abs@lamp,lr=0.3"
    assert found["moment:1@lamp"].chosen == "moment:1@lamp"
    assert [one.n for one in found.values()] == [6, 6]
    assert {one.tries for one in standings("one", records)} == {1}  # where all networks choose, the others are missing
