"""Calibration data as people have them, given to a model as it takes them."""

from collections import UserDict, namedtuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunewald.model.calibration import Batch, Calibration, counted_positions

pytestmark = pytest.mark.usefixtures("one_thread")
X, Z, Y = torch.arange(6.0).view(3, 2), torch.ones(3, 2), torch.tensor([0, 1, 0])
Pair = namedtuple("Pair", "inputs targets")


class One(nn.Module):
    def forward(self, x):
        return x


class Two(nn.Module):
    def forward(self, x, z):
        return x + z


class Maybe(nn.Module):
    def forward(self, x, z=None, labels=None, **more):
        return {"x": x, "z": z, "labels": labels, **more}


def only(given, model=None, **options):
    (batch,) = Calibration([given], model or One(), **options)
    return batch


@pytest.mark.parametrize("given", [X, (X,), [X], (X, Y), [X, Y], Pair(X, Y), ((X,), Y), ({"x": X}, Y), {"x": X}])
def test_a_model_of_one_input(given):
    batch = only(given)
    assert torch.equal(batch.call(One()), X)
    assert batch.size == 3
    assert (batch.targets is Y) == (isinstance(given, tuple | list) and len(given) == 2)


@pytest.mark.parametrize("given", [(X, Z), (X, Z, Y), ((X, Z), Y), [[X, Z], Y], ({"x": X, "z": Z}, Y)])
def test_a_model_of_two_inputs(given):
    batch = only(given, Two())
    assert torch.equal(batch.call(Two()), X + 1)
    assert (batch.targets is None) == (len(given) == 2 and isinstance(given[0], torch.Tensor) and given[1] is Z)


def test_more_than_a_model_takes_are_several_targets():
    batch = only((X, Y, Z))
    assert torch.equal(batch.call(One()), X)
    assert [t is own for t, own in zip(batch.required, (Y, Z), strict=True)] == [True, True]


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_dict_is_given_by_keyword_with_its_labels_or_without(kind):
    batch = only(kind(x=X, labels=Y), Maybe())
    assert batch.required is Y
    assert batch.call(Maybe())["labels"] is Y
    assert batch.call(Maybe(), labels=False)["labels"] is None
    assert batch.size == 3


@pytest.mark.parametrize("key", ["labels", "label", "targets", "target", "y"])
def test_targets_of_a_dict_that_the_model_does_not_take_are_not_given_to_it(key):
    batch = only({"x": X, key: Y})
    assert batch.targets is Y
    assert torch.equal(batch.call(One()), X)


def test_a_name_that_the_model_takes_is_no_target():
    class Same(nn.Module):
        def forward(self, x, y):
            return x + y

    batch = only({"x": X, "y": Z}, Same())
    assert batch.targets is None
    assert torch.equal(batch.call(Same()), X + 1)


def test_keys_that_a_model_does_not_take_are_named():
    with pytest.raises(TypeError, match=r"One.*'image', 'label'.*takes \(x\)"):
        only({"image": X, "label": Y}).call(One())
    with pytest.raises(TypeError, match=r"Two.*a tensor \(3, 2\).*takes \(x, z\)"):
        only(X, Two()).call(Two())

    class Broken(nn.Module):
        def forward(self, x):
            return x + {}

    with pytest.raises(TypeError, match="unsupported operand"):
        only(X, Broken()).call(Broken())


def test_no_targets():
    for given in (X, (X,), {"x": X}):
        with pytest.raises(ValueError, match=r"targets.*'labels'"):
            _ = only(given).required


def test_everything_is_moved_to_the_model():
    class Somewhere(One):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1, device="meta"))

    batch = only(({"x": X, "more": [Z, (Y,)]}, Y), Somewhere())
    found = [batch.targets, batch.kwargs["x"], batch.kwargs["more"][0], batch.kwargs["more"][1][0]]
    assert {t.device.type for t in found} == {"meta"}


def test_a_limit_is_of_batches_and_no_more_are_read():
    read = []

    def source():
        for at in range(5):
            read.append(at)
            yield X + at

    assert len(list(Calibration(source(), One(), passes=1, limit=2))) == 2
    assert read == [0, 1]
    kept = Calibration(source(), One(), limit=3)
    assert [len(list(kept)), len(list(kept))] == [3, 3]
    assert len(list(Calibration([X] * 4, One(), limit=9))) == 4
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"limit={limit}.*whole number of at least 1"):
            Calibration([X], One(), limit=limit)


def test_a_loader_is_read_again_at_every_pass_and_empty_batches_are_left_out():
    data = Calibration(DataLoader(TensorDataset(X, Y), batch_size=2), One())
    assert [[b.size for b in data] for _ in range(2)] == [[2, 1]] * 2
    assert [b.size for b in Calibration([X[:0], X], One())] == [3]


@pytest.mark.parametrize("data", [[], [X[:0]], iter([]), [()]])
def test_no_data(data):
    with pytest.raises(ValueError, match=f"batches, a {type(data).__name__}, gave no sample"):
        list(Calibration(data, One()))


@pytest.mark.parametrize("data", [X, {"x": X}, UserDict(x=X)])
def test_one_batch_is_no_source_of_batches(data):
    with pytest.raises(TypeError, match=r"one batch.*\[batch\]"):
        Calibration(data, One())


def test_a_data_set_is_no_loader():
    with pytest.raises(TypeError, match=r"TensorDataset.*DataLoader\(TensorDataset"):
        Calibration(TensorDataset(X, Y), One())


def test_to_look_at_a_shuffled_loader_draws_no_random_number():
    before = torch.get_rng_state()
    Calibration(DataLoader(TensorDataset(X, Y), shuffle=True), One())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_bar_only_when_asked_for(capsys):
    pytest.importorskip("tqdm")
    list(Calibration([X, X], One()))
    assert capsys.readouterr().err == ""
    list(Calibration([X, X], One(), progress=True))
    assert "2/2" in capsys.readouterr().err


def positions(**kwargs):
    targets = kwargs.pop("labels", None)
    return counted_positions(Batch((), kwargs, targets))


def test_positions_that_count():
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 0], [1, 1, 1]])
    labels = torch.tensor([[-100, 1, 1], [1, 1, -100]])
    assert torch.equal(positions(input_ids=ids, attention_mask=mask, labels=labels), mask.bool())
    assert torch.equal(positions(input_ids=ids, labels=labels), labels != -100)
    assert torch.equal(positions(attention_mask=mask), mask.bool())
    for nothing in ({"input_ids": ids}, {"input_ids": ids, "labels": ids[:, 0]}, {"attention_mask": mask | 1}):
        assert positions(**nothing) is None
    assert positions(x=X, attention_mask=torch.ones(2, 1, 3, 3)) is None
