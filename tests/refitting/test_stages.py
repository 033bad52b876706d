"""Blocks by themselves, against passes of the whole model for each layer."""

import copy
from contextlib import closing

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.refitting import stages
from prunewald.refitting.examples import Examples
from prunewald.refitting.originals import copied
from prunewald.refitting.passes import Passes
from tests.refitting.models import batches, cnn, pruned

pytestmark = pytest.mark.usefixtures("one_thread")


class Residual(nn.Module):
    """Blocks that add to what they are given, in place, between a stem and a head; each has a row of its own."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Sequential(nn.Linear(12, 20), nn.ReLU(inplace=True), nn.Linear(20, 12), nn.ReLU())
            self.out = nn.Linear(12, 12)

        def forward(self, x, scale):
            return x.add_(self.out(self.inside(x)) * scale), None

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(16, 12), nn.Linear(12, 4)
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x):
        x, scale = self.stem(x), torch.tensor(0.5)
        for block in self.blocks:
            x, _ = block(x, scale)
        return self.head(x)


class Looked(Residual):
    """The head looks at what each of the blocks returns."""

    def forward(self, x):
        x, scale, seen = self.stem(x), torch.tensor(0.5), 0
        for block in self.blocks:
            x = block(x.clone(), scale)[0]
            seen = seen + x
        return self.head(seen)


class Followed(Residual):
    """The blocks are in a row, and something looks at each of their outputs."""

    def forward(self, x):
        x, scale, seen = self.stem(x), torch.tensor(0.5), 0
        for block in self.blocks:
            x, _ = block(x, scale)
            seen = seen + x.clone()
        return self.head(seen)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def deep():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 4))


CASES = {
    "mlp": (deep, (16,), True),
    "cnn": (cnn, (3, 8, 8), True),
    "residual": (Residual, (16,), True),
    "looked at": (Looked, (16,), False),
    "followed": (Followed, (16,), True),
    "encoder": (Encoder, (5, 16), True),
}


@pytest.fixture(params=CASES)
def case(request):
    make, shape, chained = CASES[request.param]
    torch.manual_seed(0)
    return make(), batches(*shape, count=4), chained


def calls(model, data, dense):
    """How often linear layers and convolutions are called, and the report."""
    count = 0

    def see(*_):
        nonlocal count
        count += 1

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    handles = [layer.register_forward_hook(see) for layer in layers]
    pruner = pw.Pruner(model)
    pruner.hold_zeros()
    report = pw.refit(pruner, data, dense=dense)
    for handle in handles:
        handle.remove()
    pruner.detach()
    return count, report.refit


def test_blocks_by_themselves_give_what_passes_of_the_whole_give(case, monkeypatch):
    model, data, chained = case
    pruner, dense = pruned(model, 0.5)
    pruner.detach()
    other = copy.deepcopy(model)
    few, one = calls(model, data, dense)
    monkeypatch.setattr(stages, "_FEWEST", 1000)
    many, two = calls(other, data, dense)
    assert [layer.name for layer in one.layers] == [layer.name for layer in two.layers]
    assert one.after == pytest.approx(two.after, rel=1e-4)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert (few < many) == chained


def test_nothing_is_left_on_the_model(case):
    model, data, _ = case
    pruner, dense = pruned(model, 0.5)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), set(vars(m))) for m in model.modules()]
    pw.refit(pruner, data, dense=dense)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks), set(vars(m))) for m in model.modules()]


def test_with_the_dense_weights_on_disk_it_is_the_same(case, tmp_path):
    model, data, _ = case
    pruner, dense = pruned(model, 0.5)
    pruner.detach()
    other, third = copy.deepcopy(model), copy.deepcopy(dense)
    found = []
    for one, folder in ((model, None), (other, tmp_path)):
        own = pw.Pruner(one)
        own.hold_zeros()
        found.append(pw.refit(own, data, dense=dense, folder=folder).refit)
    assert list(tmp_path.iterdir()) == []
    found.append(pw.Pruner(third).prune(0.5, refit=data, folder=tmp_path).refit)
    for refit, after in zip(found[1:], (other, third), strict=True):
        errors = [layer.after for layer in found[0].layers]
        assert [layer.after for layer in refit.layers] == pytest.approx(errors, rel=1e-4)
        for a, b in zip(model.parameters(), after.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert list(tmp_path.iterdir()) == []


def test_on_disk_is_only_what_a_refit_may_change_and_it_is_read_again_when_needed(tmp_path):
    model = Residual()
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    masks = {"stem.weight": model.stem.weight != 0}
    with closing(copied(model, masks, tmp_path)) as dense:
        assert len(list(tmp_path.rglob("*.pt"))) == 1 + sum(tensor.dim() < 2 for tensor in model.parameters())
        before = model.stem.weight.detach().clone()
        passes = Passes(model.stem, names, dense, masks)
        with torch.no_grad():
            model.stem.weight.zero_()
        x = torch.randn(5, 16)
        given = Examples([x], model, 0.5, None)
        for _ in range(2):
            for some in given:
                found = passes.run(some, dense=True)
                torch.testing.assert_close(found, some.batch.args[0] @ before.T + model.stem.bias)
            passes.let_go()
    assert list(tmp_path.iterdir()) == []
