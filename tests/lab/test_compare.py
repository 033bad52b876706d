"""`prunewald compare`: the quick preset, killed and gone on with, in pieces, with as many tries for every row."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prunewald import cli
from prunewald.lab.cache import Cache
from prunewald.lab.contest_pages import contest_pages
from prunewald.lab.methods import parse, tried
from prunewald.lab.pieces import Over, Pieces
from prunewald.lab.records import Record, read_records
from prunewald.lab.settings import CONTEST, Settings, contest
from prunewald.lab.standing import standings
from tests.lab.helpers import numbers, protocol, run

pytestmark = pytest.mark.usefixtures("rules", "one_thread")
ROWS = ("abs@lamp", "moment:1@lamp", "abs", "wanda@lamp", "snip@lamp", "platon@lamp", "fisher:1@lamp")


def quick(network: str, **given: Any) -> Settings:
    plain: dict[str, Any] = {"images": 60, "calibration": 30, "batch_size": 20, "epochs": 1, "last": 5}
    return contest(network, "quick", **(plain | given))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, rules: None, one_thread: None) -> list[Record]:
    return run(tmp_path_factory.mktemp("whole"), quick("fashion-mnist", rows=ROWS), size=1000)


def test_every_row_has_as_many_records_of_as_many_tries(whole: list[Record]) -> None:
    chosen = quick("fashion-mnist", rows=ROWS)
    assert {record.row for record in whole} == {method.text for method in tried(chosen)}
    assert set(Counter(record.row for record in whole).values()) == {2}
    found = standings("any", whole)
    assert [one.row for one in found] == sorted(ROWS)
    assert {one.tries for one in found} == {2}


def test_tries_of_the_learning_rate_begin_with_the_same_pruned_network(whole: list[Record]) -> None:
    by_row = {record.row: record for record in whole if record.seed == 2000}
    for row in ROWS:
        further = parse(row).tries(2)[1].text
        own, other = by_row[row], by_row[further]
        assert own.dense == other.dense
        if parse(further).rate != 1:
            assert (own.pruned, own.overlap) == (other.pruned, other.overlap)
    rates = [(row, parse(row).tries(2)[1].text) for row in ROWS if not parse(row).lam]
    assert any(by_row[row].retrained != by_row[further].retrained for row, further in rates)
    overlaps = {by_row[row].overlap for row in ROWS}
    assert len(overlaps) == len(ROWS) - 1  # that of ABS is 1 with any counts; no two others prune alike


def test_killed_it_goes_on_and_ends_alike(tmp_path: Path, whole: list[Record]) -> None:
    chosen = quick("fashion-mnist", rows=ROWS)
    for attempt in range(20):
        left = [None] * (2 + attempt)

        def say(text: str, left: list[None] = left) -> None:
            left.pop()
            if not left:
                raise KeyboardInterrupt

        try:
            protocol(tmp_path, chosen, size=6, say=say).run()
            break
        except KeyboardInterrupt:
            continue
    assert attempt > 1
    assert numbers(read_records(tmp_path / chosen.name)) == numbers(whole)


def test_what_is_worth_most_comes_first(tmp_path: Path) -> None:
    """A run that is stopped has the first try of the first rows before any second try."""
    chosen, said = quick("fashion-mnist", rows=ROWS), list[str]()
    with pytest.raises(Over):
        protocol(tmp_path, chosen, said, size=2, hard=0.0).run()
    assert said == []
    protocol(tmp_path, chosen, said, size=2).run()
    order = [text.rpartition(": ")[2] for text in said if text.startswith("retraining")]
    assert order == [method.text for method in tried(chosen)]


def test_a_piece_that_would_not_end_in_time_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("prunewald.lab.pieces.time.monotonic", lambda: clock[0])
    pieces = Pieces(Cache(tmp_path, None), least=2, hard=100.0)

    def sizes() -> Iterator[int]:
        for some, _ in pieces.of("any", range(1000), lambda _: False):
            yield len(some)
            clock[0] += 2.0 * len(some)

    found: list[int] = []
    with pytest.raises(Over):
        found.extend(sizes())
    assert found == [2, 8, 32]  # and no further one, of the 8 that there would be time for
    clock[0] = 0.0
    assert next(sizes()) == 40  # how long they take is known by now


def test_networks_with_batchnorm_are_measured_with_new_statistics_too(tmp_path: Path) -> None:
    chosen = quick("resnet", repetitions=1, images=40, rows=("abs@lamp",), tries=1)
    records = run(tmp_path, chosen, size=1000)
    assert [record.row for record in records] == ["abs@lamp", "dense"]
    assert all(record.recalibrated is not None for record in records)
    assert records[0].sparsity == pytest.approx(0.9, abs=1e-3)
    text = (tmp_path / chosen.name / records[0].key.path).read_text()
    assert "recalibrated" in text


def test_an_iterative_contest_has_tries_too(tmp_path: Path) -> None:
    chosen = quick("fashion-mnist", iterative=True, levels=(0.5, 0.9), rows=("abs@lamp", "wanda@lamp", "movement@lamp"))
    records = run(tmp_path, chosen, size=1000)
    assert Counter(record.row for record in records) == dict.fromkeys((method.text for method in tried(chosen)), 4)


def test_pages_have_a_table_a_figure_and_the_bar(tmp_path: Path) -> None:
    chosen = quick("fashion-mnist", rows=ROWS)
    run(tmp_path, chosen, size=1000)
    text = contest_pages(tmp_path)
    assert text.startswith("The bar: ")
    folder = tmp_path / chosen.name
    assert {path.name for path in folder.glob("contest.*")} == {"contest.txt", "contest.json", "contest.png"}
    said = (folder / "contest.txt").read_text()
    for part in (
        "2 networks",
        "ten patterns",
        "RMSprop",
        "1 epochs",
        "tries of each row: 2",
        "Wanda @lamp",
        "extra epochs: ",
    ):
        assert part in said
    assert (tmp_path / "bar.txt").read_text().strip() in text


def test_the_contest_is_fixed() -> None:
    """Its settings were committed before its results were read; what changes them changes these."""
    assert {name: one.name for name, one in CONTEST.items()} == {name: f"{name}-contest" for name in CONTEST}
    assert {one.first_seed for one in CONTEST.values()} == {2000}
    assert {one.tries for one in CONTEST.values()} == {3}
    of_one_shot = {name: one.repetitions for name, one in CONTEST.items() if not one.iterative}
    least = {"fashion-mnist": 20, "fashion-mnist-sgd": 20, "mnist": 20, "cifar10": 10, "resnet": 10, "transformer": 10}
    assert of_one_shot == least | {"vgg": 3}
    names = {contest(name, "quick").name for name in CONTEST}
    assert len(names) == len(CONTEST)
    assert not names & {one.name for one in CONTEST.values()}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["lenet"], "unknown network 'lenet'; known: fashion-mnist, fashion-mnist-sgd"),
        (["resnet", "--preset", "slow"], "unknown preset 'slow' of the contest; known: contest, quick"),
        (["resnet", "--optimizer", "lion"], "--optimizer 'lion': give one of rmsprop, adamw, sgd"),
        (["resnet", "--tries", "4"], "--tries=4"),
        (["resnet", "--limit-seconds", "-1"], "--limit-seconds=-1"),
    ],
)
def test_what_cannot_be_is_one_line(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *args, "--device", "cpu", "--out", "/no/such/place"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("iterative", [False, True])
def test_further_tries_are_made_on_the_first_networks_and_what_they_chose_on_all(
    tmp_path: Path, iterative: bool
) -> None:
    levels = (0.5, 0.9) if iterative else (0.9,)
    chosen = quick(
        "fashion-mnist", rows=("abs@lamp", "moment:1@lamp"), repetitions=3, tuning=1, iterative=iterative, levels=levels
    )
    records = run(tmp_path, chosen, size=1000)
    found = standings("any", records, tuning=1)
    assert {(one.tries, one.n) for one in found} == {(2, 3)}
    further = {parse(row).tries(2)[1].text for row in chosen.rows}
    assert further <= {record.row for record in records}
    unwanted = further - {one.chosen for one in found}
    assert all(record.seed == chosen.first_seed for record in records if record.row in unwanted)
