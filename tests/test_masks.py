"""Masks as things of their own: compared, and laid on another model."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald import masks as pm


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))


def pruned(sparsity, seed=0):
    pruner = pw.Pruner(net(seed), criterion="magnitude", scope="layer")
    pruner.prune(sparsity)
    return pruner


def bits(text):
    return torch.tensor([c == "1" for c in text], dtype=torch.bool)


def test_an_overlap_counted_by_hand():
    overlap = pm.compare({"w": bits("11110000")}, {"w": bits("01100111")})
    (layer,) = overlap.layers
    assert (layer.weights, layer.kept_a, layer.kept_b, layer.both) == (8, 4, 5, 2)
    assert layer.share == 0.5
    assert layer.share_by_chance == 5 / 8
    assert layer.jaccard == 2 / 7
    assert layer.both_by_chance == 2.5
    assert layer.jaccard_by_chance == 2.5 / 6.5


def test_chance_is_what_random_masks_give():
    generator = torch.Generator().manual_seed(0)
    kept_a, kept_b = torch.arange(200) < 60, torch.arange(200) < 30
    found = []
    for _ in range(2000):
        a, b = (kept[torch.randperm(200, generator=generator)] for kept in (kept_a, kept_b))
        found.append(pm.compare({"w": a}, {"w": b}).layers[0])
    expected = found[0]
    assert sum(f.share for f in found) / 2000 == pytest.approx(expected.share_by_chance, rel=0.02)
    assert sum(f.jaccard for f in found) / 2000 == pytest.approx(expected.jaccard_by_chance, rel=0.02)


def test_the_total_draws_within_layers():
    """Random masks that agree only in how much each layer keeps are at chance level."""
    torch.manual_seed(0)
    a, b = ({"w": torch.rand(100_000) < 0.9, "v": torch.rand(100_000) < 0.1} for _ in range(2))
    total = pm.compare(a, b).total
    assert total.weights == 200_000
    assert total.share == pytest.approx(total.share_by_chance, abs=0.005)
    assert total.share_by_chance == pytest.approx((0.9 * 0.9 + 0.1 * 0.1) / 1.0, abs=0.005)


def test_the_same_masks_overlap_whole_and_a_sparser_one_is_inside():
    light, heavy = pruned(0.5).masks, pruned(0.9).masks
    same = pm.compare(light, light).total
    assert (same.share, same.jaccard) == (1.0, 1.0)
    assert pm.compare(heavy, light).total.share == 1.0
    assert pm.compare(light, heavy).total.share == pytest.approx(0.2)


def test_it_prints_as_a_table_and_goes_to_json():
    overlap = pm.compare(pruned(0.5).masks, pruned(0.9, seed=1).masks)
    lines = str(overlap).splitlines()
    assert lines[0].split("  ")[0] == "layer"
    assert lines[0].count("by chance") == 2
    assert [line.split()[0] for line in lines[2:4]] == ["0.weight", "2.weight"]
    assert lines[2].split()[1:4] == ["600", "300", "60"]
    assert lines[-1].split()[:4] == ["total", "750", "375", "75"]
    assert len({len(line) for line in lines}) == 1
    data = json.loads(json.dumps(overlap.to_dict(), allow_nan=False))
    assert data["total"]["kept_a"] == 375
    assert data["layers"][0]["share_by_chance"] == pytest.approx(0.1)


def test_notebooks_show_it_as_html():
    shown = pm.compare({"w<": bits("1100")}, {"w<": bits("1000")})._repr_html_()
    assert shown.startswith("<table>")
    assert all(f">{cell}<" in shown for cell in ("layer", "w&lt;", "50.0%", "total"))


def test_where_nothing_is_kept_or_nothing_is_there():
    overlap = pm.compare({"w": bits("000"), "v": bits("")}, {"w": bits("110"), "v": bits("")})
    assert math.isnan(overlap.layers[0].share)
    assert overlap.layers[0].jaccard == 0
    assert math.isnan(overlap.layers[1].jaccard)
    assert overlap.to_dict()["layers"][1]["share"] is None
    assert str(overlap).splitlines()[3].split()[-4:] == ["-"] * 4


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ({"w": bits("1"), "v": bits("1")}, {"w": bits("1")}, "masks b.*'v' has no mask.*pruner.masks"),
        ({"w": bits("1")}, {"v": bits("1")}, "'v' is no parameter.*'w' has no mask"),
        ({"w": bits("1")}, {"w": bits("10")}, r"'w' has shape \(2,\).*\(1,\)"),
        ({"w": torch.ones(1)}, {"w": bits("1")}, "masks a.*'w' is torch.float32.*bool"),
        ({"w": bits("1")}, {"w": torch.ones(1).long()}, "masks b.*'w' is torch.int64.*bool"),
        ({}, {"w": bits("1")}, "masks a.*empty.*pruner.masks"),
        ({"w": bits("1")}, {}, "masks b.*'w' has no mask"),
        ({str(i): bits("1") for i in range(9)}, {"w": bits("1")}, "'3' has no mask; and 5 more"),
    ],
)
def test_masks_that_cannot_be_compared(a, b, reason):
    with pytest.raises(ValueError, match=reason):
        pm.compare(a, b)


def test_a_pruner_in_place_of_its_masks():
    with pytest.raises(TypeError, match="masks b.*Pruner.*pruner.masks"):
        pm.compare(pruned(0.5).masks, pruned(0.5))


def test_laid_on_a_rewound_model(tmp_path):
    """The lottery ticket: masks of the trained model, weights of the beginning."""
    start = net()
    pruner = pw.Pruner(copy.deepcopy(start), criterion="magnitude")
    pruner.prune(0.8)
    pm.save(pruner.masks, tmp_path / "masks.pw")
    rewound = copy.deepcopy(start)
    pm.apply_(rewound, pm.load(tmp_path / "masks.pw"))
    for name, weight in rewound.named_parameters():
        mask = pruner.masks.get(name, torch.ones_like(weight, dtype=torch.bool))
        assert torch.equal(weight, dict(start.named_parameters())[name] * mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_on_a_model_of_another_type_nan_and_all(dtype):
    model = nn.Linear(3, 2).to(dtype)
    nn.init.constant_(model.weight, math.nan)
    pm.apply_(model, {"weight": torch.zeros(2, 3, dtype=torch.bool)})
    assert (model.weight == 0).all()
    assert not model.weight.signbit().any()


def test_on_a_tied_weight_by_either_name_and_inside_torch_compile():
    for name in ("0.weight", "1.weight"):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        pm.apply_(torch.compile(model), {name: torch.eye(3).bool()})
        assert int((model[0].weight != 0).sum()) == 3


@pytest.mark.parametrize(
    ("masks", "reason"),
    [
        ({"3.weight": bits("1")}, "Sequential.*'3.weight' is no parameter.*pruner.masks"),
        ({"2.weight": bits("1")}, r"'2.weight' has shape \(1,\).*\(5, 30\)"),
        ({"2.weight": torch.ones(5, 30)}, "'2.weight' is torch.float32.*bool"),
    ],
)
def test_masks_that_do_not_fit_leave_the_model_as_it_was(masks, reason):
    model = net()
    good = {"0.weight": torch.zeros(30, 20, dtype=torch.bool)}
    with pytest.raises(ValueError, match=reason):
        pm.apply_(model, good | masks)
    assert torch.equal(model[0].weight, net()[0].weight)


@pytest.mark.parametrize("model", [nn.Linear(2, 2, device="meta"), nn.LazyLinear(2)])
def test_a_model_without_values(model):
    with pytest.raises(ValueError, match="'weight' has no values in the model yet"):
        pm.apply_(model, {"weight": torch.ones(2, 2).bool()})
