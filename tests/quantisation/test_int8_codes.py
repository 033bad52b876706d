"""int8 codes: those that training learned, those that lie in the weights, and rounded ones."""

import pytest
import torch
from torch import nn

from prunewald.quantisation import LinearValues, SharedValues
from prunewald.quantisation.int8_codes import Codes, found, rounded
from tests.quantisation.helpers import pruned


@pytest.mark.parametrize("per", ["target", "row"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_training_learned_is_taken_as_it_is(per, bits):
    model, _, pruner = pruned(model=nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5)))
    linear = LinearValues(pruner, bits, per=per)
    for source in (linear, pruner):
        coded = Codes(source, "it").of("0.weight", model[0].weight)
        assert coded.origin == "trained"
        assert torch.equal(coded.codes, linear.codes()["0.weight"])
        assert torch.equal(coded.weight(), model[0].weight)
    linear.detach()
    again = Codes(model, "it").of("0.weight", model[0].weight)
    assert again.origin == "found"
    torch.testing.assert_close(again.weight(), model[0].weight.detach(), rtol=1e-6, atol=0)
    assert torch.equal(again.codes == 0, linear.codes()["0.weight"] == 0)


def test_codes_without_a_common_factor_are_found_again_exactly():
    codes = torch.randint(-127, 128, (40, 300), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    codes[:, 0], codes[:, 1] = 127, 1
    scales = torch.rand(40, 1) + 0.01
    coded = found(codes * scales)
    assert torch.equal(coded.codes, codes)
    torch.testing.assert_close(coded.scales, scales, rtol=1e-6, atol=0)
    one = found(codes * scales[0])
    assert one.scales.shape == ()
    assert torch.equal(one.codes, codes)


def test_weights_of_no_grid_have_none_and_are_rounded_near():
    weight = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    assert found(weight) is None
    coded = rounded(weight)
    assert coded.scales.shape == (40, 1)
    assert float((coded.weight() - weight).norm() / weight.norm()) == pytest.approx(coded.error, rel=1e-4)
    assert 0 < coded.error < 0.02


def test_empty_rows_and_empty_weights():
    weight = torch.zeros(3, 4)
    assert torch.equal(found(weight).codes, torch.zeros(3, 4, dtype=torch.int8))
    weight[1] = torch.tensor([1.0, -2.0, 0.0, 3.0])
    assert torch.equal(found(weight).weight(), weight)


def test_what_was_changed_since_is_refused():
    model, _, pruner = pruned(model=nn.Linear(8, 8))
    linear = LinearValues(pruner)
    linear.detach()
    with torch.no_grad():
        model.weight.add_(0.01)
    with pytest.raises(ValueError, match="'weight'.*a new LinearValues"):
        Codes(linear, "it")


def test_shared_values_and_strangers_are_refused():
    _, _, pruner = pruned(model=nn.Linear(8, 8))
    SharedValues(pruner, 4)
    with pytest.raises(ValueError, match=r"SharedValues.*LinearValues.*pruner\.model"):
        Codes(pruner, "it")
    with pytest.raises(TypeError, match="it takes a model, a Pruner or LinearValues, not int"):
        Codes(3, "it")


def test_what_has_no_codes_says_why():
    model, _, pruner = pruned(
        model=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), targets=["0.weight[2]", "1.weight"]
    )
    codes = Codes(LinearValues(pruner, per="row"), "it")
    assert "only a part" in codes.of("0.weight", model[0].weight)
    assert "for each input" in codes.of("1.weight", model[1].weight, turned=True)
    assert "float64" in codes.of("1.weight", model[1].weight.double())
    assert "NaN" in codes.of("1.weight", model[1].weight / 0)
    assert "no target" in codes.of("other", model[1].weight)
