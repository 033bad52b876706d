"""What criteria need that no optimizer keeps: gathered while networks train, or by a pass over images afterwards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import prunewald as pw
from prunewald.baselines import PLATON, Movement
from prunewald.core.base import Estimate, Online, State, Statistic, Weights
from prunewald.core.kth import lower_median
from prunewald.core.weights import Weight, living_sigma
from prunewald.lab.methods import MEASURED, targets_of
from prunewald.uncertainty import FisherDiagonal

Batches = Iterable[tuple[Tensor, Tensor]]
_STATISTICS: dict[str, Statistic] = {"movement": Movement().statistic, "platon": PLATON().statistic}


@dataclass(frozen=True)
class Gathered(Online):
    """The running statistic of a criterion over the last `last` of `total_steps` steps, of many networks at once.

    An ensemble collects estimates of sigma; here the place of sigma has the statistic, which is the score itself.
    """

    what: str  # one of WATCHED
    last: int
    total_steps: int

    def init(self, weights: Weights) -> State:
        """No step yet."""
        return {"steps": 0, "own": {}}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Take in one step, if it is one of the last."""
        state["steps"] = int(state["steps"]) + 1
        seen = state["steps"] - (self.total_steps - self.last)
        if seen == 0:
            state["own"] = _STATISTICS[self.what].init(weights)
        elif seen > 0:
            _STATISTICS[self.what].update_(state["own"], weights, optimizer)

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The statistic of one parameter."""
        found = _STATISTICS[self.what].value(state["own"], weight.name)
        assert found is not None, "a training has more steps than the window"
        return Estimate(found, None)

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The statistic is made weight by weight, so that replicas are only one more dimension."""
        return self.sigma(state, weight, optimizer)


def measured(
    what: str, model: nn.Module, batches: Batches, prune: str, masks: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The scores, or for "fisher" the sigmas, that a pass over the batches gives at a trained network.

    The network is in eval mode: no dropout, and BatchNorm as it is.
    """
    model.eval()
    if what == "fisher":
        return _fisher(model, batches, prune, masks)
    assert what in MEASURED
    with pw.Pruner(model, criterion=what, **targets_of(prune)) as pruner:
        for x, y in batches:
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call, unused-ignore]
            pruner.apply_()
        return {name: scores.cpu() for name, scores in pruner.scores().items()}


def _fisher(model: nn.Module, batches: Batches, prune: str, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Standard errors by the diagonal Fisher information, scaled as SecondMoment scales: their median is the spread."""
    errors = FisherDiagonal(labels="model").estimate(model, batches, F.cross_entropy)
    with pw.Pruner(model, criterion="magnitude", **targets_of(prune)) as pruner:
        weights = pruner.targets()
    found = {}
    for name, weight in weights.items():
        sigma, value = errors[name].float().cpu(), weight.detach().cpu()
        alive = torch.ones_like(value, dtype=torch.bool) if masks is None else masks[name].cpu()
        middle = lower_median(partial(living_sigma, sigma, None, alive))
        found[name] = sigma if middle is None else sigma * (float(value[alive].std()) / middle)
    return found
