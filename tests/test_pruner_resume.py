"""Save at any step, load into fresh objects, go on: bit for bit what the uninterrupted run gives."""

import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prunewald.pruning.resuming import unpacked
from tests.resuming import EVENTS, RECIPES, Run, same
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")

# At the start; before, at the start of, inside and at the end of the window; the same after the first pruning; near
# the end of the second window, after the second pruning, at the end.
MOMENTS = [0, 3, 6, 7, 9, 12, 13, 16, 20, 24, 25, 26, 29]

each_recipe = pytest.mark.parametrize("recipe", RECIPES)


@cache
def uninterrupted(recipe: str) -> dict[str, Any]:
    return Run(recipe).go().state()


@each_recipe
@pytest.mark.parametrize("moment", MOMENTS)
def test_going_on_is_exact(recipe, moment, tmp_path):
    Run(recipe).go(moment).save(tmp_path / "checkpoint")
    resumed = Run(recipe, seed=1).load(tmp_path / "checkpoint").go().state()
    for part, expected in uninterrupted(recipe).items():
        assert same(resumed[part], expected), part


@each_recipe
def test_the_run_that_is_resumed_does_what_it_should(recipe):
    """Guards the test above: two prunings took place, with a sigma that is not all the same."""
    state = uninterrupted(recipe)
    for name, mask in unpacked(state["pruner"]["masks"]).items():
        assert 0.6 < 1 - mask.float().mean() < 0.95
        assert not minus_zero_or_worse(state["model"][name], ~mask)
    assert state["done"] == EVENTS
    assert all(sigma.unique().numel() > 10 for sigmas in state["sigmas"].values() for sigma in sigmas.values())
    assert len(state["sigmas"]) == (0 if recipe in ("default", "magnitude") else 2)


@each_recipe
def test_saving_every_few_steps_changes_nothing(recipe, tmp_path):
    run = Run(recipe)
    for moment in range(0, EVENTS, 5):
        run.go(moment).save(tmp_path / "checkpoint")
        run = Run(recipe, seed=moment).load(tmp_path / "checkpoint")
    assert same(run.go().state(), uninterrupted(recipe))


@pytest.mark.slow
def test_going_on_in_a_new_process_is_exact(tmp_path):
    Run("rolling").go(20).save(tmp_path / "checkpoint")  # after a pruning, inside the next window
    command = [sys.executable, "-m", "tests.resuming", "rolling", tmp_path / "checkpoint", tmp_path / "outcome"]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
    assert same(torch.load(tmp_path / "outcome", weights_only=True), uninterrupted("rolling"))


@each_recipe
def test_the_order_of_loading_does_not_matter(recipe, tmp_path):
    Run(recipe).go(16).save(tmp_path / "checkpoint")
    state = torch.load(tmp_path / "checkpoint", weights_only=True)
    run = Run(recipe, seed=1)
    run.pruner.load_state_dict(state["pruner"])
    run.load(tmp_path / "checkpoint", pruner=False)
    assert same(run.go().state(), uninterrupted(recipe))


@each_recipe
@pytest.mark.parametrize("moment", [0, 9, 16])
def test_the_state_is_tensors_and_plain_numbers(recipe, moment):
    assert set(map(type, leaves(Run(recipe).go(moment).pruner.state_dict()))) <= {Tensor, int, float}


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        assert set(map(type, state)) <= {str}
        return [leaf for value in state.values() for leaf in leaves(value)]
    return [leaf for value in state for leaf in leaves(value)] if isinstance(state, list | tuple) else [state]


@each_recipe
def test_a_loaded_state_is_not_touched_by_training_on(recipe):
    state = deepcopy(Run(recipe).go(9).pruner.state_dict())
    before = deepcopy(state)
    run = Run(recipe)
    run.pruner.load_state_dict(state)
    run.done = 9
    run.go()
    assert same(state, before)


def test_loading_holds_the_zeros_at_once():
    state = Run("magnitude").go(13).pruner.state_dict()
    run = Run("magnitude", seed=1)
    run.pruner.load_state_dict(state)
    for name, mask in unpacked(state["masks"]).items():
        assert not minus_zero_or_worse(run.model.get_parameter(name), ~mask)
    run.step(13)
    for name, mask in unpacked(state["masks"]).items():
        assert not minus_zero_or_worse(run.model.get_parameter(name), ~mask)


def test_loading_an_unpruned_state_lets_go():
    """Going back to before a pruning: the zeros may move again."""
    run = Run("magnitude").go(3)
    state = deepcopy(run.pruner.state_dict())
    run.go(13)
    dead = ~run.pruner.masks["0.weight"]
    run.pruner.load_state_dict(state)
    run.step(13)
    assert minus_zero_or_worse(run.model[0].weight, dead)
    assert all(mask.all() for mask in run.pruner.masks.values())
