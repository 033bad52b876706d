"""The protocol against a literal, slow reference: one network, one loop, the public Pruner."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunewald as pw
from prunewald.ensemble import saving
from prunewald.ensemble.draws import order
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.replicas import build
from prunewald.lab.architectures import MLP, PaperCNN
from prunewald.lab.data import Raw, split
from prunewald.lab.pieces import Over
from prunewald.lab.records import Key, Record, read_records
from prunewald.lab.settings import Settings
from tests.lab.helpers import little, numbers, protocol, raw, run

pytestmark = pytest.mark.usefixtures("rules", "one_thread")


class Plain:
    """A network in a loop that anyone would write; only the order of the data is the ensemble's."""

    def __init__(self, chosen: Settings, data: Raw, seed: int) -> None:
        kinds = {"fashion-mnist": PaperCNN, "mnist": MLP}
        self.model: nn.Module = build(lambda: kinds[chosen.experiment](chosen.dropout), seed)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=chosen.lr)
        self.chosen, self.data, self.seed, self.epoch = chosen, data, seed, 0

    def train(self, epochs: int) -> None:
        self.model.train()
        rows = split(self.data, self.seed).train
        batches = -(-len(rows) // self.chosen.batch_size)
        for _ in range(epochs):
            for batch in rows[order([self.seed], len(rows), self.epoch)[0]].tensor_split(batches):
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(self.data.train.x[batch] / 255), self.data.train.y[batch]).backward()
                self.optimizer.step()
            self.epoch += 1

    def steps(self, epochs: int) -> int:
        return epochs * -(-len(split(self.data, self.seed).train) // self.chosen.batch_size)

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        self.model.eval()
        with torch.no_grad():
            return float((self.model(x / 255).argmax(1) == y).double().mean())

    def test(self) -> float:
        return self.accuracy(*self.data.test)

    def validation(self) -> float:
        rows = split(self.data, self.seed).val
        return self.accuracy(self.data.train.x[rows], self.data.train.y[rows])


def parts(row: str, last: int, steps: int) -> dict[str, Any]:
    """What a user gives the Pruner for a row."""
    window = pw.PseudoBootstrap(last=last, total_steps=steps)
    known: dict[str, dict[str, Any]] = {
        "abs": {"criterion": pw.Magnitude()},
        "moment:1": {"criterion": pw.MagnitudeUncertainty(lam=1), "uncertainty": pw.SecondMoment()},
        "pseudo:1e-4:formula": {
            "criterion": pw.MagnitudeUncertainty(lam=1e-4, dead="formula"),
            "uncertainty": window,
        },
        "pseudo:0.01": {"criterion": pw.MagnitudeUncertainty(lam=0.01), "uncertainty": window},
    }
    return known[row]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, rules: None, one_thread: None) -> Path:
    """A folder with both experiments, which were let alone; it is copied before it is changed."""
    out = tmp_path_factory.mktemp("finished")
    for chosen in BOTH:
        run(out, chosen, size=1000)
    return out


def by_key(records: list[Record]) -> dict[Key, Record]:
    return {record.key: record for record in records}


BOTH = [little(epochs=1, retrain_epochs=1, iterative=iterative) for iterative in (False, True)]
ROWS = ("abs", "pseudo:1e-4:formula", "pseudo:0.01", "moment:1")


