"""The protocol against a literal, slow reference: one network, one loop, the public Pruner."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunewald as pw
from prunewald.ensemble.draws import order
from prunewald.ensemble.models import build
from prunewald.lab.data import Raw, split
from prunewald.lab.models import Mlp, PaperCnn
from prunewald.lab.protocol import Over
from prunewald.lab.records import Key, Record
from prunewald.lab.settings import Settings
from tests.lab.little import little, numbers, protocol, raw, rules, run

__all__ = ["rules"]
pytestmark = pytest.mark.usefixtures("rules", "one_thread")


class Plain:
    """A network in a loop that anyone would write; only the order of the data is the ensemble's."""

    def __init__(self, chosen: Settings, data: Raw, seed: int) -> None:
        kinds = {"fashion-mnist": PaperCnn, "mnist": Mlp}
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
    return {
        "abs": {"criterion": pw.Magnitude()},
        "moment:1": {"criterion": pw.MagnitudeUncertainty(lam=1), "uncertainty": pw.SecondMoment()},
        "pseudo:1e-4:formula": {
            "criterion": pw.MagnitudeUncertainty(lam=1e-4, frozen="formula"),
            "uncertainty": window,
        },
        "pseudo:0.01": {"criterion": pw.MagnitudeUncertainty(lam=0.01), "uncertainty": window},
    }[row]


def by_key(records: list[Record]) -> dict[Key, Record]:
    return {record.key: record for record in records}


ROWS = ("abs", "pseudo:1e-4:formula", "pseudo:0.01", "moment:1")


def test_one_shot_is_train_prune_retrain(tmp_path: Path) -> None:
    chosen, data = little(rows=ROWS, repetitions=1, first_seed=5), raw()
    records = by_key(run(tmp_path, chosen))
    for row in ROWS:
        for level in chosen.levels:
            plain = Plain(chosen, data, 5)
            steps = plain.steps(chosen.epochs)
            pruner = pw.Pruner(plain.model, plain.optimizer, targets=[nn.Linear], **parts(row, chosen.last, steps))
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


def test_iterative_is_one_chain_through_the_levels(tmp_path: Path) -> None:
    """Sigma is that of the last training, over the weights that survive; what is pruned stays so."""
    rows = ("abs", "pseudo:0.01", "moment:1")
    chosen = little("mnist", rows=rows, epochs=2, retrain_epochs=2, levels=(0.5, 0.8, 0.95), iterative=True)
    data = raw("mnist")
    records = by_key(run(tmp_path, chosen))
    for row in rows:
        plain = Plain(chosen, data, 1)
        given = parts(row, chosen.last, plain.steps(chosen.epochs))
        pruner = pw.Pruner(plain.model, plain.optimizer, targets=[nn.Linear], **given)
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
    assert len({record.pruned for record in records.values()}) > 4


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
                plain.model.load_state_dict(build(lambda: PaperCnn(0.0), 0).state_dict())
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


def test_costs_and_frozen_shares(tmp_path: Path) -> None:
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


def test_pieces_change_nothing_and_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    for chosen in (little(), little("mnist", epochs=1, retrain_epochs=1)):
        whole = run(tmp_path / "whole", chosen)
        assert numbers(run(tmp_path / "pieces", chosen, piece=1)) == numbers(whole)
        said: list[str] = []
        protocol(tmp_path / "pieces", chosen, said).run()
        assert said == []


def test_records_without_networks_are_enough(tmp_path: Path) -> None:
    """As after an import: nothing is trained for what is there."""
    for chosen in (little(), little("mnist", epochs=1, retrain_epochs=1)):
        one = protocol(tmp_path, chosen)
        one.run()
        before = one.results.read()
        for path in sorted((one.results.folder / "networks").rglob("*.pt")):
            path.unlink()
        said: list[str] = []
        protocol(tmp_path, chosen, said).run()
        assert said == []
        gone = before[-1]
        (one.results.folder / gone.key.path).unlink()
        protocol(tmp_path, chosen, said).run()
        assert len(said) >= 2
        assert numbers(one.results.read()) == numbers(before)


def test_time_that_is_over_keeps_what_is_finished(tmp_path: Path) -> None:
    for chosen in (little(), little("mnist", epochs=1, retrain_epochs=1)):
        whole = run(tmp_path / "whole", chosen)
        for count in range(30):
            stopped = protocol(tmp_path / "bits", chosen, piece=1, deadline=time.monotonic() + 0.02)
            try:
                stopped.run()
            except Over:
                continue
            break
        assert count > 2
        assert numbers(stopped.results.read()) == numbers(whole)


def test_a_chain_keeps_one_state_at_most(tmp_path: Path) -> None:
    chosen = little("mnist", epochs=1, retrain_epochs=1, levels=(0.5, 0.8, 0.9), repetitions=1, rows=("abs",))
    whole = run(tmp_path / "whole", chosen)
    folder = tmp_path / "bits" / chosen.name
    most = 0
    for _ in range(20):
        try:
            protocol(tmp_path / "bits", chosen, piece=1, deadline=time.monotonic() + 0.01).run()
            break
        except Over:
            most = max(most, len(list(folder.glob("networks/chain-abs-*/*.pt"))))
    assert most == 1
    assert [path.parent.name for path in folder.rglob("*.pt")] == ["dense"]
    assert numbers(protocol(tmp_path / "bits", chosen).results.read()) == numbers(whole)


def test_a_damaged_network_is_named(tmp_path: Path) -> None:
    one = protocol(tmp_path, little(repetitions=1))
    one.run()
    (path,) = (one.results.folder / "networks").rglob("*.pt")
    path.write_bytes(path.read_bytes()[:1000])
    (one.results.folder / Key(0, "abs", 0.5).path).unlink()
    with pytest.raises(ValueError, match="00000.pt is no trained network .*: delete it to train it again"):
        protocol(tmp_path, little(repetitions=1)).run()


def test_fewer_images_are_of_all_classes(tmp_path: Path) -> None:
    one = protocol(tmp_path, little(images=40))
    rows = one.networks.train_rows([0, 1])
    assert rows.shape == (2, 40)
    assert one.networks.y[rows].bincount().tolist() if rows.dim() == 1 else True
    for own in rows:
        assert one.networks.y[own].bincount(minlength=10).tolist() == [4] * 10
