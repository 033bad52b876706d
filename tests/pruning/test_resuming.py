"""A state that does not fit is an error that names what does not fit, and changes nothing."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.pruning.resuming import packed, unpacked
from tests.resuming import Run, same

pytestmark = pytest.mark.usefixtures("one_thread")


def good() -> dict[str, Any]:
    """A state from inside a window after a pruning."""
    return deepcopy(Run("rolling", seed=1).go(20).pruner.state_dict())


def refused(state: Any, recipe: str = "rolling") -> str:
    """The message; after a check that pruner, model and optimizer are as they were, and train on as they would."""
    run, twin = Run(recipe).go(16), Run(recipe).go(16)
    with pytest.raises(ValueError, match="state|mask") as caught:
        run.pruner.load_state_dict(state)
    assert same(run.state(), twin.state())
    assert same(run.go().state(), twin.go().state())
    return str(caught.value)


def pruner_of(model: nn.Module, **options: Any) -> pw.Pruner:
    return pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_the_good_state_is_taken():
    """Guards the tests below."""
    run = Run("rolling").go(16)
    run.pruner.load_state_dict(good())
    assert same(run.pruner.state_dict(), good())


def test_other_parameters_are_named():
    other = nn.ModuleDict({"first": nn.Linear(6, 8), "last": nn.Linear(8, 4)})
    message = refused(pruner_of(other, uncertainty=pw.PseudoBootstrap(last=10)).state_dict())
    for name in ("0.weight", "2.weight", "first.weight", "last.weight"):
        assert repr(name) in message


def test_fewer_parameters_are_named():
    state = good()
    del state["masks"]["2.weight"]
    assert "'2.weight'" in refused(state)


def test_another_shape_is_named():
    other = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    message = refused(pruner_of(other, uncertainty=pw.PseudoBootstrap(last=10)).state_dict())
    assert "'0.weight'" in message
    assert "(9, 6)" in message
    assert "(8, 6)" in message


@pytest.mark.parametrize(
    ("saved", "loading"),
    [
        ("second-moment-sgd", "rolling"),
        ("rolling", "second-moment-sgd"),
        ("magnitude", "rolling"),
        ("rolling", "magnitude"),
        ("two-optimizers", "rolling"),
        ("rolling", "two-optimizers"),
    ],
)
def test_another_estimator_or_number_of_optimizers(saved, loading):
    message = refused(Run(saved, seed=1).go(20).pruner.state_dict(), loading)
    assert "uncertainty" in message
    assert "optimizers" in message


def test_optimizers_in_another_order():
    state = good_of_two()
    state["states"] = state["states"][::-1]
    assert "optimizers" in refused(state, "two-optimizers")


def good_of_two() -> dict[str, Any]:
    return deepcopy(Run("two-optimizers", seed=1).go(20).pruner.state_dict())


GARBAGE: dict[str, Any] = {
    "nothing": {},
    "None": None,
    "a list": [1, 2],
    "a tensor": torch.ones(3),
    "a model's state": {"0.weight": torch.ones(8, 6)},
    "numbers": {"masks": 3, "states": 4},
    "no masks": {"masks": None, "states": []},
    "states of numbers": {
        "masks": {"0.weight": torch.ones(8, 6).bool(), "2.weight": torch.ones(4, 8).bool()},
        "states": [3],
    },
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(kind):
    assert refused(GARBAGE[kind])


@pytest.mark.parametrize("recipe", ["rolling", "default", "two-optimizers"])
def test_a_state_from_before_masks_were_packed_is_taken(recipe):
    state = Run(recipe, seed=1).go(20).pruner.state_dict()
    older = unpacked(state) | {"states": list(unpacked(state["states"]))}
    del older["history"]
    run = Run(recipe)
    run.pruner.load_state_dict(older)
    assert same(run.pruner.state_dict(), state)


@pytest.mark.parametrize("shape", [(3,), (8,), (5, 7), (2, 3, 3, 3), (1,), (0, 4), ()])
def test_a_mask_takes_a_bit_and_comes_back(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    saved = packed({"a": [mask, 3]})
    assert saved["a"][0]["bits"].shape == (-(-mask.numel() // 8),)
    assert same(unpacked(saved), {"a": [mask, 3]})


def test_bits_that_do_not_fit_their_shape_are_named():
    state = good()
    state["masks"]["0.weight"]["shape"] = [8, 7]
    message = refused(state)
    assert "(8, 7)" in message
    assert "7 bytes" in message


MASKS: dict[str, Any] = {
    "numbers": 3,
    "floats": torch.ones(8, 6),
    "integers": torch.ones(8, 6, dtype=torch.int64),
    "text": "yes",
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_that_is_none_is_named(kind):
    state = good()
    state["masks"]["0.weight"] = MASKS[kind]
    message = refused(state)
    assert "'0.weight'" in message
    assert "bool" in message


def blocks(state: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state["states"][0]["blocks"]
    return found


def wrong_shape(state: dict[str, Any]) -> None:
    blocks(state)[0]["m2"]["2.weight"] = torch.zeros(4, 9)


def foreign(state: dict[str, Any]) -> None:
    state["states"][0]["shift"]["other.weight"] = torch.zeros(4, 9)


def scalar(state: dict[str, Any]) -> None:
    blocks(state)[1]["mean"]["2.weight"] = torch.zeros(())


@pytest.mark.parametrize(
    ("spoil", "named"), [(wrong_shape, "'2.weight'"), (foreign, "'other.weight'"), (scalar, "'2.weight'")]
)
def test_an_estimator_state_that_does_not_fit_is_named(spoil, named):
    state = good()
    spoil(state)
    assert named in refused(state)
