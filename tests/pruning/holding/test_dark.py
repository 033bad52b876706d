"""Dark values: zero for the model, there for the optimizer, and never lost in between."""

import pytest
import torch

from prunewald.pruning.holding.dark import Dark
from prunewald.pruning.holding.zeros import Zeros

WEIGHT = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
MASK = torch.tensor([[True, False], [False, True]])
HELD = torch.tensor([[1.0, 0.0], [0.0, -4.0]])


@pytest.fixture
def held():
    """Two parameters with the same weights, of which half is pruned in the first, and settled."""
    params = {name: torch.nn.Parameter(WEIGHT.clone()) for name in ("a", "b")}
    zeros = Zeros(params)
    dark = Dark(zeros)
    zeros.alive["a"] = MASK.clone()
    dark.settle_(["a", "b"])
    return params, zeros, dark


def test_the_model_sees_zeros_and_the_optimizer_the_values(held):
    params, _, dark = held
    assert torch.equal(params["a"], HELD)
    assert torch.equal(params["b"], WEIGHT)
    dark.ready_(["a", "b"])
    assert torch.equal(params["a"], WEIGHT)
    with torch.no_grad():
        params["a"] += 1
    dark.settle_(["a"])
    assert torch.equal(params["a"], torch.where(MASK, WEIGHT + 1, 0.0))
    dark.light_()
    assert torch.equal(params["a"], WEIGHT + 1)


def test_only_the_parameters_of_the_optimizer_come_to_light(held):
    params, _, dark = held
    dark.ready_(["b"])
    assert torch.equal(params["a"], HELD)


def test_settling_again_changes_nothing(held):
    params, _, dark = held
    before = dark.state_dict()
    dark.settle_(["a", "b"])
    assert torch.equal(params["a"], HELD)
    assert dark.state_dict()["a"] is before["a"]


def test_what_was_written_since_is_kept_where_alive_and_zeroed_where_pruned(held):
    params, _, dark = held
    with torch.no_grad():
        params["a"].fill_(7.0)
    dark.settle_(["a"])
    assert torch.equal(params["a"], torch.where(MASK, 7.0, 0.0))
    dark.light_()
    assert torch.equal(params["a"], torch.where(MASK, 7.0, WEIGHT))


def test_in_sight_is_for_a_while_and_in_other_storage(held):
    params, _, dark = held
    place = params["a"].data_ptr()
    with dark.in_sight():
        assert torch.equal(params["a"], WEIGHT)
        assert params["a"].data_ptr() != place
    assert torch.equal(params["a"], HELD)
    assert params["a"].data_ptr() == place


def test_other_masks_bring_back_dark_values(held):
    params, zeros, dark = held
    dark.remask_({"a": ~MASK, "b": MASK.clone()})
    dark.settle_([])
    assert torch.equal(params["a"], torch.where(MASK, 0.0, WEIGHT))
    assert torch.equal(params["b"], HELD)
    assert zeros.alive.keys() == {"a", "b"}


def test_gradients_are_masked_from_the_end_on(held):
    params, zeros, dark = held
    params["a"].sum().backward()
    assert params["a"].grad.all()
    dark.end_()
    assert dark.state_dict() == {}
    assert torch.equal(params["a"], HELD)
    params["a"].grad = None
    params["a"].sum().backward()
    assert torch.equal(params["a"].grad, MASK.float())
    with torch.no_grad():
        params["a"] += 1
    zeros.settle_(["a"])
    assert torch.equal(params["a"], torch.where(MASK, WEIGHT + 1, 0.0))


def test_saved_values_are_copied(held):
    params, _, dark = held
    state = {"a": torch.full((2, 2), 9.0)}
    dark.load_state_dict(state)
    state["a"].zero_()
    dark.light_()
    assert torch.equal(params["a"], torch.where(MASK, WEIGHT, 9.0))


def test_pruned_weights_compete():
    assert Dark.competes
    assert not Zeros.competes
