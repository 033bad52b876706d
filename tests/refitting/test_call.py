"""The call: what it does to a model and its pruner, and what it refuses."""

import copy
import math

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.pruning.refitted import Refit
from tests.refitting.models import batches, cnn, mlp, pruned, ridge_fit, split

pytestmark = pytest.mark.usefixtures("one_thread")


def states(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def distance(model, dense, x):
    with torch.no_grad():
        return float((model(x) - dense(x)).square().sum() / dense(x).square().sum())


@pytest.mark.parametrize("inputs", ["pruned", "dense"])
def test_every_layer_is_the_restricted_estimate_on_its_inputs(inputs):
    """Layer by layer, against least squares written out on raw rows."""
    model, data = mlp(), batches(16)
    pruner, dense = pruned(model, 0.5)
    before, masks = copy.deepcopy(model), pruner.masks
    pw.refit(pruner, data, dense=dense, inputs=inputs, ridges=(0.01,))
    (x, _), own, full = split(torch.cat(data)), before, dense
    own_x = full_x = x
    for at in (0, 2, 4):
        layer, goal = own[at], full[at]
        met = full_x if inputs == "dense" else own_x
        weight, bias = ridge_fit(
            met, goal(full_x).detach(), layer.weight.data, layer.bias.data, masks[f"{at}.weight"], 0.01
        )
        torch.testing.assert_close(model[at].weight.data, weight, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(model[at].bias.data, bias, atol=1e-4, rtol=1e-3)
        own_x, full_x = torch.relu(model[at](own_x)).detach(), torch.relu(goal(full_x)).detach()


@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (16,)), (cnn, (3, 8, 8))], ids=["linear", "convolutions and a BatchNorm"]
)
def test_it_comes_closer_to_the_dense_model_on_other_examples_and_the_zeros_stay(make, shape):
    model = make()
    pruner, dense = pruned(model, 0.6)
    masks, sparsity, before = pruner.masks, pruner.sparsity, copy.deepcopy(model)
    report = pw.refit(pruner, batches(*shape), dense=dense)
    (other,) = batches(*shape, count=1, seed=5)
    assert distance(model, dense, other) < 0.5 * distance(before, dense, other)
    assert pruner.sparsity == sparsity
    for name, mask in masks.items():
        param = model.get_parameter(name)
        assert torch.equal(pruner.masks[name], mask)
        assert not param[~mask].any()
        assert not torch.signbit(param[~mask]).any()
    model.eval()(other)  # warnings are errors: nothing has written to pruned weights
    assert pruner.report is not None
    assert pruner.report.refit == report.refit


def test_pruning_and_refitting_in_one_call_is_the_same_as_one_after_the_other():
    one, other = mlp(), mlp()
    data = batches(16)
    report = pw.Pruner(one).prune(0.6, refit=data)
    pruner, dense = pruned(other, 0.6)
    again = pw.refit(pruner, data, dense=dense)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert report.rows == again.rows
    assert report.refit.layers == again.refit.layers
    assert (report.refit.before, report.refit.after) == (again.refit.before, again.refit.after)


def test_what_the_report_says_is_what_happened():
    model, data = mlp(), batches(16)
    pruner, dense = pruned(model, 0.6)
    before = copy.deepcopy(model)
    report = pw.refit(pruner, data, dense=dense)
    refit = report.refit
    fitted, held = split(torch.cat(data))
    assert (refit.examples, refit.held) == (len(fitted), len(held)) == (240, 60)
    assert [row.name for row in refit.layers] == ["0.weight", "2.weight", "4.weight"]
    assert refit.before == pytest.approx(distance(before, dense, held), rel=1e-4)
    assert refit.after == pytest.approx(distance(model, dense, held), rel=1e-4)
    first = refit.layers[0]
    assert first.positions == 240
    assert first.before == pytest.approx(distance(before[0], dense[0], held), rel=1e-4)
    assert first.after == pytest.approx(distance(model[0], dense[0], held), rel=1e-4)
    assert first.changed
    for shown in (str(report), report._repr_html_()):
        assert "needs other ones" in shown
        assert f"{first.after:.4g}" in shown
    assert Refit.from_dict(refit.to_dict()) == refit
    assert pw.Report.from_dict({**vars(report), "rows": [vars(row) for row in report.rows], "refit": refit.to_dict()})