@pytest.fixture
def dead_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Pruner would call nothing dead in so short a training; the lab goes by the window, whatever its length."""
    plainly = pw.PseudoBootstrap.init
    monkeypatch.setattr(pw.PseudoBootstrap, "init", lambda self, weights: {**plainly(self, weights), "marked": True})


@pytest.mark.usefixtures("dead_by_window")
def test_one_shot_is_train_prune_retrain(tmp_path: Path) -> None:
    chosen, data = little(rows=ROWS, repetitions=1, first_seed=5), raw()
    records = by_key(run(tmp_path, chosen))
    for row in ROWS:
        for level in chosen.levels:
            plain = Plain(chosen, data, 5)
            steps = plain.steps(chosen.epochs)
            pruner = pw.Pruner(
                plain.model, plain.optimizer, targets=[nn.Linear], scope="layer", **parts(row, chosen.last, steps)
            )
            plain.train(chosen.epochs)
            dense = plain.test()
            report = pruner.prune(level)
            pruned = plain.test()
            plain.train(chosen.retrain_epochs)
            record = records[Key(5, row, level)]
            expected = (dense, pruned, plain.test(), plain.validation())
            assert (record.dense, record.pruned, record.retrained, record.validation) == expected
            assert record.sparsity == pytest.approx(report.sparsity)
            assert (row == "abs") == (record.overlap == 1)
    assert len({record.retrained for record in records.values()}) > 4  # the networks are not all alike
    control = Plain(chosen, data, 5)
    control.train(chosen.epochs + chosen.retrain_epochs)
    assert records[Key(5, "dense", 0.0)].retrained == control.test()


@pytest.mark.slow
@pytest.mark.usefixtures("dead_by_window")
@pytest.mark.parametrize(("experiment", "rows"), [("fashion-mnist", ROWS), ("mnist", ("moment:1",))])
def test_iterative_is_one_chain_through_the_levels(tmp_path: Path, experiment: str, rows: tuple[str, ...]) -> None:
    """Sigma is that of the last training, over the weights that survive; what is pruned stays so."""
    levels = (0.5, 0.97) if experiment == "mnist" else (0.5, 0.8, 0.97)
    chosen = little(experiment, rows=rows, epochs=2, retrain_epochs=2, levels=levels, iterative=True)
    chosen = replace(chosen, repetitions=1, first_seed=1, last=4, batch_size=70 if experiment == "mnist" else 20)
    data = raw(experiment)
    records = by_key(run(tmp_path, chosen))
    for row in rows:
        plain = Plain(chosen, data, 1)
        given = parts(row, chosen.last, plain.steps(chosen.epochs))
        pruner = pw.Pruner(plain.model, plain.optimizer, targets=[nn.Linear], scope="layer", **given)
        plain.train(chosen.epochs)
        for level in chosen.levels:
            pruner.prune(level)
            pruned = plain.test()
            plain.train(chosen.retrain_epochs)
            record = records[Key(1, row, level)]
            assert (record.pruned, record.retrained) == (pruned, plain.test())
            assert record.sparsity == pytest.approx(level, abs=1e-4)
    control = Plain(chosen, data, 1)
    control.train(chosen.epochs)
    for level in chosen.levels:
        control.train(chosen.retrain_epochs)
        assert records[Key(1, "dense", level)].retrained == control.test()
    assert len({record.pruned for record in records.values()}) > 3


@pytest.mark.slow
def test_bootstrap_sigma_is_the_std_over_networks_trained_on_drawn_data(tmp_path: Path) -> None:
    chosen = little(rows=("bootstrap:0", "bootstrap-same:0", "bootstrap-warm:0"), replicas=3, bootstrap_repetitions=1)
    one = protocol(tmp_path, chosen)
    one.run()
    records = by_key(one.results.read())
    assert {key.seed for key in records if key.row != "dense"} == {0}
    assert {key.seed for key in records if key.row == "dense"} == {0, 1}
    data, sigmas = raw(), {}
    own = split(data, 0).train
    for start in ("independent", "same", "warm"):
        drawn = own[torch.randint(len(own), (3, len(own)), generator=torch.Generator().manual_seed(0))]
        weights = []
        for b in range(3):
            plain = Plain(chosen, data, 1_000_000 + b)
            if start == "same":
                plain.model.load_state_dict(build(lambda: PaperCNN(0.0), 0).state_dict())
            epochs = chosen.epochs
            if start == "warm":
                first = Plain(chosen, data, 0)
                first.train(epochs)
                plain.model, plain.optimizer, plain.epoch, epochs = first.model, first.optimizer, epochs, 1
            batches = -(-len(own) // chosen.batch_size)
            for _ in range(epochs):
                for batch in drawn[b][order([plain.seed], len(own), plain.epoch)[0]].tensor_split(batches):
                    plain.optimizer.zero_grad()
                    F.cross_entropy(plain.model(data.train.x[batch] / 255), data.train.y[batch]).backward()
                    plain.optimizer.step()
                plain.epoch += 1
            weights.append(plain.model.get_parameter("fc1.weight").detach())
        sigmas[start] = torch.stack(weights).std(0)
        kept = one.cache.load(f"bootstrap-{start}", [0]).params["fc1.weight"][0]
        torch.testing.assert_close(kept, sigmas[start], rtol=1e-4, atol=1e-6)
    assert float(sigmas["independent"].mean()) > 2 * float(sigmas["warm"].mean())


def test_costs_and_dead_shares(tmp_path: Path) -> None:
    records = by_key(run(tmp_path, little(repetitions=1, rows=("abs", "pseudo:0:formula", "pseudo:0"))))
    dense = records[Key(0, "dense", 0.0)]
    assert (dense.sparsity, dense.compression, dense.speedup, dense.overlap) == (0, 1, 1, 1)
    half = records[Key(0, "abs", 0.9)]
    assert half.compression == pytest.approx(9660 / (9660 - 0.9 * 8928), rel=1e-3)
    convolutions, linear = 6 * 9 * 26 * 26 + 6 * 6 * 16 * 12 * 12, 8928
    assert half.speedup == pytest.approx((convolutions + linear) / (convolutions + 0.1 * linear), rel=1e-3)
    shares = [records[Key(0, row, 0.5)].frozen for row in ("pseudo:0:formula", "abs", "pseudo:0")]
    assert shares == sorted(shares, key=lambda share: -(share or 0))
    assert shares[2] == 0


@pytest.mark.parametrize("chosen", BOTH)
def test_pieces_change_nothing_and_what_is_finished_is_not_done_again(
    tmp_path: Path, finished: Path, chosen: Settings
) -> None:
    whole = read_records(finished / chosen.name)
    assert numbers(run(tmp_path / "pieces", chosen, size=3)) == numbers(whole)
    said: list[str] = []
    protocol(tmp_path / "pieces", chosen, said).run()
    assert said == []


@pytest.mark.parametrize("chosen", BOTH)
def test_records_without_networks_are_enough(tmp_path: Path, finished: Path, chosen: Settings) -> None:
    """As after an import: nothing is trained for what is there."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    one = protocol(tmp_path, chosen)
    before = one.results.read()
    shutil.rmtree(one.results.folder / "networks")
    said: list[str] = []
    protocol(tmp_path, chosen, said).run()
    assert said == []
    first = one.results.folder / before[0].key.path
    first.unlink()
    others = {path: path.stat().st_mtime_ns for path in one.results.folder.rglob("*.json")}
    protocol(tmp_path, chosen, said).run()
    assert said[0] == "training 1 networks"
    assert numbers(one.results.read()) == numbers(before)
    assert {path: path.stat().st_mtime_ns for path in others} == others  # nothing is written twice


