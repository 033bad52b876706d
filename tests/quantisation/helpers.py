"""Literal transcriptions of trained quantisation, and a run of it that can be stopped after any step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

import prunewald as pw
from prunewald.quantisation import LinearValues, SharedValues
from tests.training import batch, closure_step, loss_of, minus_zero_or_worse, net, one_step

NAMES = ("0.weight", "2.weight")
# Powers of two: whether a product is fused with the sum after it makes no difference then.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 2**-5}),
    "momentum": ("SGD", {"lr": 2**-6, "momentum": 0.5}),
    "decay": ("SGD", {"lr": 2**-6, "momentum": 0.5, "weight_decay": 2**-7}),
    "adam": ("Adam", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 0.005, "momentum": 0.5}),
    "lbfgs": ("LBFGS", {"lr": 0.3, "max_iter": 3}),
    "wolfe": ("LBFGS", {"lr": 0.3, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
}
CLOSURES = ("lbfgs", "wolfe")


def make(name: str, params: Any) -> Optimizer:
    kind, options = OPTIMIZERS[name]
    made: Optimizer = getattr(torch.optim, kind)(list(params), **options)
    return made


def pruned(
    name: str = "sgd", sparsity: float = 0.5, steps: int = 0, model: Any = None, **options: Any
) -> tuple[Any, Optimizer, pw.Pruner]:
    """A model, its optimizer, and a Pruner that has pruned it."""
    model = net().double() if model is None else model
    optimizer = make(name, model.parameters())
    pruner = pw.Pruner(model, optimizer, **{"criterion": "magnitude", "scope": "layer", **options})
    for step in range(steps):
        (closure_step if name in CLOSURES else one_step)(model, optimizer, step)
    pruner.prune(sparsity)
    return model, optimizer, pruner


def gradients(model: nn.Module, values: Mapping[str, Tensor], step: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a model at other values of its parameters."""
    at = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    x, y = (data.double() for data in batch(step))
    loss = (functional_call(model, at, (x,)) - y).square().mean()
    return float(loss.detach()), dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))


class Han:
    """Codes fixed; weights are codebook[codes]; a step of the codebook by the sum of its members' gradients."""

    def __init__(self, name: str, model: nn.Module, shared: SharedValues, optimizer: Optimizer, reduce: str) -> None:
        self.model, self.reduce = model, reduce
        self.codes = shared.codes()
        self.codebooks = {n: values.clone().requires_grad_() for n, values in shared.codebooks().items()}
        self.biases = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if n not in NAMES}
        self.optimizers = [make(name, self.codebooks.values()), make(name, self.biases.values())]
        for bias, copy in self.biases.items():  # these go on as they were
            if state := optimizer.state.get(model.get_parameter(bias)):
                self.optimizers[1].state[copy] = {k: v.clone() if v is not None else v for k, v in state.items()}

    def weights(self) -> dict[str, Tensor]:
        found = {n: b.detach() for n, b in self.biases.items()}
        for n, codes in self.codes.items():
            found[n] = torch.where(codes >= 0, self.codebooks[n].detach()[codes.clamp(min=0)], 0.0)
        return found

    def step(self, number: int) -> None:
        _, grads = gradients(self.model, self.weights(), number)
        for n, codebook in self.codebooks.items():
            sums, counts = [0.0] * len(codebook), [0] * len(codebook)
            for code, grad in zip(self.codes[n].flatten().tolist(), grads[n].flatten().tolist(), strict=True):
                if code >= 0:
                    sums[code] += grad
                    counts[code] += 1
            if self.reduce == "mean":
                sums = [total / count for total, count in zip(sums, counts, strict=True)]
            codebook.grad = torch.tensor(sums, dtype=torch.float64)
        for n, bias in self.biases.items():
            bias.grad = grads[n]
        for optimizer in self.optimizers:
            optimizer.step()


class StraightThrough:
    """W in full; the gradient is taken at the rounded W, and the step is of W."""

    def __init__(self, name: str, model: nn.Module, full: Mapping[str, Tensor], linear: LinearValues) -> None:
        self.model, self.scales, self.masks = model, linear.scales(), linear.pruner.masks
        assert isinstance(linear.bits, int)
        self.top = 2 ** (linear.bits - 1) - 1
        self.W = {n: full.get(n, p).detach().clone().requires_grad_() for n, p in model.named_parameters()}
        self.optimizer = make(name, self.W.values())

    def seen(self) -> dict[str, Tensor]:
        found = {n: w.detach() for n, w in self.W.items()}
        for n in NAMES:
            whole = torch.tensor([round(w) for w in (found[n] / self.scales[n]).flatten().tolist()])
            whole = whole.clamp(-self.top, self.top).view(found[n].shape)
            found[n] = self.scales[n] * whole
        return found

    def step(self, number: int) -> None:
        def closure() -> float:
            loss, grads = gradients(self.model, self.seen(), number)
            for n, w in self.W.items():
                w.grad = grads[n] if n not in self.masks else torch.where(self.masks[n], grads[n], 0.0)
            return loss

        self.optimizer.step(closure)


def unseen_loss(model: nn.Module) -> float:
    """On batches that no test trains on."""
    with torch.no_grad():
        return float(sum(loss_of(model, step) for step in range(1000, 1010)))


def assert_tied(shared: SharedValues, size: int | Mapping[str, int]) -> None:
    """Every target takes the values of its codebook and zero, to the last bit."""
    codes, codebooks, targets = shared.codes(), shared.codebooks(), shared.pruner.targets()
    for name, part in shared.slices.items():
        weight, code, values = targets[name].detach(), codes[name], codebooks[name]
        alive = part.take(shared.pruner.masks[part.param])
        assert torch.equal(code >= 0, alive)
        assert len(values) <= (size if isinstance(size, int) else size[name])
        assert torch.equal(weight[alive], values[code[alive]])
        assert not minus_zero_or_worse(weight, ~alive)


def assert_linear(linear: LinearValues, bits: int) -> None:
    """Every target is whole numbers of that many bits times its scale."""
    codes, scales, targets = linear.codes(), linear.scales(), linear.pruner.targets()
    for name, part in linear.slices.items():
        weight, alive = targets[name].detach(), part.take(linear.pruner.masks[part.param])
        assert codes[name].dtype == torch.int8
        assert int(codes[name].abs().max()) < 2 ** (bits - 1)
        scale = scales[name].double() if weight.dtype == torch.float64 else scales[name]
        assert torch.equal(weight, (codes[name] * scale).to(weight.dtype))
        assert not minus_zero_or_worse(weight, ~alive)
        assert not minus_zero_or_worse(weight, codes[name] == 0)


Make = Callable[[pw.Pruner], SharedValues | LinearValues]
KINDS: dict[str, Make] = {
    "shared": lambda pruner: SharedValues(pruner, 4),
    "shared-mean": lambda pruner: SharedValues(pruner, {"0": 5}, reduce="mean"),
    "linear": lambda pruner: LinearValues(pruner, 3),
    "linear-row": lambda pruner: LinearValues(pruner, {"2.*": 4}, per="row"),
}
