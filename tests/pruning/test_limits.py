"""Thresholds: one for all, by layer, and as Han's quality times the std of a layer."""

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import wide

pytestmark = pytest.mark.usefixtures("one_thread")


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.dim() > 1}


def test_a_threshold_for_each_layer_and_one_for_the_others():
    model = wide()
    before = weights(model)
    pw.Pruner(model, criterion="abs").prune(threshold={"2": 0.1, "*": 0.05})
    limits = {"0.weight": 0.05, "2.weight": 0.1, "4.weight": 0.05}
    for name, weight in before.items():
        kept = weight.abs() >= limits[name]
        assert 0 < int(kept.sum()) < kept.numel()
        assert torch.equal(model.get_parameter(name).detach(), weight * kept)


def test_a_layer_without_a_threshold_stays_as_it_is():
    pruner = pw.Pruner(wide(), criterion="abs")
    pruner.prune({"0": 0.5})
    before = pruner.masks
    pruner.prune(threshold={"2": 0.1})
    assert torch.equal(pruner.masks["0.weight"], before["0.weight"])
    assert pruner.masks["4.weight"].all()
    assert not pruner.masks["2.weight"].all()


def test_a_threshold_of_a_slice():
    model = wide()
    before = weights(model)["2.weight"][:5]
    pruner = pw.Pruner(model, criterion="abs", targets=["2.weight[:5]", "2.weight[5:]"])
    pruner.prune(threshold={"2.weight[:5]": 0.1})
    assert torch.equal(pruner.masks["2.weight"][:5], before.abs() >= 0.1)
    assert pruner.masks["2.weight"][5:].all()


@pytest.mark.parametrize("what", ["threshold", "quality"])
def test_a_name_that_is_none_is_repeated(what):
    with pytest.raises(ValueError, match=f"{what} for 'fc'.*'0.weight'"):
        pw.Pruner(wide(), criterion="abs").prune(**{what: {"fc": 0.1}})


@pytest.mark.parametrize("criterion", ["abs", None])
def test_hans_quality_is_in_units_of_the_std_of_the_survivors(criterion):
    model = wide()
    pruner = pw.Pruner(model, criterion=criterion)
    alive = {name: torch.ones_like(w, dtype=torch.bool) for name, w in weights(model).items()}
    for quality in (0.5, 1.0):
        before = weights(model)
        report = pruner.prune(quality=quality)
        assert report.criterion == "Magnitude()"
        for name, weight in before.items():
            std = float(weight[alive[name]].double().std())
            assert torch.equal(pruner.masks[name], alive[name] & (weight.abs() >= quality * std))
        alive = pruner.masks
    masks, _ = pruner.choose(quality={"2": 1.2})
    assert torch.equal(masks["0.weight"], alive["0.weight"])
    assert masks["2.weight"].sum() < alive["2.weight"].sum()


def test_a_quality_is_of_magnitudes_and_of_single_weights():
    with pytest.raises(ValueError, match=r"quality=0.7.*Wald\(.*criterion='magnitude'"):
        pw.Pruner(wide(), criterion="wald", uncertainty=weights(wide())).prune(quality=0.7)
    with pytest.raises(ValueError, match="quality chooses weights one by one"):
        pw.Pruner(wide(), criterion="abs", pattern="filter").prune(quality=0.7)
    with pytest.raises(ValueError, match="1 weight.*quality"):
        pw.Pruner(nn.Linear(1, 1), criterion="abs").prune(quality=0.7)


def test_the_std_of_a_module_counted_as_one():
    model = wide()
    before = torch.cat([model[2].weight.detach().flatten(), model[2].bias.detach()])
    pruner = pw.Pruner(model, criterion="abs", scope="module", targets=["2", "2.bias"])
    pruner.prune(quality=0.8)
    kept = torch.cat([pruner.masks["2.weight"].flatten(), pruner.masks["2.bias"]])
    assert torch.equal(kept, before.abs() >= 0.8 * float(before.double().std()))
