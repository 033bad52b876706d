"""What is gathered from step to step: by optimizer, anew after a pruning, and what is said where nothing is known."""

from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.base import Estimate, Online
from prunewald.core.weights import NotYet, Weight
from prunewald.model.optimizers import owned
from prunewald.pruning.watching import Reading, Watcher
from tests.training import loss_of, net, one_step, sgd

pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(Online):
    """Counts the steps of each parameter and, by a hook, the forward passes; sigma is the number of steps."""

    def init(self, weights):
        return {"steps": dict.fromkeys(weights, 0), "passes": 0}

    def update_(self, state, weights, optimizer):
        for name in weights:
            state["steps"][name] += 1

    def watch(self, model, names, state):
        def seen(*_: Any) -> None:
            state()["passes"] += 1

        return [model.register_forward_hook(seen)]

    def check(self, state, weights):
        if not any(state["steps"].values()):
            raise ValueError("no step yet")

    def sigma(self, state, weight, optimizer):
        return Estimate(torch.full_like(weight.param, state["steps"][weight.name]), None)


def watching(online: Any, statistic: Any = None) -> tuple[nn.Sequential, list[torch.optim.SGD], Watcher]:
    """Two optimizers, a layer each."""
    model = net()
    params = {name: p for name, p in model.named_parameters() if p.dim() == 2}
    optimizers = [sgd(model[0]), sgd(model[2])]
    return model, optimizers, Watcher(model, params, optimizers, owned(params, optimizers), online, statistic)


def sigmas(watcher: Watcher, online: Online, model: nn.Module) -> dict[str, float]:
    reading = watcher.read(online)
    weights = {name: Weight(name, model.get_parameter(name), None) for name in ("0.weight", "2.weight")}
    return {name: float(reading.sigma(weight).sigma[0, 0]) for name, weight in weights.items()}


def test_each_optimizer_has_a_state_of_its_own():
    online = Counting()
    model, optimizers, watcher = watching(online)
    for at in (0, 1, 1):
        watcher.update_(at, optimizers[at])
    assert sigmas(watcher, online, model) == {"0.weight": 1.0, "2.weight": 2.0}
    assert watcher.optimizers == {"0.weight": optimizers[0], "2.weight": optimizers[1]}


def test_hooks_feed_the_state_also_after_a_restart_and_go_with_the_watcher():
    model, _, watcher = watching(Counting())
    loss_of(model, 0)
    assert [state["passes"] for state in watcher.state_dict()["states"]] == [1, 1]
    watcher.restart()
    loss_of(model, 1)
    assert [state["passes"] for state in watcher.state_dict()["states"]] == [1, 1]
    watcher.release()
    assert not model._forward_hooks


def test_an_error_while_hooks_are_registered_leaves_none():
    class Choosy(Counting):
        def watch(self, model, names, state):
            if "2.weight" in names:
                raise KeyError("2.weight")
            return super().watch(model, names, state)

    with pytest.raises(KeyError):
        watching(Choosy())
    model = net()
    with pytest.raises(KeyError):
        pw.Pruner(model, sgd(model), uncertainty=Choosy())
    assert not model._forward_hooks


def test_what_cannot_be_told_yet_is_not_yet():
    online = Counting()
    _, _, watcher = watching(online)
    with pytest.raises(NotYet, match="no step yet"):
        watcher.read(online)


def test_an_estimator_that_did_not_watch_begins_with_nothing():
    watched, other = Counting(), Counting()
    model, optimizers, watcher = watching(watched)
    for at in (0, 1):
        watcher.update_(at, optimizers[at])
    assert sigmas(watcher, watched, model) == {"0.weight": 1.0, "2.weight": 1.0}
    with pytest.raises(NotYet, match="no step yet"):
        watcher.read(other)


def test_without_a_wish_for_sigma_none_is_asked():
    _, _, watcher = watching(Counting())
    reading = watcher.read(None)
    assert (reading.degrees(), reading.averages()) == (None, {})


def test_a_statistic_is_by_parameter_and_none_before_the_first_step():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="movement")
    assert pruner._watcher.read(None).statistics == {}
    one_step(model, optimizer, 0)
    assert {n: t.shape for n, t in pruner._watcher.read(None).statistics.items()} == {
        n: m.shape for n, m in pruner.masks.items()
    }


def test_the_fewest_degrees_and_the_averages_of_all_optimizers():
    online = pw.BatchMeans(length=2)
    model, optimizers, watcher = watching(online)
    for step in range(12):
        model.zero_grad()
        loss_of(model, step).backward()
        for at in (0, 1) if step < 8 else (0,):
            optimizers[at].step()
            watcher.update_(at, optimizers[at])
    with pytest.warns(UserWarning, match="batches only"):
        reading = watcher.read(online)
    assert reading.degrees() == 8 / 2 - 1
    assert reading.averages().keys() == {"0.weight", "2.weight"}


def test_a_tensor_without_any_gradient_is_an_error_until_something_of_it_is_pruned():
    weight = torch.ones(2, 2)

    class Dead(Counting):
        def sigma(self, state, weight, optimizer):
            return Estimate(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))

    reading = Reading(Dead(), {"fc.weight": {}}, {}, {})
    with pytest.raises(NotYet, match=r"'fc.weight'.*ignore='fc.weight'.*Magnitude\(\)"):
        reading.sigma(Weight("fc.weight", weight, None))
    assert reading.sigma(Weight("fc.weight", weight, torch.eye(2, dtype=torch.bool))).dead.all()
