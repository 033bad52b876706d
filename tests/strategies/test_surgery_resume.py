"""A surgery that is saved and loaded goes on to the last bit."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

import prunewald as pw
from tests.resuming import same
from tests.strategies.surgery_helpers import adam, running, stored
from tests.training import assert_zeros, closure_step, net, one_step, sgd, train

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]

RECIPES: dict[str, tuple[Callable[[Any], list[Optimizer]], dict[str, Any]]] = {
    "magnitude": (lambda m: [sgd(m)], {"criterion": "magnitude"}),
    "tau": (lambda m: [adam(m)], {"uncertainty": pw.PseudoBootstrap(last=5), "scope": "global"}),
    "movement": (lambda m: [sgd(m[0]), adam(m[2])], {"criterion": "movement", "threshold": 0.001, "sparsity": None}),
}
FINISH = 14


class Training:
    """A run that can be stopped after any step; the surgery ends after step 14."""

    def __init__(self, recipe: str, seed: int = 0) -> None:
        self.model: Any = net(seed)
        make_all, options = RECIPES[recipe]
        self.optimizers = make_all(self.model)
        self.surgery = pw.Surgery(self.model, self.optimizers, **{"sparsity": 0.6, "gamma": 0.1, **options})

    def go(self, first: int, last: int) -> "Training":
        for number in range(first, last):
            for optimizer in self.optimizers:
                closure_step(self.model, optimizer, number)
            if number == FINISH:
                self.surgery.prune(0.7)
        return self

    def parts(self) -> dict[str, Any]:
        named = {f"optimizer {at}": optimizer for at, optimizer in enumerate(self.optimizers)}
        return {"model": self.model, "surgery": self.surgery, **named}

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load(self, state: dict[str, Any], order: int = 1) -> "Training":
        for name, part in list(self.parts().items())[::order]:
            part.load_state_dict(state[name])
        return self


@cache
def uninterrupted(recipe: str) -> dict[str, Any]:
    return Training(recipe).go(0, 18).state()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("moment", [0, 5, 9, 14, 15])
@pytest.mark.parametrize("recipe", RECIPES)
def test_going_on_is_exact(recipe, moment, order):
    checkpoint = stored(Training(recipe).go(0, moment).state())
    resumed = Training(recipe, seed=1).load(checkpoint, order)
    if moment in (5, 9):
        assert_zeros(resumed.model, resumed.surgery.masks)
        assert checkpoint["surgery"]["dark"][0]
    assert same(resumed.go(moment, 18).state(), uninterrupted(recipe))


@pytest.mark.parametrize("recipe", RECIPES)
def test_going_back_is_exact(recipe):
    """From after the surgery to the middle of it: what was masked learns in the dark again."""
    run = Training(recipe).go(0, 9)
    checkpoint = stored(run.state())
    after = stored(run.go(9, 18).state())
    assert not run.surgery.active
    assert same(run.load(checkpoint).go(9, 18).state(), after)
    # And from the middle to the end.
    assert same(run.load(checkpoint).load(after).go(18, 20).state(), Training(recipe).go(0, 20).state())


def test_a_state_in_memory_is_not_emptied_by_training_on():
    model, optimizer, surgery = running()
    state = surgery.state_dict()
    before = copy.deepcopy(state)
    train(model, optimizer, 3, first=12)
    assert same(state, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("dark"), "Surgery.*dark"),
        (lambda s: s["dark"][0].update({"7.weight": torch.ones(2)}), r"'7.weight'.*\(2,\)"),
        (
            lambda s: s["dark"][0].update({"0.weight": torch.ones(6, 8)}),
            r"'0.weight'.*\(6, 8\)",
        ),
        (lambda s: s["masks"].pop("0.weight"), "'0.weight' has no mask"),
        (lambda s: s.pop("steps"), "Pruner.*'steps'"),
    ],
)
def test_a_state_of_something_else_is_refused_and_nothing_changes(change, message):
    state = stored(running(5, seed=1)[2].state_dict()) | {"active": False}
    change(state)
    model, optimizer, surgery = running()
    before = stored((model.state_dict(), surgery.state_dict()))
    with pytest.raises(ValueError, match=message):
        surgery.load_state_dict(state)
    assert same(stored((model.state_dict(), surgery.state_dict())), before)
    one_step(model, optimizer, 12)
    assert all(model.get_parameter(n).grad[~m].any() for n, m in surgery.masks.items())
