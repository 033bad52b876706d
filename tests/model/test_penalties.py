"""What penalties add to a gradient can be taken from it, exactly."""

import pytest
import torch
from torch import nn
from torch.func import grad

from prunewald.companions import group_lasso, l1, l2
from prunewald.model import penalties
from prunewald.model.penalties import tracing, without_penalties


def data_gradients(weight, make_loss, passes=1):
    """What is left at a parameter in each backward pass, while other listeners are as autograd has them."""
    found = []
    hook = weight.register_hook(
        lambda g: None if tracing() else found.append(without_penalties(weight, g.detach().clone()))
    )
    for _ in range(passes):
        make_loss().backward()
    hook.remove()
    assert not penalties._notes
    return found


TERMS = {
    "l1": lambda w: 1e-3 * l1([w]),
    "l2": lambda w: 1e-5 * l2([w]),
    "group lasso": lambda w: 1e-2 * group_lasso([w], dim=1),
    "rows": lambda w: 1e-3 * l2(list(w)),
    "an index": lambda w: 1e-3 * l1([w[torch.tensor([0, 2])]]),
    "all": lambda w: 0.1 * l1([w]) + 1e-3 * l2([w]) + 0.37 * group_lasso([w]) + 1e-7 * l1([w.t()]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("term", TERMS)
def test_nothing_is_left_where_the_data_add_nothing(term, dtype):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 6, dtype=dtype))
    x = torch.randn(6, dtype=dtype)
    x[2:4] = 0
    for left in data_gradients(weight, lambda: (weight @ x).square().sum() + TERMS[term](weight), passes=2):
        assert torch.equal(left != 0, (x != 0).expand(5, -1))


def test_the_gradient_itself_is_as_without_the_note():
    weight = nn.Parameter(torch.randn(4, 3))
    (0.1 * l1([weight]) + l2([weight])).backward()
    torch.testing.assert_close(weight.grad, 0.1 * weight.detach().sign() + 2 * weight.detach())


def test_second_derivatives():
    weight = nn.Parameter(torch.randn(4, 3))
    (slope,) = torch.autograd.grad(l2([weight]) ** 2, weight, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), weight)
    w = weight.detach()
    torch.testing.assert_close(curve, 4 * w.square().sum() + 8 * w * w.sum())


def test_under_functional_transforms_they_are_plain():
    w = torch.randn(3, 4)
    torch.testing.assert_close(grad(lambda w: l2([w]))(w), 2 * w)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by torch.compile, on the way
def test_in_a_compiled_loss():
    weight = nn.Parameter(torch.randn(4, 3))
    x = torch.tensor([1.0, 0.0, 2.0])
    loss = torch.compile(lambda: (weight @ x).square().sum() + 0.1 * l2([weight]), backend="aot_eager")
    (left,) = data_gradients(weight, loss)
    assert torch.equal(left != 0, (x != 0).expand(4, -1))


def test_a_backward_pass_that_fails_leaves_little_behind():
    weight = nn.Parameter(torch.randn(2, 2))

    def fail(_):
        raise RuntimeError("stop")

    for _ in range(20):
        free = weight * 1.0
        free.register_hook(fail)
        with pytest.raises(RuntimeError, match="stop"):
            (free.sum() + l2([weight])).backward()
    assert len(penalties._notes) <= 8
    penalties._notes.clear()
