"""torch.distributed.checkpoint: it loads in place into the state of fresh objects, which have gathered nothing yet."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import prunewald as pw
from prunewald.core.base import Online
from prunewald.strategies import Surgery
from prunewald.util.registry import known, make
from tests.resuming import same
from tests.training import SMALL, net, one_step

dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no distributed package")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package"),
    pytest.mark.filterwarnings(
        "ignore:standard errors from", "ignore:batches of", "ignore:sigma is over", "ignore:prune.. at step"
    ),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # a single process is meant
]

ONLINE = sorted(name for name, part in known("uncertainty").items() if issubclass(part, Online))
WATCHING = sorted(name for name in known("criterion") if make("criterion", name).statistic is not None)
CHOICES: dict[str, dict[str, Any]] = {
    **{name: {"criterion": "magnitude-uncertainty", "uncertainty": SMALL.get(name, name)} for name in ONLINE},
    **{name: {"criterion": name} for name in WATCHING},
    "window": {"criterion": "magnitude-uncertainty", "uncertainty": pw.PseudoBootstrap(last=6, total_steps=9)},
    "schedule": {"criterion": "magnitude", "schedule": pw.Cubic(0.8, begin=2, end=17, every=3)},
}
OPTIMIZERS = {"Adam": torch.optim.Adam, "SGD": torch.optim.SGD}


class Training:
    """A model, its optimizer and its Pruner, with what a user writes to go on from a checkpoint folder."""

    def __init__(self, optimizer: str, choice: str, seed: int) -> None:
        self.model: nn.Module = net(seed)
        self.optimizer: Optimizer = OPTIMIZERS[optimizer](self.model.parameters(), lr=0.01)
        self.pruner = self.attached(choice)

    def attached(self, choice: str) -> pw.Pruner:
        return pw.Pruner(self.model, self.optimizer, **CHOICES[choice])

    def go(self, first: int, last: int) -> "Training":
        for step in range(first, last):
            one_step(self.model, self.optimizer, step)
            if step == 8 and self.pruner.schedule is None:
                self.pruner.prune(0.5)
        return self

    def parts(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "pruner": self.pruner.state_dict()}

    def save(self, folder: Path) -> None:
        dcp.save(self.parts(), checkpoint_id=folder, no_dist=True)

    def load(self, folder: Path) -> "Training":
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.parts()
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])  # last: set_state_dict may take a step at learning rate 0
        return self


@pytest.mark.parametrize("moment", [4, 9, 15])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("choice", CHOICES)
def test_going_on_from_a_folder_is_exact(choice, optimizer, moment, tmp_path):
    Training(optimizer, choice, seed=0).go(0, moment).save(tmp_path)
    resumed = Training(optimizer, choice, seed=1).load(tmp_path).go(moment, 20)
    straight = Training(optimizer, choice, seed=0).go(0, 20)
    assert same(resumed.pruner.state_dict(), straight.pruner.state_dict())
    assert same(resumed.model.state_dict(), straight.model.state_dict())
    assert resumed.pruner.history == straight.pruner.history
    assert resumed.pruner.sparsity == pytest.approx(0.5 if choice != "schedule" else 0.8, abs=0.02)


def test_the_pruner_itself_can_be_given(tmp_path):
    trained = Training("SGD", "pseudo-bootstrap", seed=0).go(0, 15)
    dcp.save({"pruner": trained.pruner}, checkpoint_id=tmp_path, no_dist=True)
    fresh = Training("SGD", "pseudo-bootstrap", seed=1)
    dcp.load({"pruner": fresh.pruner}, checkpoint_id=tmp_path, no_dist=True)
    assert same(fresh.pruner.state_dict(), trained.pruner.state_dict())


class Operated(Training):
    """The same with a surgery, made after a step that gives the optimizer a state."""

    def attached(self, choice: str) -> pw.Pruner:
        one_step(self.model, self.optimizer, 0)
        return Surgery(self.model, self.optimizer, sparsity=0.5, criterion=choice)


def test_a_surgery_with_values_in_the_dark_goes_on(tmp_path):
    operated = Operated("Adam", "magnitude", seed=0).go(1, 8)
    operated.save(tmp_path)
    assert operated.pruner.state_dict()["dark"][0], "guards the test"
    resumed = Operated("Adam", "magnitude", seed=1).load(tmp_path)
    assert same(resumed.go(9, 20).pruner.state_dict(), operated.go(9, 20).pruner.state_dict())
    assert same(resumed.model.state_dict(), operated.model.state_dict())


def test_going_back_to_a_folder_from_before_a_pruning_brings_its_weights_back(tmp_path):
    training = Training("Adam", "taylor", seed=0).go(0, 5)
    training.save(tmp_path)
    training.go(5, 20).pruner.reset()
    training.load(tmp_path)
    assert training.pruner.sparsity == 0
    assert same(training.model.state_dict(), Training("Adam", "taylor", seed=0).go(0, 5).model.state_dict())
