"""Outputs and losses in what models return."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from prunewald.model.returned import outputs, own_loss

LOGITS, OTHER, LOSS = torch.zeros(2, 3), torch.ones(2, 5), torch.tensor(0.5)


@pytest.mark.parametrize(
    "returned",
    [
        LOGITS,
        (LOGITS, OTHER),
        (LOSS, LOGITS, (OTHER, OTHER)),
        OrderedDict(loss=LOSS, logits=LOGITS, hidden_states=(OTHER,)),
        {"out": LOGITS, "aux": OTHER},
        {"scores": LOGITS},
        {"last_hidden_state": LOGITS, "pooler_output": OTHER},
        SimpleNamespace(logits=LOGITS, other=OTHER),
    ],
)
def test_outputs(returned):
    assert outputs(returned) is LOGITS


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"a": LOGITS, "b": OTHER}, "dict with 'a', 'b'"),
        ("text", "a str"),
        (None, "NoneType"),
        (("a", 3), "tuple of str, int"),
        ({}, "nothing"),
    ],
)
def test_outputs_that_cannot_be_told(returned, said):
    with pytest.raises(ValueError, match=f"{said}.*lambda returned, targets"):
        outputs(returned)


@pytest.mark.parametrize(
    "returned", [LOSS, (LOSS, LOGITS), {"loss": LOSS, "logits": LOGITS}, SimpleNamespace(loss=LOSS)]
)
def test_a_loss_of_its_own(returned):
    assert own_loss(returned) is LOSS


@pytest.mark.parametrize("returned", [LOGITS, (LOGITS,), {"loss": None, "logits": LOGITS}, (), None])
def test_no_loss_of_its_own(returned):
    with pytest.raises(ValueError, match=r"'labels'.*loss="):
        own_loss(returned)
