"""On a CUDA device: models that move there, fused steps that are skipped without waiting, the same masks as a CPU."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

import prunewald as pw
from tests.resuming import same
from tests.training import loss_of, net, one_step, sgd, train, zeros_hold

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ESTIMATORS: dict[str, Any] = {
    "window": pw.PseudoBootstrap(last=9, total_steps=12),
    "rolling": pw.PseudoBootstrap(last=10),
    "every": pw.PseudoBootstrap(every=2),
    "second-moment": pw.SecondMoment(),
}
MOVED = {**ESTIMATORS, "batch-means": pw.BatchMeans(length=3)}
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
each_moved = pytest.mark.parametrize("estimator", MOVED)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """An error where the CPU waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, it says
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_pruned_model_moves():
    model = net()
    optimizer = sgd(model, momentum=0.0)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    model.to("cuda")
    before = model[0].weight.detach().clone()
    for step in range(3):
        one_step(model, optimizer, step)
        assert zeros_hold(model, pruner)
    assert all(mask.is_cuda for mask in pruner.masks.values())
    assert not torch.equal(before, model[0].weight)
    model.to("cpu")
    one_step(model, optimizer, 3)
    assert zeros_hold(model, pruner)


@each_moved
@pytest.mark.parametrize("move", [0, 5, 8, 12])
def test_a_model_moves_within_the_window(estimator, move):
    """In the rolling window, with blocks left behind on the CPU."""
    pruners = []
    for device in ("cpu", "cuda"):
        model = net()
        optimizer = sgd(model, momentum=0.0)
        pruner = pw.Pruner(model, optimizer, uncertainty=MOVED[estimator])
        for step in range(12):
            if step == move:
                model.to(device)
            one_step(model, optimizer, step)
        if move == 12:
            model.to(device)
        pruners.append(pruner)
    for name, sigma in pruners[0].sigma().items():
        torch.testing.assert_close(pruners[1].sigma()[name].cpu(), sigma, rtol=1e-3, atol=1e-6)
    pruners[1].prune(0.8)
    one_step(pruners[1].model, pruners[1].optimizers[0], 12)
    assert zeros_hold(pruners[1].model, pruners[1])


