"""What a trial finds out: models that cannot be vectorised, the faster way, summed losses, memory."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, trial_step
from prunewald.ensemble.job import Job
from tests.ensemble.helpers import DROPPING_SEEDS, Branching, dropping, dropping_net, same, sequences

pytestmark = pytest.mark.usefixtures("one_thread")


def job_of(make):
    """The job of a training of `dropping_net`'s data."""
    x, y = sequences()
    common = {"loss": F.cross_entropy, "optimizer": SGD(lr=0.1), "epochs": 3, "batch_size": 20}
    return Job(make=make, x=x, y=y, seeds=DROPPING_SEEDS, device=x.device, **common)


class Counting(Branching):
    """Keeps a buffer by assignment, which vmap cannot see."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach().abs().sum()
        out: Tensor = self.fc(x.flatten(1))
        return out


class Noisy(Branching):
    """Draws from torch's own generator, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc((x + torch.randn_like(x)).flatten(1))
        return out


@pytest.mark.parametrize("make", [Branching, Counting, Noisy])
def test_other_models_are_trained_one_by_one_and_it_says_why(make, capsys):
    result = dropping(make, how="auto")
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert "one by one" in said
    assert result.how == f"loop: {said.split('vectorised: ')[1]}"
    same(dropping(make, how="auto", seeds=[7, 0]), result.rows([3, 1]))


def test_batch_norm_can_be_vectorised():
    def make():
        return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 3)).double()

    assert trial_step.cannot_vmap(job_of(make)) == ""


def test_an_error_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        dropping(lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)).double(), how="auto")


def test_on_a_cpu_the_faster_way_is_taken(monkeypatch):
    dropping(how="auto")
    times = {"vmap": 1.0, "loop": 2.0}
    monkeypatch.setattr(trial_step, "step_seconds", lambda trainer, batches: times[trainer.way])
    assert dropping(how="auto").how == "vmap"
    times["vmap"] = 3.0
    assert dropping(how="auto").how == "loop: faster here (2000.00 ms a step against 3000.00)"


def test_memory_is_that_of_weights_and_activations():
    weights = 8 * sum(p.numel() for p in dropping_net().parameters())
    assert 6 * weights < trial_step.footprint(job_of(dropping_net)) < 60 * weights + 50_000


SUMS = [
    nn.CrossEntropyLoss(reduction="sum"),
    partial(F.cross_entropy, reduction="sum"),
    lambda output, target: F.cross_entropy(output, target, reduction="sum") - 100 * len(target),
]


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("loss", SUMS)
def test_losses_are_means_of_a_summed_loss_too(loss, how):
    def mean(output, target):
        return loss(output, target) / len(target)

    common = {"batch_size": 7, "optimizer": SGD(lr=0.0), "how": how}
    torch.testing.assert_close(dropping(loss=loss, **common).losses, dropping(loss=mean, **common).losses)