@pytest.mark.slow
@pytest.mark.parametrize("chosen", BOTH)
def test_a_run_that_ends_anywhere_goes_on_where_it_was(tmp_path: Path, finished: Path, chosen: Settings) -> None:
    whole = read_records(finished / chosen.name)
    folder, states, count = tmp_path / "bits" / chosen.name, 0, 0
    for attempt in range(40):
        left = [None] * (2 + attempt % 2)

        def say(text: str, left: list[None] = left) -> None:
            left.pop()
            if not left:
                raise KeyboardInterrupt

        try:
            protocol(tmp_path / "bits", chosen, size=1, say=say).run()
            break
        except KeyboardInterrupt:
            count += 1
            states = max(states, len(list(folder.glob("networks/chain-*/*.pt"))))
    assert count > 2
    assert numbers(read_records(folder)) == numbers(whole)
    assert states == chosen.iterative  # one state of a chain, not one a level
    assert {path.parent.name for path in folder.rglob("*.pt")} == {"dense"}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", BOTH)
def test_a_training_that_is_killed_goes_on_within_itself(
    tmp_path: Path, chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = replace(chosen, epochs=4, retrain_epochs=2)
    whole = run(tmp_path / "whole", chosen, size=1000)
    monkeypatch.setattr(saving, "_SECONDS", -1.0)
    monkeypatch.setattr(saving, "_SHARE", 0)
    save, count = saving.SavedFile.save, [0]
    begin, ran = LoopTrainer.begin, [0]

    def saved(self: saving.SavedFile, state: Any) -> None:
        save(self, state)
        count[0] += 1
        if count[0] % 5 == 0:
            raise KeyboardInterrupt

    def begun(self: LoopTrainer, epoch: int) -> None:
        ran[0] += 1
        begin(self, epoch)

    monkeypatch.setattr(saving.SavedFile, "save", saved)
    monkeypatch.setattr(LoopTrainer, "begin", begun)
    folder, kinds = tmp_path / "bits" / chosen.name, set()
    for _ in range(100):
        try:
            protocol(tmp_path / "bits", chosen).run()
            break
        except KeyboardInterrupt:
            kinds |= {path.parent.name.split("-")[0] for path in folder.glob("networks/running/*/*.pt")}
    assert numbers(read_records(folder)) == numbers(whole)
    networks = len(whole) if not chosen.iterative else len({(r.seed, r.row) for r in whole}) * len(chosen.levels)
    assert ran[0] == 4 * chosen.repetitions + 2 * networks  # no epoch was run twice
    assert kinds == {"dense", "chains" if chosen.iterative else "cells"}
    assert not list(folder.glob("networks/running/*"))


def test_time_that_is_over_ends_a_run_between_two_pieces(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(Over):
        protocol(tmp_path, little(), said, deadline=time.monotonic() - 1).run()
    assert said == []


@pytest.mark.parametrize("chosen", BOTH)
def test_rows_of_another_network_are_refused(tmp_path: Path, finished: Path, chosen: Settings) -> None:
    """As when the networks of some records are lost, and another machine's rounding trains others."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    one = protocol(tmp_path, chosen)
    before = one.results.read()
    shutil.rmtree(one.results.folder / "networks")
    for record in before:
        if record.row == "dense":
            (one.results.folder / record.key.path).unlink()
        elif record.seed == 0:
            one.results.folder.joinpath(record.key.path).unlink()
            one.results.write(replace(record, dense=record.dense + 0.01))
    there, here = (100 * next(r.dense + more for r in before if r.seed == 0) for more in (0.01, 0))
    with pytest.raises(ValueError, match=f"seed 0: .* accuracy of {here:.2f}%, .* {there:.2f}%: rows on different"):
        protocol(tmp_path, chosen).run()
    assert not any(record.row == "dense" for record in one.results.read() if record.seed == 0)
