import pytest
import torch

from prunewald.model.slices import Slice

PARAM = torch.arange(12.0).view(3, 4)
INDICES = {"whole": None, "row": 1, "columns": (slice(None), slice(1, 3)), "places": PARAM > 6}


@pytest.mark.parametrize("name", INDICES)
def test_what_is_put_is_what_is_taken_and_the_rest_stays(name):
    part = Slice(name, "weight", INDICES[name])
    index = ... if part.index is None else part.index
    assert torch.equal(part.take(PARAM), PARAM[index])
    changed = PARAM.clone()
    part.put_(changed, -part.take(PARAM) - 1)
    expected = PARAM.clone()
    expected[index] = -PARAM[index] - 1
    assert torch.equal(changed, expected)


def test_several_tensors_at_once():
    part = Slice("weight[1]", "weight", 1)
    first, none, second = part.take_each(PARAM, None, PARAM > 5)
    assert first.tolist() == [4, 5, 6, 7]
    assert none is None
    assert second.tolist() == [False, False, True, True]
    assert Slice("weight", "weight").take_each(PARAM, None) == [PARAM, None]


def test_the_whole_parameter_is_not_copied():
    assert Slice("weight", "weight").take(PARAM) is PARAM
