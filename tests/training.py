"""A small training loop whose batches come from the step number, and every optimizer of the running torch."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

import prunewald as pw

# Online estimators that a few steps are enough for, by their registered names.
SMALL: dict[str, Any] = {"pseudo-bootstrap": pw.PseudoBootstrap(last=4), "batch-means": pw.BatchMeans(length=3)}

Step = Callable[[nn.Module, Optimizer, int], None]


def net(seed: int = 0) -> nn.Sequential:
    """Two matrices and no dead units."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The data of one step: the same in every run."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator)
    return x, torch.tanh(x[:, :4] - 0.5 * x[:, 2:])


def loss_of(model: nn.Module, step: int) -> Tensor:
    """The loss on the batch of one step, in the type and on the device of the model."""
    like = next(model.parameters())
    x, y = batch(step)
    return (model(x.to(like)) - y.to(like)).square().mean()  # type: ignore[no-any-return]


def one_step(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Everybody's training step."""
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()


def closure_step(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """The same as a closure, which LBFGS needs."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        return loss.item()

    optimizer.step(closure)


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    """The plainest optimizer, with steps large enough to see."""
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def fused(name: str, params: Iterable[Tensor], **options: Any) -> Optimizer:
    """A fused optimizer, or a skip where this torch has none for the CPU."""
    try:
        made: Optimizer = getattr(torch.optim, name)(list(params), fused=True, **options)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")
    return made


def sparse_net() -> nn.Sequential:
    """A lookup table with sparse gradients in front of a fixed sum."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(12, 4).requires_grad_(False))


def sparse_step(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Rows 0 to 18 are looked up now and then, row 19 never."""
    generator = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    rows = torch.randint(19, (8, 2), generator=generator)
    mse_loss(model(rows), torch.ones(8, 4)).backward()
    optimizer.step()


class Case(NamedTuple):
    """One optimizer with its options, and how to train by it."""

    kind: type[Optimizer]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kind.__name__

    def model(self) -> nn.Sequential:
        return sparse_net() if self.name == "SparseAdam" else net()

    def optimizer(self, model: nn.Module) -> Optimizer:
        flat = () if self.name == "Muon" else (1,)
        params = [p for p in model.parameters() if p.requires_grad and p.dim() in (*flat, 2)]
        kind: Any = self.kind
        return kind(params, **{"lr": 0.01, **self.options})  # type: ignore[no-any-return]

    def step(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        {"SparseAdam": sparse_step, "LBFGS": closure_step}.get(self.name, one_step)(model, optimizer, step)

    def targets(self) -> str:
        return "0" if self.name == "SparseAdam" else "*"


_VARIANTS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "centered": True},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"amsgrad": True},
    {"maximize": True},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"fused": True, "weight_decay": 0.1, "momentum": 0.9},
    {"fused": True, "weight_decay": 0.1, "amsgrad": True},
    {"initial_accumulator_value": 0.1},
    {"t0": 2.0},
    {"max_iter": 4, "history_size": 3},
    {"max_iter": 4, "line_search_fn": "strong_wolfe"},
]


def _fits(kind: type[Optimizer], options: dict[str, Any]) -> bool:
    if not options.keys() <= inspect.signature(kind).parameters.keys():
        return False
    try:
        Case(kind, options).optimizer(Case(kind, options).model())
    except RuntimeError:  # fused=True where the CPU has none
        assert "fused" in options
        return False
    return True


def cases() -> Iterator[Any]:
    """Every optimizer class of the running torch with every variant it takes, as pytest parameters."""
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer:
            for options in _VARIANTS:
                if _fits(kind, options):
                    yield pytest.param(Case(kind, options), id="-".join([name, *map(_spell, options.items())]))


def _spell(option: tuple[str, Any]) -> str:
    return option[0] if option[1] is True else f"{option[0]}={option[1]}"


def minus_zero_or_worse(weight: Tensor, dead: Tensor) -> bool:
    """Whether a dead weight is anything but +0.0."""
    values = weight.detach()[dead]
    return bool((values != 0).any() or values.signbit().any())


def hooks_on(model: nn.Module, *optimizers: Optimizer) -> int:
    """How many hooks a Pruner left on parameters and optimizers."""
    on_params = [getattr(p, "_post_accumulate_grad_hooks", None) or {} for p in model.parameters()]
    on_steps = [o._optimizer_step_post_hooks for o in optimizers]
    return sum(map(len, on_params)) + sum(map(len, on_steps))


def wide(seed: int = 0) -> nn.Sequential:
    """Three matrices, of 120, 400 and 80 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4))


def train(model: nn.Module, optimizer: Optimizer, steps: int, *, first: int = 0) -> None:
    """Everybody's training loop, on the batches of so many steps from the first on."""
    for step in range(first, first + steps):
        one_step(model, optimizer, step)


def assert_zeros(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Every mask prunes something, and all that is pruned is +0.0."""
    for name, mask in masks.items():
        assert not mask.all()
        assert not minus_zero_or_worse(model.get_parameter(name), ~mask), name


def zeros_hold(model: nn.Module, pruner: pw.Pruner) -> bool:
    """Whether all that a Pruner has pruned is +0.0 in a model."""
    return not any(minus_zero_or_worse(model.get_parameter(name), ~mask) for name, mask in pruner.masks.items())


def trained_pruner(optimizer: Any = torch.optim.Adam, steps: int = 30, **choice: Any) -> pw.Pruner:
    """A Pruner on the model with three matrices, after some steps."""
    model = wide()
    made = optimizer(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, made, **choice)
    train(model, made, steps)
    return pruner
