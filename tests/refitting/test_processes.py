"""Two processes that train together refit alike, on the data of both."""

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import prunewald as pw
from tests.processes import free_port, join, leave
from tests.refitting.models import batches, cnn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"),
]


class Routed(nn.Module):
    """An example goes to the expert that its first input names."""

    def __init__(self):
        super().__init__()
        self.experts, self.out = nn.Parameter(torch.randn(4, 10, 16)), nn.Linear(10, 3)

    def forward(self, x):
        chosen = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 5).long()
        hidden = x.new_zeros(len(x), 10)
        for at in chosen.unique():
            hidden[chosen == at] = F.linear(x[chosen == at], self.experts[at])
        return self.out(hidden.relu())


def data(kind):
    if kind == "cnn":
        return batches(3, 8, 8, count=4)
    found = batches(16, count=4)
    for at, x in enumerate(found):  # the first expert is for one process alone, and two are for none
        x[:, 0] = x[:, 0].abs() if at % 2 else x[:, 0]
    return found


def model(kind):
    torch.manual_seed(0)
    return cnn() if kind == "cnn" else Routed()


def refitted(kind, own, wrapped):
    made = model(kind)
    pruner = pw.Pruner(DistributedDataParallel(made) if wrapped else made)
    report = pruner.prune(0.5, refit=own)
    return made.state_dict(), report.refit


def refit_together(rank, port, folder):
    """Each process has every other batch."""
    join(rank, port)
    found = {kind: refitted(kind, data(kind)[rank::2], wrapped=True) for kind in ("cnn", "routed")}
    torch.save({kind: (state, refit.to_dict()) for kind, (state, refit) in found.items()}, f"{folder}/{rank}.pt")
    leave()


def test_processes_refit_alike_and_as_one_with_the_data_of_both(tmp_path):
    multiprocessing.spawn(refit_together, (free_port(), str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for kind in first:
        (state, refit), (other, again) = first[kind], second[kind]
        assert all(torch.equal(tensor, other[name]) for name, tensor in state.items())
        assert {**refit, "seconds": 0} == {**again, "seconds": 0}
        alone, one = refitted(kind, data(kind), wrapped=False)
        assert refit["examples"] == one.examples
        assert [layer["name"] for layer in refit["layers"]] == [layer.name for layer in one.layers]
        assert refit["after"] == pytest.approx(one.after, rel=1e-3)
        for name, tensor in alone.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-2, atol=5e-3)