def test_the_loss_judges_the_whole():
    model, x = mlp(), batches(16)
    pruner, dense = pruned(model, 0.6)
    data = [(one, dense(one).argmax(1)) for one in x]
    report = pw.refit(pruner, data, dense=dense, loss="cross_entropy")
    _, held = split(torch.cat(x))
    expected = nn.functional.cross_entropy(model(held), dense(held).argmax(1)).item()
    assert report.refit.after == pytest.approx(expected, rel=1e-4)
    assert report.refit.judged == "loss"
    with pytest.raises(ValueError, match="targets"):
        pw.refit(pruner, x, dense=dense, loss="cross_entropy")


def test_where_the_whole_is_worse_it_goes_back():
    """A loss that only the weights as they were make small."""
    model, x = mlp(), batches(16)
    pruner, dense = pruned(model, 0.6)
    before, sought = states(model), copy.deepcopy(model)
    data = [(one, sought(one).detach()) for one in x]
    report = pw.refit(pruner, data, dense=dense, loss="squared_error")
    assert report.refit.step == 0
    assert report.refit.after == report.refit.before == pytest.approx(0, abs=1e-10)
    assert same(model, before)
    assert "all weights are as they were" in str(report)


def test_part_of_the_way():
    """A loss that is least half way: the weights go there."""
    model, x = mlp(), batches(16)
    pruner, dense = pruned(model, 0.6)
    all_of_it = copy.deepcopy(model)
    twin = pw.Pruner(all_of_it)
    twin.hold_zeros()
    pw.refit(twin, x, dense=dense, ridges=(1.0,))
    half = copy.deepcopy(model)
    with torch.no_grad():
        for one, other in zip(half.parameters(), all_of_it.parameters(), strict=True):
            one.lerp_(other, 0.5)
    data = [(one, half(one).detach()) for one in x]
    report = pw.refit(pruner, data, dense=dense, loss="squared_error", ridges=(1.0,))
    if report.refit.step != 1:
        assert report.refit.step == 0.5
    assert report.refit.after <= report.refit.before


def test_the_optimizer_keeps_its_state_and_training_goes_on():
    model, data = mlp(), batches(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer)
    for x in data:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dense = copy.deepcopy(model)
    pruner.prune(0.6)
    state = copy.deepcopy(optimizer.state_dict()["state"])
    pw.refit(pruner, data, dense=dense)
    for key, held in optimizer.state_dict()["state"].items():
        assert all(torch.equal(torch.as_tensor(held[name]), torch.as_tensor(state[key][name])) for name in held)
    for x in data:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert pruner.sparsity == pytest.approx(0.6, abs=1e-3)


@pytest.mark.parametrize(
    "choices",
    [
        {"pattern": pw.KeepNOfM(2, 4)},
        {"pattern": pw.Filter()},
        {"pattern": pw.Block(2, 2)},
        {"scope": "global"},
        {"scope": "row"},
        {"criterion": "random"},
    ],
    ids=str,
)
def test_every_pattern_and_allocation(choices):
    model = mlp()
    pruner, dense = pruned(model, None if isinstance(choices.get("pattern"), pw.KeepNOfM) else 0.5, **choices)
    masks = pruner.masks
    report = pw.refit(pruner, batches(16), dense=dense)
    assert report.refit.after < report.refit.before
    assert all(torch.equal(model.get_parameter(name) != 0, mask) for name, mask in masks.items())


def test_the_bias_of_a_pruned_filter_stays_zero_and_none_is_created():
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4, bias=False))
    pruner, dense = pruned(model, 0.5, pattern=pw.Filter(), scope="layer")
    empty = ~pruner.masks["0.weight"].any(1)
    with torch.no_grad():
        model[0].bias[empty] = 0
    pw.refit(pruner, batches(16), dense=dense)
    assert empty.any()
    assert not model[0].bias[empty].any()
    assert model[2].bias is None


