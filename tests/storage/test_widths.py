"""A file of a shrunk model: loaded into a dense one, which is made as narrow first."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.newer import ResNet8, Transformer
from prunewald.storage import container
from prunewald.storage.index import dump, parse, parse_widths
from tests.shrinking.helpers import assert_same, outputs, zero_units

IMAGES = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def shrunk(kind):
    torch.manual_seed(0)
    return pw.shrink(zero_units(kind(1, 12, 10), IMAGES), IMAGES)[0]


@pytest.mark.parametrize("kind", [ResNet8, Transformer])
def test_a_dense_model_is_made_as_narrow_and_then_loaded(kind, tmp_path):
    small, dense = shrunk(kind), kind(1, 12, 10)
    pw.save(small, tmp_path / "small.pw")
    first = next(dense.parameters())
    assert pw.load(tmp_path / "small.pw", into=dense) is dense
    assert next(dense.parameters()) is first
    assert_same(outputs(small, IMAGES), outputs(dense, IMAGES))
    pw.save(dense, tmp_path / "again.pw")
    assert (tmp_path / "again.pw").read_bytes() == (tmp_path / "small.pw").read_bytes()


def test_into_one_that_is_as_narrow_already(tmp_path):
    small = shrunk(Transformer)
    pw.save(pw.Pruner(small), tmp_path / "small.pw")
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        nn.init.zeros_(other.fc.weight)
        pw.load(tmp_path / "small.pw", into=other)
        assert_same(outputs(small, IMAGES), outputs(other, IMAGES))


def test_heads_of_torchs_own_attention(tmp_path):
    x = torch.randn(2, 5, 16)

    def fresh():
        return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    small, _ = pw.shrink(zero_units(fresh(), x), x)
    pw.save(small, tmp_path / "small.pw")
    assert_same(outputs(small, x), outputs(pw.load(tmp_path / "small.pw", into=fresh()), x))


def test_a_model_that_does_not_fit_is_untouched(tmp_path):
    small = shrunk(Transformer)
    pw.save(small, tmp_path / "small.pw")
    other = Transformer(1, 12, 7)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"'fc.weight' is .*\(10, 64\) in the file"):
        pw.load(tmp_path / "small.pw", into=other)
    assert all(torch.equal(before[name], x) for name, x in other.state_dict().items())


def test_a_width_that_is_no_number_of_the_model_is_refused(tmp_path):
    contents_of(tmp_path / "odd.pw", {"": {"forward": 3}})
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="'.forward', which is no number"):
        pw.load(tmp_path / "odd.pw", into=model)
    assert callable(model.forward)


def contents_of(path, widths):
    pw.save(nn.Linear(3, 2), path)
    contents = container.read(path)
    entries, report = parse(contents.index)
    container.write(path, dump(entries, report, widths), contents.tensors)


@pytest.mark.parametrize("widths", [{"a": 3}, {"a": {"b": "c"}}, {"a": {"b": -1}}, {"a": {"b": True}}])
def test_widths_that_make_no_sense_are_refused(widths, tmp_path):
    contents_of(tmp_path / "odd.pw", widths)
    with pytest.raises(pw.PackedFileError, match="makes no sense"):
        pw.load(tmp_path / "odd.pw")


def test_a_file_of_any_other_model_has_none(tmp_path):
    pw.save(nn.Linear(3, 2), tmp_path / "plain.pw")
    index = container.read(tmp_path / "plain.pw").index
    assert parse_widths(index) is None
    assert "widths" not in json.loads(index)
    with pytest.raises(ValueError, match="does not fit"):
        pw.load(tmp_path / "plain.pw", into=nn.Linear(4, 2))
