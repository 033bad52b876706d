"""torch.nn.utils.prune both ways: our scores in its functions, its masks in a Pruner."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import prunewald as pw
from prunewald.integrations import nn_prune
from prunewald.integrations.nn_prune import CriterionUnstructured, criterion_unstructured, importance_scores, take_over

pytestmark = pytest.mark.usefixtures("one_thread")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))


def train(model, optimizer, steps=120, inputs=12):
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        x = torch.randn(16, 12, generator=generator)
        x[:, inputs:] = 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()


@pytest.fixture
def trained():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 20)
    return model, optimizer


def places(model):
    return [(model[0], "weight"), (model[2], "weight")]


def state(model):
    """All that an error has to leave as it was."""
    found = {}
    for name, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            found |= {f"{name}.{key}": (id(held), held.clone()) for key, held in table.items() if held is not None}
        found[f"{name} hooks"] = [id(hook) for hook in module._forward_pre_hooks.values()]
        found[f"{name} plain"] = sorted(key for key, value in vars(module).items() if isinstance(value, torch.Tensor))
    return found


def same(a, b):
    tensors = [key for key in a if isinstance(a[key], tuple)]
    rest = all(a[key] == b[key] for key in a if key not in tensors)
    return (
        a.keys() == b.keys()
        and rest
        and all(a[key][0] == b[key][0] and torch.equal(a[key][1], b[key][1]) for key in tensors)
    )


# ---- importance_scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", [None, "magnitude", "wald", pw.MagnitudeUncertainty(lam=0.1)])
def test_torchs_own_functions_prune_what_a_pruner_would(trained, criterion):
    model, optimizer = trained
    by_layer = pw.Pruner(model, optimizer, criterion=criterion, scope="layer")
    expected, _ = by_layer.choose(0.7)
    together, _ = pw.Pruner(model, optimizer, criterion=criterion, scope="global").choose(0.7)
    one, all_of_them = importance_scores(by_layer, model[0]), importance_scores(by_layer)
    assert list(all_of_them) == places(model)
    other = copy.deepcopy(model)
    prune.l1_unstructured(other[0], "weight", 0.7, importance_scores=one)
    assert torch.equal(other[0].weight_mask.bool(), expected["0.weight"])
    prune.global_unstructured(list(all_of_them), prune.L1Unstructured, all_of_them, amount=0.7)
    assert all(torch.equal(mask, together[name]) for name, mask in nn_prune.masks(model).items())


def test_scores_of_living_weights_are_the_pruners_and_all_others_are_below_them():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer, uncertainty="second-moment")
    train(model, optimizer, inputs=9)  # three columns are dead
    with torch.no_grad():
        model[0].weight[0, 0] = 0.0
    own, given = pruner.scores()["0.weight"], importance_scores(pruner, model[0])
    dead, zero = pruner.dead()["0.weight"], model[0].weight == 0
    assert dead.sum() == 60
    living = ~dead & ~zero
    assert torch.equal(given[living], own[living])
    assert given[zero].max() == 0 < given[dead].min()
    assert given[dead].max() < given[living].min()
    size = model[0].weight.detach().abs()[dead]
    assert torch.equal(given[dead].argsort(), size.argsort())


def test_what_a_pruner_has_pruned_goes_first(trained):
    model, optimizer = trained
    pruner = pw.Pruner(model, optimizer, scope="layer")
    pruner.prune(0.25)
    train(model, optimizer, 5)
    pruned = ~pruner.masks["0.weight"]
    scores = importance_scores(pruner)[model[0], "weight"]
    assert scores[pruned].max() == 0 < scores[~pruned].min()


def test_scores_that_nobody_chose_to_be_magnitudes_are_said_to_be_so():
    model = net()
    with pytest.warns(UserWarning, match="criterion: magnitude, since"):
        scores = importance_scores(pw.Pruner(model), model[2])
    assert torch.equal(scores, model[2].weight.abs())


# ---- a pruning method ----------------------------------------------------------------------------------------------


def test_a_method_of_ours_beside_torchs(trained):
    model, optimizer = trained
    expected, _ = pw.Pruner(model, optimizer, scope="layer").choose(0.5)
    assert criterion_unstructured(model[0], "weight", 0.5, sigma=optimizer) is model[0]
    assert torch.equal(model[0].weight_mask.bool(), expected["0.weight"])
    assert torch.equal(model[0].weight, model[0].weight_orig * model[0].weight_mask)
    (hook,) = model[0]._forward_pre_hooks.values()
    assert isinstance(hook, CriterionUnstructured)
    train(model, optimizer, 3)
    assert torch.equal(model[0].weight != 0, expected["0.weight"])


def test_amount_is_a_share_of_the_rest_or_a_number(trained):
    model, optimizer = trained
    for left in (120, 60, 30):
        criterion_unstructured(model[0], "weight", 0.5, sigma=optimizer)
        assert int(model[0].weight_mask.sum()) == left
    criterion_unstructured(model[0], "weight", 7, sigma=torch.rand(20, 12))
    assert int(model[0].weight_mask.sum()) == 23
    prune.l1_unstructured(model[0], "weight", 0.9)
    assert int(model[0].weight_mask.sum()) == 23 - round(0.9 * 23)
    take_over(model).prune({"0": 0.99})  # ours is one of the total
    assert int((model[0].weight != 0).sum()) == 240 - round(0.99 * 240)


def test_a_second_pruning_takes_the_lowest_of_what_is_left(trained):
    model, _ = trained
    sigma = torch.rand(20, 12)
    prune.random_unstructured(model[0], "weight", 0.5)
    before = model[0].weight_mask.bool()
    weight = model[0].weight_orig.detach()
    lam = weight[before].std()
    tau = weight.abs() / (lam + sigma)
    criterion_unstructured(model[0], "weight", 0.5, sigma=sigma)
    kept = tau.masked_fill(~before, -1).flatten().topk(60).indices
    expected = torch.zeros(240, dtype=torch.bool).index_fill(0, kept, True).view(20, 12)
    assert torch.equal(model[0].weight_mask.bool(), expected)


def test_under_global_unstructured_sigma_comes_by_parameter(trained):
    model, optimizer = trained
    pruner = pw.Pruner(model, optimizer)
    sigma = pruner.sigma()
    given = {(model[0], "weight"): sigma["0.weight"], (model[2], "weight"): sigma["2.weight"]}
    expected, _ = pw.Pruner(model, uncertainty=sigma, scope="global").choose(0.6)
    prune.global_unstructured(places(model), CriterionUnstructured, amount=0.6, sigma=given)
    assert all(torch.equal(mask, expected[name]) for name, mask in nn_prune.masks(model).items())
    prune.global_unstructured(places(model), CriterionUnstructured, amount=0.5, sigma=given)
    assert sum(int(mask.sum()) for mask in nn_prune.masks(model).values()) == 64  # of 128
    scores = nn_prune.parameter_scores(places(model), sigma=optimizer)
    prune.global_unstructured(places(model), CriterionUnstructured, scores, amount=0.5)
    assert sum(int(mask.sum()) for mask in nn_prune.masks(model).values()) == 32


def test_a_model_that_our_method_pruned_is_copied_and_saved_without_scores(trained):
    model, optimizer = trained
    criterion_unstructured(model[0], "weight", 0.5, sigma=optimizer)
    (hook,) = model[0]._forward_pre_hooks.values()
    assert not any(isinstance(value, torch.Tensor | tuple) for value in vars(hook).values())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 12)), model(torch.ones(1, 12)))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "weights"}, "'weights' is no parameter of Linear; it has bias, weight"),
        ({"amount": 1.5}, "amount=1.5"),
        ({"amount": -1}, "amount=-1"),
        ({"amount": 121}, "amount=121 is more than the 120 weights that are left"),
        ({"sigma": None}, "needs a sigma: give sigma="),
        ({"sigma": torch.full((20, 12), torch.nan)}, "NaN"),
        ({"sigma": torch.rand(3)}, r"shape \(3,\)"),
        ({"sigma": torch.optim.SGD(net().parameters())}, "is in no optimizer"),
        ({"criterion": "mine"}, "unknown criterion 'mine'"),
        ({"criterion": "magnitude", "importance_scores": torch.rand(3)}, r"shape \(3,\)"),
    ],
)
def test_bad_input_leaves_a_pruned_module_as_it_was(given, error):
    model = net()
    prune.random_unstructured(model[0], "weight", 0.5)
    before = state(model)
    with pytest.raises(ValueError, match=error):
        criterion_unstructured(model[0], **{"name": "weight", "amount": 0.5, "sigma": torch.rand(20, 12), **given})
    assert same(state(model), before)
    model(torch.ones(1, 12))


def test_scores_of_other_parameters_are_refused_under_global_unstructured(trained):
    model, optimizer = trained
    sigma = {place: torch.rand_like(place[0].weight) for place in reversed(places(model))}
    before = state(model)
    with pytest.raises(ValueError, match="in the same order"):
        prune.global_unstructured(places(model), CriterionUnstructured, amount=0.5, sigma=sigma)
    with pytest.raises(ValueError, match="needs sigma="):
        prune.global_unstructured(places(model), CriterionUnstructured, amount=0.5)
    with pytest.raises(ValueError, match="give some"):
        nn_prune.parameter_scores([], sigma=optimizer)
    with pytest.raises(TypeError, match="is no module"):
        nn_prune.parameter_scores([("0", "weight")], sigma=optimizer)
    assert same(state(model), before)


def test_a_pruner_of_another_model_or_of_slices_has_no_scores_for_a_module(trained):
    model, optimizer = trained
    with pytest.raises(ValueError, match="no target of the Pruner; its targets are 0.weight"):
        importance_scores(pw.Pruner(net(), criterion="magnitude"), model[0])
    with pytest.raises(ValueError, match=r"'0.weight\[2\]' is a slice"):
        importance_scores(pw.Pruner(model, optimizer, targets="0.weight[2]"))
    with pytest.raises(TypeError, match="Sequential is no Pruner"):
        importance_scores(model)


def test_a_pruner_of_a_model_that_torch_has_pruned_since_tells_so(trained):
    model, optimizer = trained
    pruner = pw.Pruner(model, optimizer)
    prune.l1_unstructured(model[0], "weight", 0.5)
    assert "'0.weight' is not the parameter it was" in repr(pruner)
    with pytest.raises(ValueError, match=r"'0.weight' is not the parameter it was"):
        importance_scores(pruner)
    with pytest.raises(ValueError, match=r"prune.remove\(model\[0\], 'weight'\)"):
        pw.Pruner(model, optimizer)


# ---- masks taken over ----------------------------------------------------------------------------------------------


def test_a_live_model_becomes_plain_and_its_zeros_are_held(trained):
    model, optimizer = trained
    plain = dict(model.named_parameters())
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.ln_structured(model[2], "weight", 0.25, n=2, dim=0)
    prune.random_unstructured(model[2], "bias", 1)
    train(model, optimizer, 5)
    found, x = nn_prune.masks(model), torch.randn(3, 12)
    outputs = model(x)
    pruner = take_over(model, optimizer)
    assert model.state_dict().keys() == net().state_dict().keys()
    assert all(model.get_parameter(name) is param for name, param in plain.items())  # the optimizer goes on
    torch.testing.assert_close(model(x), outputs, rtol=0, atol=0)
    assert all(torch.equal(pruner.masks[name], mask) for name, mask in found.items())
    assert pruner.sparsity == pytest.approx((120 + 20 + 1) / (240 + 80 + 4))
    train(model, optimizer, 5)
    assert all(torch.equal(model.get_parameter(name) != 0, mask) for name, mask in found.items())
    report = pruner.prune({"0": 0.75})
    assert (model[0].weight == 0).sum() == 180
    assert not bool((pruner.masks["0.weight"] & ~found["0.weight"]).any())
    assert report.rows[0].kept == 60


def test_a_state_dict_is_taken_over_by_a_plain_model(trained):
    model, optimizer = trained
    criterion_unstructured(model[0], "weight", 0.5, sigma=optimizer)
    fresh = net()
    pruner = take_over(fresh, state=model.state_dict(), criterion="magnitude")
    assert torch.equal(fresh(torch.ones(2, 12)), model(torch.ones(2, 12)))
    assert torch.equal(pruner.masks["0.weight"], model[0].weight_mask != 0)
    assert pruner.criterion == pw.Magnitude()
    assert [part.name for part in pruner.slices] == ["0.weight", "2.weight"]


def test_what_is_no_weight_by_default_is_held_where_it_has_a_mask():
    model = nn.Sequential(nn.LayerNorm(8), nn.Embedding(9, 4))
    prune.l1_unstructured(model[0], "weight", 0.25)
    prune.l1_unstructured(model[1], "weight", 0.25)
    pruner = take_over(model)
    assert [part.name for part in pruner.slices] == ["0.weight", "1.weight"]
    assert pruner.sparsity == 0.25


def test_taking_over_is_all_or_nothing(trained):
    model, optimizer = trained
    criterion_unstructured(model[0], "weight", 0.5, sigma=optimizer)
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.l1_unstructured(model[2], "bias", 1)
    before = state(model)
    with pytest.raises(ValueError, match=r"'2.bias' is no parameter here"):
        take_over(model, optimizer, targets="0")
    with pytest.raises(ValueError, match="unknown criterion 'mine'"):
        take_over(model, optimizer, criterion="mine")
    with pytest.raises(ValueError, match="load_state_dict.state. first"):
        take_over(model, state=model.state_dict())
    assert same(state(model), before)
    train(model, optimizer, 1)
    assert take_over(model, optimizer).report is None


def test_a_state_of_another_model_changes_nothing(trained):
    model, optimizer = trained
    plain = state(model)
    with pytest.raises(ValueError, match="nothing in this Sequential is pruned"):
        take_over(model, optimizer)
    with pytest.raises(ValueError, match="state has no '..._orig'"):
        take_over(model, state=net().state_dict())
    other = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4))
    prune.l1_unstructured(other[0], "weight", 0.5)
    with pytest.raises(ValueError, match="0.weight.* is missing in one of the two"):
        take_over(model, state=other.state_dict())
    assert same(state(model), plain)
