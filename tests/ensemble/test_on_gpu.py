"""Many models at once on a GPU: graphs and kernels against the plain loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, Adam, AdamW, RMSprop, train_many
from prunewald.uncertainty import PseudoBootstrap, SecondMoment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.conv2 = nn.Conv2d(5, 6, 4, padding=1)
        self.fc = nn.Linear(24, 4)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        out: Tensor = self.fc(self.dropout(x.flatten(1)))
        return out


def double() -> nn.Module:
    return Net().double()


def run(how, make=Net, **options):
    torch.backends.cudnn.allow_tf32 = False
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 1, 12, 12, generator=g), torch.randint(0, 4, (100,), generator=g)
    x = x.double() if make is double else x
    common = {"epochs": 10, "batch_size": 24, "seeds": range(7), "device": "cuda", "resample": "bootstrap"}
    return train_many(make, x, y, how=how, progress=False, **common | options)


def same(a, b, rtol, atol):
    for name in a.params:
        torch.testing.assert_close(a.params[name], b.params[name], rtol=rtol, atol=atol)
    for name in a.second_moment:
        torch.testing.assert_close(a.second_moment[name], b.second_moment[name], rtol=100 * rtol, atol=atol)
    for one, other in zip(a.estimates, b.estimates, strict=True):
        for name in one:
            torch.testing.assert_close(one[name].sigma, other[name].sigma, rtol=100 * rtol, atol=atol)
            assert torch.equal(one[name].dead, other[name].dead)


RECIPES = [SGD(lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01), RMSprop(lr=1e-3), Adam(), AdamW()]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_graph_agrees_with_the_plain_loop(recipe):
    masks = {"fc.weight": torch.rand(7, 4, 24, generator=torch.Generator().manual_seed(1)) > 0.5}
    options = {
        "optimizer": recipe,
        "collect": (PseudoBootstrap(last=10), SecondMoment()),
        "masks": masks,
        "make": double,
    }
    many = run("vmap", **options)
    assert many.how == "vmap, in a CUDA graph"
    same(many, run("loop", **options), 1e-6, 1e-12)
    assert (many.params["fc.weight"][~masks["fc.weight"]] == 0).all()


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_graph_goes_on_with_the_state_of_the_optimizer(recipe):
    masks = {"fc.weight": torch.rand(8, 4, 24, generator=torch.Generator().manual_seed(1)) > 0.5}
    options = {"make": double, "optimizer": recipe, "keep_optimizer": True}
    first, on, whole = {}, {}, {}
    for how in ("vmap", "loop"):
        first[how] = run(how, epochs=4, **options)
        start = first[how].rows([0, 6, 6, 1, 2, 3, 4, 5])
        on[how] = run(how, epochs=6, start=start, masks=masks, first_epoch=4, seeds=None, **options)
        whole[how] = run(how, epochs=6, start=first[how], first_epoch=4, **options)
    assert on["vmap"].how == "vmap, in a CUDA graph"
    same(on["vmap"], on["loop"], 1e-6, 1e-12)
    same(whole["vmap"], run("vmap", **options), 1e-6, 1e-12)
    for name, table in on["loop"].optimizer_state.items():
        for key, tensor in table.items():
            torch.testing.assert_close(on["vmap"].optimizer_state[name][key], tensor, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("make", [Net, double])
@pytest.mark.parametrize("own_rows", [False, True])
def test_evaluation_agrees_with_the_plain_loop(make, own_rows, capsys):
    result = run("vmap", make=make, epochs=2)
    g = torch.Generator().manual_seed(2)
    x, y = torch.randn(500, 1, 12, 12, generator=g), torch.randint(0, 4, (500,), generator=g)
    rows = torch.randint(0, 500, (7, 90), generator=g) if own_rows else None
    x = x.double() if make is double else x
    outputs = [
        result.evaluate(x, y, lambda output, target: output, rows=rows, batch_size=64, how=how, device="cuda")
        for how in ("auto", "loop")
    ]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-5)
    right = result.evaluate(x, y, rows=rows, device="cuda").double().mean(1)
    assert torch.equal(result.accuracy(x, y, rows=rows, chunk=2, device="cuda"), right)
    assert "one by one" not in capsys.readouterr().err


def test_kernels_agree_with_the_plain_loop():
    options = {"optimizer": SGD(lr=0.05), "epochs": 4}
    same(run("vmap", **options), run("loop", **options), 1e-3, 1e-5)


def resting() -> nn.Module:
    model = Net()
    model.conv1.requires_grad_(False)
    model.dropout.eval()
    return model


def test_frozen_parts_and_their_masks_hold_in_a_graph():
    masks = {"conv1.weight": torch.rand(7, 5, 1, 3, 3, generator=torch.Generator().manual_seed(1)) > 0.5}
    options = {"make": resting, "optimizer": SGD(lr=0.05), "epochs": 4, "masks": masks}
    many = run("vmap", **options)
    assert many.how == "vmap, in a CUDA graph"
    same(many, run("loop", **options), 1e-3, 1e-5)
    assert (many.params["conv1.weight"][~masks["conv1.weight"]] == 0).all()
    torch.manual_seed(3)
    assert torch.equal(many.params["conv1.weight"][3], resting().conv1.weight * masks["conv1.weight"][3])


def test_a_replica_depends_on_its_own_seed_only():
    whole, part = run("auto"), run("auto", seeds=[5, 2], chunk=1)
    assert whole.how == "vmap, in a CUDA graph"
    for name, tensor in part.params.items():
        torch.testing.assert_close(tensor, whole.params[name][[5, 2]], rtol=1e-3, atol=1e-4)


def test_a_model_that_synchronises_needs_no_graph():
    class Waits(Net):
        def forward(self, x: Tensor) -> Tensor:
            torch.cuda.synchronize()
            return super().forward(x)

    assert run("auto", make=Waits).how.startswith("vmap, without a CUDA graph")
