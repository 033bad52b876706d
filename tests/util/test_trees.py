from collections import OrderedDict

import numpy as np
import torch

from prunewald.util.trees import copied, mapped


def test_every_tensor_is_changed_and_all_else_stays():
    tree = {"a": torch.ones(2), "b": [torch.ones(1), (3, "x", None)], "c": OrderedDict(d=torch.zeros(1))}
    found = mapped(tree, lambda tensor: tensor + 1)
    assert found["a"].tolist() == [2, 2]
    assert found["b"][0].tolist() == [2]
    assert found["b"][1] == (3, "x", None)
    assert found["c"]["d"].tolist() == [1]
    assert type(found["c"]) is dict
    assert tree["a"].tolist() == [1, 1]


def test_numbers_of_numpy_become_python_s():
    found = mapped([np.float32(0.5), np.int64(3), 2.0], lambda tensor: tensor)
    assert found == [0.5, 3, 2.0]
    assert [type(number) for number in found] == [float, int, float]


def test_a_copy_shares_no_tensor_and_no_graph():
    weight = torch.ones(3, requires_grad=True)
    first = {"states": [{"weight": weight * 2, "steps": 4}]}
    second = copied(first)
    second["states"][0]["weight"].zero_()
    second["states"][0]["steps"] = 5
    assert first["states"][0]["weight"].tolist() == [2, 2, 2]
    assert first["states"][0]["steps"] == 4
    assert not second["states"][0]["weight"].requires_grad