def test_the_optimizer_may_have_stayed_behind():
    """Second moments are read where they are."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    one_step(model, optimizer, 0)
    model.to("cuda")
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.8)
    assert zeros_hold(model, pruner)


def scaled_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, step: int, overflow: bool) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, step) * (torch.inf if overflow else 1.0)).backward()
    with nothing_waits():
        scaler.step(optimizer)
    scaler.update()


def scaled_run(bad: set[int], optimizer_name: str, uncertainty: Any) -> tuple[nn.Module, pw.Pruner]:
    """Twelve good steps, with overflows before some of them."""
    model = net().to("cuda")
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01, fused=True)
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty)
    scaler = GradScaler("cuda", init_scale=1024.0)
    scaled_step(model, optimizer, scaler, 0, overflow=True)  # the optimizer sets up its state, which may wait
    for step in range(12):
        if step in bad:
            scaled_step(model, optimizer, scaler, step, overflow=True)
        scaled_step(model, optimizer, scaler, step, overflow=False)
    return model, pruner


@each_estimator
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("bad", [{0}, {3}, {7}, {11}], ids=str)
def test_a_skipped_fused_step_leaves_no_trace_and_nothing_waits(name, bad, estimator):
    model, pruner = scaled_run(bad, name, ESTIMATORS[estimator])
    plain, expected = scaled_run(set(), name, ESTIMATORS[estimator])
    assert same(model.state_dict(), plain.state_dict())
    if estimator != "rolling":  # whose blocks end elsewhere
        for key, sigma in expected.sigma().items():
            torch.testing.assert_close(pruner.sigma()[key], sigma, rtol=1e-5, atol=1e-9)
    pruner.prune(0.8)
    one_step(model, pruner.optimizers[0], 12)
    assert zeros_hold(model, pruner)


@each_estimator
def test_watching_an_ordinary_step_waits_for_nothing(estimator):
    model = net().to("cuda")
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, uncertainty=ESTIMATORS[estimator])
    for step in range(12):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with nothing_waits():
            optimizer.step()
    pruner.prune(0.8)
    optimizer.zero_grad()
    loss = loss_of(model, 12)
    with nothing_waits():
        loss.backward()
        optimizer.step()
    assert zeros_hold(model, pruner)


@each_estimator
def test_sigma_is_that_of_the_cpu(estimator):
    """The same weights on both sides, set step by step."""
    sigmas = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Linear(300, 200, bias=False)
        path = model.weight.detach() + 1e-3 * torch.randn(12, 200, 300).cumsum(0)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        pruner = pw.Pruner(model, optimizer, uncertainty=ESTIMATORS[estimator])
        for weights in path.to(device):
            model.weight.data.copy_(weights)
            model.weight.grad = weights.clone()
            optimizer.step()
        sigmas[device] = pruner.sigma()["weight"].cpu()
    torch.testing.assert_close(sigmas["cuda"], sigmas["cpu"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("criterion", ["magnitude", "wald", "random"])
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
def test_masks_are_those_of_the_cpu(scope, criterion, coarse):
    masks = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(700, 300), nn.Linear(300, 50))
        sigma = {name: torch.rand(p.shape) for name, p in model.named_parameters() if p.dim() == 2}
        if coarse:
            for tensor in [*model.parameters(), *sigma.values()]:
                tensor.data.mul_(64).round_().div_(64)
        model.to(device)
        pruner = pw.Pruner(model, sgd(model), criterion=criterion, uncertainty=sigma, scope=scope)
        pruner.prune(0.5)
        pruner.prune(0.9)
        masks[device] = {name: mask.cpu() for name, mask in pruner.masks.items()}
    assert same(masks["cuda"], masks["cpu"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"fused": True, "momentum": 0.9, "weight_decay": 0.01}),
        ("AdamW", {"fused": True}),
        ("Adam", {"foreach": True}),
        ("Adam", {"capturable": True}),
        ("RMSprop", {"momentum": 0.9}),
    ],
    ids=str,
)
def test_zeros_hold(name, options):
    model = net().to("cuda")
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    train(model, optimizer, 3)
    pruner.prune(0.8)
    before = model[0].weight.detach().clone()
    for step in range(3, 6):
        one_step(model, optimizer, step)
        assert zeros_hold(model, pruner)
    assert not torch.equal(model[0].weight, before)


def test_zeros_hold_in_the_flat_weights_of_cudnn():
    torch.manual_seed(0)
    model = nn.LSTM(6, 8, num_layers=2).to("cuda")
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(5, 2, 6, device="cuda"))[0].square().sum().backward()
        optimizer.step()
        assert zeros_hold(model, pruner)


def saved(state: Any, device: str) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=True)


@each_moved
@pytest.mark.parametrize("through", ["cpu", "cuda"])
def test_going_on_is_exact(estimator, through):
    """Also where the checkpoint was loaded to the CPU."""

    def run(stop: int | None) -> dict[str, Tensor]:
        model, optimizer, pruner = fresh(0)
        for step in range(12):
            if step == stop:
                states = [saved(part.state_dict(), through) for part in (model, optimizer, pruner)]
                model, optimizer, pruner = fresh(1)
                parts: tuple[Any, ...] = (model, optimizer, pruner)
                for part, state in zip(parts, states, strict=True):
                    part.load_state_dict(state)
            one_step(model, optimizer, step)
        sigma = pruner.sigma()
        pruner.prune(0.8)
        one_step(model, optimizer, 12)
        return {**model.state_dict(), **{f"sigma {name}": s for name, s in sigma.items()}}

    def fresh(seed: int) -> tuple[nn.Module, Optimizer, pw.Pruner]:
        model = net(seed).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        return model, optimizer, pw.Pruner(model, optimizer, uncertainty=MOVED[estimator])

    expected = run(None)
    for stop in (2, 3, 8):
        assert same(run(stop), expected), stop


def captured(first: float | None) -> tuple[nn.Sequential, pw.Pruner, torch.cuda.CUDAGraph]:
    """A model, its Pruner and a graph of its training step, captured after a first pruning or before any."""
    model = net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
    pruner = pw.Pruner(model, optimizer)
    x, y = (t.cuda() for t in (torch.randn(16, 6), torch.randn(16, 4)))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (model(x) - y).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
        if first is not None:
            pruner.prune(first)
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return model, pruner, graph


def test_a_graph_that_was_captured_before_the_first_pruning_is_told_of():
    _, pruner, _ = captured(first=None)
    with pytest.warns(UserWarning, match="captured in a CUDA graph before this pruning.*anew"):
        pruner.prune(0.5)


def test_a_graph_that_was_captured_before_a_reset_is_told_of():
    _, pruner, _ = captured(first=0.5)
    with pytest.warns(UserWarning, match=r"captured in a CUDA graph before its masks were dropped.*anew"):
        pruner.reset()


def test_a_captured_graph_holds_the_zeros_of_later_prunings():
    """Captured after the first pruning: the masks are written in place, so that a replay reads the present ones."""
    model, pruner, graph = captured(first=0.5)
    before = model[0].weight.detach().clone()
    graph.replay()
    assert not torch.equal(before, model[0].weight)
    assert zeros_hold(model, pruner)
    pruner.prune(0.8)
    assert pruner.sparsity == pytest.approx(0.8, abs=0.02)
    for _ in range(3):
        graph.replay()
    assert zeros_hold(model, pruner)
