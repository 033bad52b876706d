"""A literal transcription of Guo et al. (2016), and a surgery in the middle of a training."""

import io
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

import prunewald as pw
from tests.training import batch, loss_of, minus_zero_or_worse, net, sgd, train

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.02}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5}),
}
LEVELS: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.15},
    "thresholds": {"threshold": {"0.weight": 0.2, "2": 0.1}},
    "one-threshold": {"threshold": {"0.weight": 0.2}},
    "sparsity": {"sparsity": 0.6},
    "sparsities": {"sparsity": {"0.*": 0.7, "2.weight": 0.4}},
    "global": {"sparsity": 0.6, "scope": "global"},
    "row": {"sparsity": 0.5, "scope": "row"},
}
NAMES = ("0.weight", "2.weight")


def make(name: str, params: Any) -> Optimizer:
    kind, options = OPTIMIZERS[name]
    made: Optimizer = getattr(torch.optim, kind)(list(params), **options)
    return made


class Guo:
    """Algorithm 1, line by line: W in full, T its mask; the gradient is taken at W ∘ T, and the update is of all W."""

    def __init__(
        self, name: str, levels: dict[str, Any], gamma: float = 0.0, power: float = 1.0, seed: int = 0
    ) -> None:
        self.net = net().double()
        self.W = {n: p.detach().clone().requires_grad_() for n, p in self.net.named_parameters()}
        self.T = {n: torch.ones_like(p, dtype=torch.bool) for n, p in self.W.items()}
        self.optimizer = make(name, self.W.values())
        self.levels, self.gamma, self.power, self.seed, self.iterations = levels, gamma, power, seed, 0
        self.pruned = self.spliced = 0

    def seen(self) -> dict[str, Tensor]:
        return {n: torch.where(self.T[n], w.detach(), 0.0) for n, w in self.W.items()}

    def step(self, number: int) -> None:
        def closure() -> float:
            at = {n: w.requires_grad_() for n, w in self.seen().items()}
            x, y = (data.double() for data in batch(number))
            loss = (functional_call(self.net, at, (x,)) - y).square().mean()
            for n, gradient in zip(at, torch.autograd.grad(loss, list(at.values())), strict=True):
                self.W[n].grad = gradient
            return float(loss.detach())

        self.optimizer.step(closure)
        self.iterations += 1
        sigma = (1 + self.gamma * self.iterations) ** -self.power
        if Random(f"{self.seed} {self.iterations}").random() < sigma:
            self.operate()

    def operate(self) -> None:
        before = {n: t.clone() for n, t in self.T.items()}
        for n, limits in self.limits().items():
            rows = self.T[n].tolist()
            for i, row in enumerate(self.W[n].tolist()):
                a, b = limits[i] - 0.1 * limits[i], limits[i] + 0.1 * limits[i]
                for j, w in enumerate(row):
                    if abs(w) < a:
                        rows[i][j] = False
                    elif abs(w) >= b:
                        rows[i][j] = True
            self.T[n] = torch.tensor(rows)
        self.pruned += sum(int((before[n] & ~t).sum()) for n, t in self.T.items())
        self.spliced += sum(int((~before[n] & t).sum()) for n, t in self.T.items())

    def limits(self) -> dict[str, list[float]]:
        """The middle of both thresholds, for each row."""
        given = self.levels.get("sparsity", self.levels.get("threshold"))
        if not isinstance(given, dict):
            given = {"0": given, "2": given}
        sizes = {n: self.W[n].detach().abs().tolist() for n in NAMES}
        pool = sorted(w for n in NAMES for row in sizes[n] for w in row)
        found = {}
        for key, share in given.items():
            name = f"{key[0]}.weight"
            flat = sorted(w for row in sizes[name] for w in row)
            if "threshold" in self.levels:
                found[name] = [share for _ in sizes[name]]
            elif self.levels.get("scope") == "row":
                found[name] = [sorted(row)[round(share * len(row))] for row in sizes[name]]
            elif self.levels.get("scope") == "global":
                found[name] = [min(w for w in flat if w >= pool[round(share * len(pool))])] * len(sizes[name])
            else:
                found[name] = [flat[round(share * len(flat))]] * len(sizes[name])
        return found


def seeing(surgery: pw.Surgery, step: int, evaluations: list[int]) -> Callable[[], float]:
    """A closure that looks at the weights it is evaluated with."""

    def closure() -> float:
        for name, mask in surgery.masks.items():
            assert not minus_zero_or_worse(surgery.model.get_parameter(name), ~mask)
        evaluations.append(step)
        surgery.model.zero_grad()
        loss = loss_of(surgery.model, step)
        loss.backward()
        return loss.item()

    return closure


def running(
    steps: int = 12, optimizer: Callable[[nn.Module], Any] = sgd, seed: int = 0, **options: Any
) -> tuple[Any, Any, pw.Surgery]:
    model = net(seed)
    made = optimizer(model)
    surgery = pw.Surgery(
        model, made, **{"sparsity": 0.6, "criterion": "magnitude", "scope": "layer", "gamma": 0.0, **options}
    )
    train(model, made, steps)
    return model, made, surgery


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def full(surgery: pw.Surgery) -> dict[str, Tensor]:
    """All weights with the dark ones in their places."""
    dark = surgery.state_dict()["dark"][0]
    return {n: torch.where(m, surgery.model.get_parameter(n).detach(), dark[n]) for n, m in surgery.masks.items()}


def gradients(model: Any) -> dict[str, Any]:
    return {name: model.get_parameter(name).grad for name in NAMES}


def stored(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def on_cpu(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location="cpu")
