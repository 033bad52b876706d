"""Zeros hold in every kind of model: attention, recurrence, tied weights, channels_last, bfloat16, compiled."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

import prunewald as pw
from tests.training import minus_zero_or_worse, net, one_step, sgd, train

pytestmark = pytest.mark.usefixtures("one_thread")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(4, 4, 6)
        attended: Tensor = self.mha(x, x, x)[0]
        return attended.reshape(16, 6)[:, :4]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.rnn = kind(6, 4, num_layers=2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        forward, backward = self.rnn(x.view(4, 4, 6))[0].reshape(16, 8).split(4, dim=1)
        both: Tensor = forward + backward
        return both


class Tied(nn.Module):
    """Encoder and decoder are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        decoded: Tensor = self.decode(torch.tanh(self.encode(x)))
        return decoded[:, :4]


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.conv(x.view(16, 3, 1, 2))
        return mapped.flatten(1)


def channels_last(model: nn.Module) -> nn.Module:
    for param in model.parameters():
        if param.dim() == 4:
            param.data = param.data.to(memory_format=torch.channels_last)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "tied": Tied,
    "conv": Conv,
    "channels-last": lambda: channels_last(Conv()),
    "bfloat16": lambda: net().to(torch.bfloat16),
    "float64": lambda: net().to(torch.float64),
}
WEIGHTS = {
    "attention": ["mha.in_proj_weight", "mha.out_proj.weight"],
    "lstm": [
        f"rnn.weight_{part}_l{layer}{back}" for layer in (0, 1) for back in ("", "_reverse") for part in ("ih", "hh")
    ],
    "tied": ["encode.weight"],
}
ESTIMATORS = {"window": pw.PseudoBootstrap(last=3, total_steps=4), "second-moment": pw.SecondMoment()}


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", MODELS)
def test_zeros_hold(kind, estimator):
    model = build(kind)
    optimizer = sgd(model, weight_decay=0.01)
    pruner = pw.Pruner(model, optimizer, uncertainty=ESTIMATORS[estimator], scope="layer")
    train(model, optimizer, 4)
    report = pruner.prune(0.8)
    assert [row.name for row in report.rows] == WEIGHTS.get(kind, list(pruner.masks))
    start = {name: model.get_parameter(name).detach().clone() for name in pruner.masks}
    for step in range(4, 8):
        one_step(model, optimizer, step)
        for name, mask in pruner.masks.items():
            assert not minus_zero_or_worse(model.get_parameter(name), ~mask), name
    for name, mask in pruner.masks.items():
        assert mask.sum() == mask.numel() - round(0.8 * mask.numel())
        assert (model.get_parameter(name) != start[name])[mask].any(), name


def test_tied_weights_have_one_mask_and_are_zero_in_both_uses():
    model = build("tied")
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    train(model, optimizer, 3)
    assert list(pruner.masks) == ["encode.weight"]
    saved = model.state_dict()
    dead = ~pruner.masks["encode.weight"]
    assert not minus_zero_or_worse(saved["encode.weight"], dead)
    assert not minus_zero_or_worse(saved["decode.weight"], dead)


@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
def test_memory_format_stays_and_does_not_matter(coarse):
    weights, masks = [], []
    for kind in ("conv", "channels-last"):
        model = build(kind)
        if coarse:  # many equal weights, so that position decides
            model.get_parameter("conv.weight").data.mul_(8).round_()
        pruner = pw.Pruner(model, sgd(model), criterion="magnitude")
        pruner.prune(0.5)
        weights.append(model.get_parameter("conv.weight"))
        masks.append(pruner.masks["conv.weight"])
    assert weights[1].is_contiguous(memory_format=torch.channels_last)
    assert not weights[1].is_contiguous()
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(masks[0], masks[1])
    assert conv2d(torch.ones(1, 3, 1, 2), weights[1]).shape == (1, 4, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("moment", ["before attaching", "after attaching", "after pruning"])
def test_a_compiled_model(backend, moment):
    """Compiled at any moment, it trains as the plain one does; the Pruner takes it as it is."""
    torch._dynamo.reset()
    plain, model = net(), net()
    run = torch.compile(model, backend=backend)
    optimizers = sgd(plain), sgd(model)
    expected = pw.Pruner(plain, optimizers[0], criterion="magnitude")
    pruner = pw.Pruner(run, optimizers[1], criterion="magnitude")
    assert list(pruner.masks) == ["0.weight", "2.weight"]
    start = {"before attaching": 0, "after attaching": 2, "after pruning": 4}[moment]
    for step in range(6):
        if step == 3:
            pruner.prune(0.8)
            expected.prune(0.8)
        one_step(plain, optimizers[0], step)
        one_step(run if step >= start else model, optimizers[1], step)
        assert not any(minus_zero_or_worse(model.get_parameter(n), ~m) for n, m in pruner.masks.items() if step >= 3)
    for name, param in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), param)
    assert all(torch.equal(mask, expected.masks[name]) for name, mask in pruner.masks.items())
