"""Parts of a model that are used, saved and loaded by themselves: what is pruned in them is looked at too."""

import copy
import pickle

import pytest
import torch
from torch import nn

import prunewald as pw

pytestmark = pytest.mark.usefixtures("one_thread")


class Parted(nn.Module):
    """An encoder, an attention that uses its projection's weights without calling it, and a head."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.encoder(x)[:, None]
        return self.head(self.attention(h, h, h)[0][:, 0])


PARTS = {
    "encoder": ("encoder.0.weight", lambda model, x: model.encoder(x)),
    "attention": ("attention.out_proj.weight", lambda model, x: model.attention(x[:, None], x[:, None], x[:, None])),
    "head": ("head.weight", lambda model, x: model.head(x)),
}


@pytest.fixture
def pruned():
    torch.manual_seed(0)
    model = Parted()
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters()), criterion="magnitude", scope="layer")
    pruner.prune(0.5)
    return model, pruner


@pytest.mark.parametrize("mode", ["first evaluation", "counted write", "training"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_called_alone_is_looked_at(pruned, part, mode):
    model, pruner = pruned
    name, call = PARTS[part]
    weight = model.get_parameter(name)
    model.train(mode == "training")
    if mode == "counted write":  # the first look in eval mode is over
        call(model, torch.randn(4, 8))
    with torch.no_grad():
        (weight.data if mode == "first evaluation" else weight).add_(1.0)
    with pytest.warns(UserWarning, match=name):
        call(model, torch.randn(4, 8))
    assert pruner.sparsity == pytest.approx(0.5, abs=0.01)


def test_the_state_dict_of_a_part_is_looked_at(pruned):
    model, _ = pruned
    model.head.weight.data.add_(1.0)
    with pytest.warns(UserWarning, match=r"head\.weight"):
        found = model.head.state_dict()
    assert int((found["weight"] == 0).sum()) == 12


def test_a_part_that_is_loaded_denser_is_told_of_at_its_use(pruned):
    model, pruner = pruned
    model.encoder.load_state_dict({key: torch.ones_like(value) for key, value in model.encoder.state_dict().items()})
    assert pruner.sparsity == pytest.approx(0.5, abs=0.01)
    with pytest.warns(UserWarning, match="reset"):
        model.encoder(torch.randn(4, 8))


def test_a_pass_counts_once_however_many_parts_look(pruned):
    model, pruner = pruned
    model(torch.randn(4, 8))
    assert pruner._subject.guard.waiting.passes == 1
    alone = nn.Sequential(nn.Linear(8, 3))
    single = pw.Pruner(alone, torch.optim.Adam(alone.parameters()), criterion="magnitude")
    single.prune(0.5)
    alone(torch.randn(4, 8))
    assert single._subject.guard.waiting.passes == 1


def test_hooks_on_parts_leave_copies_and_graphs_alone(pruned):
    model, _ = pruned
    x = torch.randn(4, 8)
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.head.weight.data.add_(1.0)
        twin.eval()
        twin.head(x)
        assert int((twin.head.weight == 0).sum()) == 0, "nobody holds the zeros of a copy"
