"""What a trial finds out: models that cannot be vectorised, summed losses, memory."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, trial_step
from prunewald.ensemble.job import Job
from tests.ensemble.helpers import DROPPING_SEEDS, Branching, dropping, dropping_net, same, sequences

pytestmark = pytest.mark.usefixtures("one_thread")


def job_of(make, dtype=torch.float64, **options):
    """The job of a training of `dropping_net`'s data."""
    x, y = sequences()
    common = {"loss": F.cross_entropy, "optimizer": SGD(lr=0.1), "epochs": 3, "batch_size": 20} | options
    return Job(make=make, x=x.to(dtype), y=y, seeds=DROPPING_SEEDS, device=x.device, **common)


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


def norm_net(dtype):
    """A convolution whose bias has no gradient in theory, since BatchNorm takes it away again."""
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).to(dtype)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])  # of the loss: what is zero does not depend on its unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_before_batch_norm_can_be_vectorised(dtype, scale):
    def loss(output, target):
        return scale * F.cross_entropy(output, target)

    assert trial_step.cannot_vmap(job_of(partial(norm_net, dtype), dtype, loss=loss)) == ""


def test_a_convolution_of_images_before_batch_norm_can_be_vectorised():
    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10))

    x, y = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
    assert trial_step.cannot_vmap(replace(job_of(make), x=x, y=y, batch_size=64)) == ""


def test_the_weights_of_a_loss_follow_to_another_precision():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    assert trial_step.cannot_vmap(job_of(partial(norm_net, torch.float32), torch.float32, loss=loss)) == ""
    assert loss.weight.dtype == torch.float32


class _Centred(torch.autograd.Function):
    """Takes away the mean of the batch; under vmap that of all replicas, as a layer with global statistics would."""

    @staticmethod
    def forward(x):
        return x - x.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)

    @staticmethod
    def vmap(info, dims, x):
        x = x.movedim(dims[0], 0)
        return x - x.mean((0, 1)), 0


class _Halved(torch.autograd.Function):
    """Does nothing, but under vmap only a part of the gradient comes back."""

    @staticmethod
    def forward(x, part):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.part = 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.part, None

    @staticmethod
    def vmap(info, dims, x, part):
        return part * x.movedim(dims[0], 0) + (1 - part) * x.movedim(dims[0], 0).detach(), 0


class Wrong(nn.Module):
    """A bias before BatchNorm, and a function that vmap gets wrong."""

    def __init__(self, dtype, wrong, before):
        super().__init__()
        self.first, self.norm = nn.Conv1d(2, 3, 3).to(dtype), nn.BatchNorm1d(3).to(dtype)
        self.out, self.wrong, self.before = nn.Linear(12, 3).to(dtype), wrong, before

    def forward(self, x):
        x = self.norm(self.first(self.wrong(x)) if self.before else self.wrong(self.first(x)))
        return self.out(F.relu(x).flatten(1))


WRONG = {
    "statistics of all replicas": (lambda x: F.relu(_Centred.apply(x)), True),
    "half of a gradient": (lambda x: _Halved.apply(x, 0.5), False),
    "a gradient wrong by a twentieth": (lambda x: _Halved.apply(x, 0.95), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("what", WRONG)
def test_a_layer_that_vmap_gets_wrong_is_found_before_batch_norm_too(what, dtype):
    job = job_of(partial(Wrong, dtype, *WRONG[what]), dtype)
    assert "differs from that of separate models" in trial_step.cannot_vmap(job)


class Shifted(nn.Module):
    """A bias before BatchNorm with a gradient of usual size, but only under vmap: a part of it comes past the norm."""

    def __init__(self, dtype):
        super().__init__()
        self.bias, self.net = nn.Parameter(torch.zeros(2, 1, dtype=dtype)), norm_net(dtype)

    def forward(self, x):
        past = self.bias if torch._C._functorch.is_batchedtensor(self.bias) else self.bias.detach()
        return self.net(x + self.bias) + past.sum() * torch.arange(3, dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_should_be_zero_is_not_excused(dtype):
    job = job_of(partial(Shifted, dtype), dtype)
    assert trial_step.cannot_vmap(job) == "the gradient of bias differs from that of separate models"


def test_an_error_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        dropping(lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)).double(), how="auto")


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
