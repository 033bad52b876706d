"""Dropout as one of many: what it drops, and what it says, is what torch's own would."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from prunewald.ensemble import SGD, draws
from prunewald.ensemble.swap import Swap
from tests.ensemble.helpers import dropping, dropping_net, same

pytestmark = pytest.mark.usefixtures("one_thread")


def test_dropout_differs_by_replica_and_step():
    start = dropping_net().state_dict()
    result = dropping(start=start, optimizer=SGD(lr=0.0), batch_size=50, epochs=2)
    assert result.losses.unique().numel() == result.losses.numel()


def drawn_apart(noise) -> list[bool]:
    """The dimensions along which noise differs."""
    return [bool((noise != noise.narrow(d, 0, 1)).any()) for d in range(noise.dim())]


DROPOUTS = [
    *((F.dropout, n) for n in (1, 2, 3, 4)),
    *((F.dropout1d, n) for n in (2, 3)),
    *((F.dropout2d, n) for n in (2, 3, 4, 5)),
    *((F.dropout3d, n) for n in (3, 4, 5)),
]


@pytest.mark.filterwarnings("ignore:dropout[23]d. Received")
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("dropout", "dims"), DROPOUTS)
def test_dropout_drops_what_torch_drops(dropout, dims, together):
    def ours(x, key):
        with Swap(key, torch.zeros((), dtype=torch.int32), fast=False):
            return dropout(x, 0.5)

    x, keys = torch.ones((8,) * dims), draws.seed_key([1, 2], draws.NOISE)
    noise = vmap(ours)(x.expand(2, *x.shape), keys) if together else torch.stack([ours(x, key) for key in keys])
    torch.manual_seed(0)
    wanted = drawn_apart(dropout(x, 0.5))
    assert noise.unique().tolist() == [0, 2]
    assert drawn_apart(noise) == [True, *wanted]
    assert drawn_apart(noise[1]) == wanted


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_dropout_warns_and_fails_as_torch_does(how):
    def made(dropout, p):
        class Drops(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = super().forward(dropout(x, p))
                return out

        return lambda: Drops(nn.Flatten(), nn.Linear(12, 3).double())

    with pytest.warns(UserWarning, match="Received a 3D input to dropout2d"):
        result = dropping(made(F.dropout2d, 0.3), how=how)
    same(result, dropping(made(F.dropout1d, 0.3), how=how))
    with pytest.raises(ValueError, match="between 0 and 1, but got 1.5"):
        dropping(made(F.dropout, 1.5), how=how)