def test_a_bias_that_is_pruned_by_itself_stays_zero_and_the_rest_is_fitted_without_it():
    model = mlp()
    pruner, dense = pruned(model, {"0.weight": 0.5, "0.bias": 0.5}, targets=["0.weight", "0.bias"], scope="layer")
    gone = ~pruner.masks["0.bias"]
    report = pw.refit(pruner, batches(16), dense=dense)
    assert gone.any()
    assert not model[0].bias[gone].any()
    assert report.refit.layers[0].after < report.refit.layers[0].before


# ---- the dense model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["model", "state", "packed", "torch", "safetensors"])
def test_the_dense_model_in_every_form(form, tmp_path):
    model, other, data = mlp(), mlp(), batches(16)
    pruner, dense = pruned(model)
    twin, _ = pruned(other)
    given = {"model": dense, "state": dense.state_dict(), "packed": tmp_path / "dense.pw", "torch": tmp_path / "a.pt"}
    given["safetensors"] = tmp_path / "dense.safetensors"
    pw.save(dense, given["packed"])
    torch.save(dense.state_dict(), given["torch"])
    from safetensors.torch import save_file

    save_file(dense.state_dict(), given["safetensors"])
    pw.refit(pruner, data, dense=dense)
    pw.refit(twin, data, dense=given[form])
    assert same(other, states(model))


def test_several_levels_share_one_dense_model():
    model, data = mlp(), batches(16)
    pruner, dense = pruned(model, 0.3)
    kept = states(dense)
    for level in (0.3, 0.6):
        pruner.prune(level) if level > pruner.sparsity else None
        report = pw.refit(pruner, data, dense=dense)
        assert report.refit.after < report.refit.before
    assert same(dense, kept)


def test_dense_models_that_do_not_fit():
    model, data = mlp(), batches(16)
    pruner, dense = pruned(model)
    before, state = states(model), dense.state_dict()
    short = {name: tensor for name, tensor in state.items() if name != "2.bias"}
    for wrong, said in [
        (None, "dense=None.*state_dict"),
        (model, "dense=Sequential.*deepcopy"),
        (copy.deepcopy(model), "dense=Sequential.*no weight"),
        (short, "no '2.bias'"),
        ({**state, "2.bias": torch.zeros(3)}, r"'2.bias' has shape \(3,\), not \(24,\)"),
    ]:
        with pytest.raises(ValueError, match=said):
            pw.refit(pruner, data, dense=wrong)
    for wrong in (3, {"0.weight": 1}):
        with pytest.raises(TypeError, match="dense="):
            pw.refit(pruner, data, dense=wrong)
    assert same(model, before)


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_data_that_will_not_do():
    model = mlp()
    pruner, dense = pruned(model)
    before, masks = states(model), pruner.masks
    for wrong, kind, said in [
        ([], ValueError, "gave no sample"),
        (iter(batches(16)), TypeError, "only once"),
        (3, TypeError, "data=3"),
        (batches(16, count=1, size=1), ValueError, "1 examples.*held_back=0.2"),
        (batches(16)[0], TypeError, "one batch"),
        ([torch.full((50, 16), torch.nan)], ValueError, "'0.weight'.*NaN"),
        (batches(15), RuntimeError, "shapes"),
    ]:
        with pytest.raises(kind, match=said):
            pw.refit(pruner, wrong, dense=dense)
    assert same(model, before)
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())


def test_a_loss_that_is_none():
    model, data = mlp(), [(x, x) for x in batches(16)]
    pruner, dense = pruned(model)
    before = states(model)
    with pytest.raises(ValueError, match="loss on the examples held back is nan"):
        pw.refit(pruner, data, dense=dense, loss=lambda found, targets: found.mean() * torch.nan)
    assert same(model, before)


def test_options_that_will_not_do():
    pruner, dense = pruned(mlp())
    for wrong, said in [
        ({"held_back": 0}, "held_back=0"),
        ({"ridges": ()}, r"ridges=\(\)"),
        ({"ridges": (-1,)}, "ridges=-1"),
        ({"inputs": "both"}, "inputs='both'"),
        ({"limit": 0}, "limit=0"),
        ({"ignore": "7"}, "ignore='7'"),
        ({"loss": "mine"}, "loss 'mine'"),
    ]:
        with pytest.raises(ValueError, match=said):
            pw.refit(pruner, batches(16), dense=dense, **wrong)


