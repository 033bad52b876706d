"""Whole examples held back, evenly, and the same in every pass."""

import pytest
import torch
from torch import nn

from prunewald.refitting.examples import Examples
from tests.refitting.models import split

MODEL = nn.Linear(1, 1)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.73])
@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_examples_are_held_back_evenly_whatever_the_batches(share, size):
    x = torch.arange(64.0)[:, None]
    examples = Examples(list(x.split(size)), MODEL, share, None)
    for _ in range(2):
        found = {False: [], True: []}
        for given in examples:
            found[given.held].append(given.batch.args[0])
        fitted, held = split(x, share)
        assert torch.equal(torch.cat(found[False]), fitted)
        assert torch.equal(torch.cat(found[True]), held)
    assert examples.count == {False: len(fitted), True: len(held)}
    assert abs(len(held) - 64 * share) <= 1


def test_all_that_has_a_row_an_example_is_split_and_positions_with_it():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]])
    ids, scale = torch.arange(15).view(5, 3), torch.ones(3)
    batch = {"input_ids": ids, "attention_mask": mask, "more": (ids * 2, scale)}
    fitted, held = Examples([batch], MODEL, 0.2, None)
    rest = [0, 1, 3, 4]
    assert torch.equal(held.batch.kwargs["input_ids"], ids[2:3])
    assert torch.equal(fitted.batch.kwargs["more"][0], ids[rest] * 2)
    assert fitted.batch.kwargs["more"][1] is scale
    assert torch.equal(fitted.keep, mask[rest].bool())


def test_the_first_batches_alone():
    examples = Examples([torch.zeros(10, 1)] * 5, MODEL, 0.2, 2)
    assert sum(given.size for given in examples) == 20


def test_other_examples_in_a_later_pass_are_refused():
    class Changing:
        at = 0

        def __iter__(self):
            Changing.at += 1
            return iter([torch.full((10, 1), float(Changing.at))])

    examples = Examples(Changing(), MODEL, 0.2, None)
    list(examples)
    with pytest.raises(ValueError, match="Changing, gave other examples"):
        list(examples)
