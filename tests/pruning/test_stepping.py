"""The order of things around a step: holdings make ready, the step, the Pruner, holdings settle."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from prunewald.pruning.stepping import Stepping
from tests.pruning.helpers import Recording


def stepping(count: int = 1) -> tuple[list[str], list[SGD], Stepping, Recording]:
    """Optimizers of a parameter each, whose steps and what comes after are recorded."""
    holding = Recording()
    optimizers = []
    for _ in range(count):
        param = nn.Parameter(torch.ones(2))
        param.grad = torch.ones(2)
        optimizers.append(SGD([param], lr=0.1))

    def after(at: int, optimizer: Any) -> None:
        assert optimizer is optimizers[at]
        holding.note("after", str(at))

    made = Stepping(optimizers, [[f"p{at}"] for at in range(count)], after)
    return holding.events, optimizers, made, holding


def hooks(optimizer: SGD) -> tuple[int, int]:
    return len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)


def test_only_a_holding_needs_anything_before_a_step():
    events, (optimizer,), stepping_, holding = stepping()
    optimizer.step()
    assert events == ["after 0"]
    assert hooks(optimizer) == (0, 1)
    stepping_.add(holding)
    stepping_.add(Recording())
    assert hooks(optimizer) == (1, 1)


def test_each_optimizer_is_for_its_own_parameters():
    _, optimizers, stepping_, holding = stepping(2)
    stepping_.add(holding)
    optimizers[1].step()
    assert holding.taken() == ["ready p1", "after 1", "settle p1"]
    optimizers[0].step()
    assert holding.taken() == ["ready p0", "after 0", "settle p0"]


@pytest.mark.parametrize("named", [False, True])
def test_a_closure_sees_settled_weights_and_leaves_them_ready(named):
    _, (optimizer,), stepping_, holding = stepping()
    stepping_.add(holding)

    def closure() -> float:
        holding.note("closure")
        return 2.5

    assert (optimizer.step(closure=closure) if named else optimizer.step(closure)) == 2.5
    assert holding.taken() == ["settle p0", "closure", "ready p0", "after 0", "settle p0"]


def test_an_error_in_a_closure_leaves_the_weights_settled():
    _, (optimizer,), stepping_, holding = stepping()
    stepping_.add(holding)

    def closure() -> float:
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(closure)
    assert holding.taken() == ["settle p0"]


def test_an_error_in_what_comes_after_a_step_leaves_the_weights_settled():
    def after(at: int, optimizer: Any) -> None:
        raise ValueError("not finite")

    optimizer, holding = SGD([nn.Parameter(torch.ones(2))], lr=0.1), Recording()
    Stepping([optimizer], [["p"]], after).add(holding)
    with pytest.raises(ValueError, match="not finite"):
        optimizer.step()
    assert holding.taken() == ["ready p", "settle p"]


def test_the_last_to_go_takes_the_hook_before_the_step_along():
    _, (optimizer,), stepping_, holding = stepping()
    other = Recording()
    stepping_.add(holding)
    stepping_.add(other)
    stepping_.drop(holding)
    assert (holding.taken(), other.taken()) == (["end"], [])
    assert hooks(optimizer) == (1, 1)
    stepping_.drop(other)
    assert hooks(optimizer) == (0, 1)
    stepping_.add(holding)
    optimizer.step()
    assert holding.taken() == ["ready p0", "after 0", "settle p0"]


def test_release_ends_everything():
    events, (optimizer,), stepping_, holding = stepping()
    stepping_.add(holding)
    stepping_.release()
    optimizer.step()
    assert events == ["end"]
    assert hooks(optimizer) == (0, 0)
    assert stepping_.holdings == []