def test_a_model_that_is_pruned_already_needs_its_dense_one():
    model = mlp()
    pruner, _ = pruned(model, 0.5)
    before, masks = states(model), pruner.masks
    with pytest.raises(ValueError, match=r"prune first, then pw.refit"):
        pruner.prune(0.7, refit=batches(16))
    assert same(model, before)
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())


def test_a_refit_that_fails_takes_the_pruning_back():
    model, data = mlp(), batches(16)
    data[-1][3, 3] = torch.inf
    before = states(model)
    pruner = pw.Pruner(model)
    with pytest.raises(ValueError, match=r"'0.weight'.*infinite"):
        pruner.prune(0.5, refit=data)
    assert same(model, before)
    assert pruner.sparsity == 0
    assert not pruner.holding


def test_an_error_on_the_way_leaves_the_model_as_it_was():
    model, data = cnn(), batches(3, 8, 8)
    pruner, dense = pruned(model)
    before = states(model)
    calls = 0

    def fail(*_):
        nonlocal calls
        calls += 1
        if calls == 30:  # the layers before it are refitted
            raise ArithmeticError("30")

    model[9].register_forward_hook(fail)
    with pytest.raises(ArithmeticError, match="30"):
        pw.refit(pruner, data, dense=dense)
    assert same(model, before)
    assert all(module.training for module in model.modules())


def test_no_refit_without_pruning():
    with pytest.raises(ValueError, match="dry_run"):
        pw.Pruner(mlp()).prune(0.5, refit=batches(16), dry_run=True)


def test_pruners_that_cannot_be_refitted():
    model = mlp()
    pruner, dense = pruned(model)
    with pytest.raises(TypeError, match="pruner="):
        pw.refit(model, batches(16), dense=dense)
    pruner.detach()
    with pytest.raises(ValueError, match="detached"):
        pw.refit(pruner, batches(16), dense=dense)
    surgery = pw.Surgery(model, torch.optim.SGD(model.parameters(), lr=0.01), sparsity=0.5, criterion="magnitude")
    for x in batches(16):
        model(x).square().mean().backward()
        surgery.optimizers[0].step()
    with pytest.raises(ValueError, match="Dark.*finish"):
        pw.refit(surgery, batches(16), dense=dense)


def test_quantised_weights_are_refused():
    model = mlp()
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.01))
    pruner.prune(0.5)
    pw.quantisation.SharedValues(pruner, 4)
    with pytest.raises(ValueError, match=r"SharedValues.*detach"):
        pw.refit(pruner, batches(16), dense=dense)


def test_masks_from_elsewhere():
    model, data = mlp(), batches(16)
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model)
    pruner.set_masks({name: torch.rand_like(model.get_parameter(name)) < 0.5 for name in pruner.masks})
    report = pw.refit(pruner, data, dense=dense)
    assert report.refit.after < report.refit.before
    assert math.isclose(report.sparsity, pruner.sparsity)


def test_a_layer_that_is_pruned_in_part_is_refitted_as_a_whole_and_the_report_says_so():
    model, data = mlp(), batches(16)
    before = model[2].weight.detach().clone()
    pruner = pw.Pruner(model, targets=["0", "2.weight[:4]"], criterion="magnitude")
    report = pruner.prune(0.7, refit=data)
    assert any("'2.weight' is a target in part" in note for note in report.refit.notes)
    assert not any("'0.weight'" in note for note in report.refit.notes)
    assert not torch.equal(model[2].weight[4:].detach(), before[4:])
    assert bool(model[2].weight[4:].all())


def test_a_pruner_that_reads_inputs_does_not_read_those_of_a_refit():
    model, data = mlp(), batches(16)
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model, criterion="wanda")
    pruner.observe(data)
    pruner.prune(0.6)
    report = pw.refit(pruner, data, dense=dense)
    assert report.refit.after < report.refit.before
    with pytest.raises(ValueError, match="has no statistic yet"):
        pruner.prune(0.8, dry_run=True)
