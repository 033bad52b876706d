import copy

import pytest
import torch
from torch import nn

import prunewald as pw


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))


def trained(optimizer=torch.optim.Adam, steps=30, **choice):
    model = network()
    optimizer = optimizer(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, **choice)
    step(model, optimizer, steps)
    return pruner


def step(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 10)).square().sum().backward()
        optimizer.step()


def zeros(pruner):
    return {name: int((pruner.model.get_parameter(name) == 0).sum()) for name in pruner.masks}


# ---- counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0, 0.0, 0.333, 0.5, 0.9, 0.999999])
def test_layer_scope_prunes_python_s_round_of_each_and_keeps_one(sparsity):
    pruner = trained()
    pruner.prune(sparsity)
    assert zeros(pruner) == {n: min(round(sparsity * m.numel()), m.numel() - 1) for n, m in pruner.masks.items()}


@pytest.mark.parametrize("sparsity", [0.0, 0.333, 0.5, 0.9])
def test_global_scope_prunes_the_total_exactly(sparsity):
    pruner = trained(scope="global")
    pruner.prune(sparsity)
    assert sum(zeros(pruner).values()) == round(sparsity * 660)


def test_sparsity_is_of_the_total_not_of_the_rest():
    pruner = trained(criterion="magnitude")
    pruner.prune(0.5)
    pruner.prune(0.75)
    assert zeros(pruner) == {"0.weight": 150, "2.weight": 300, "4.weight": 45}
    assert pruner.sparsity == 0.75


def test_pruning_in_steps_without_training_is_pruning_at_once():
    a, b = trained(criterion="magnitude"), trained(criterion="magnitude")
    for sparsity in (0.2, 0.2, 0.5, 0.9):
        a.prune(sparsity)
    b.prune(0.9)
    assert all(torch.equal(a.masks[n], m) for n, m in b.masks.items())


def test_global_magnitude_is_one_threshold_for_all():
    pruner = trained(criterion="magnitude", scope="global")
    before = torch.cat([pruner.model.get_parameter(n).detach().flatten().abs() for n in pruner.masks])
    pruner.prune(0.7)
    kept = torch.cat([m.flatten() for m in pruner.masks.values()])
    assert before[kept].min() >= before[~kept].max()


def test_global_scope_reports_what_it_emptied():
    pruner = trained(criterion="magnitude", scope="global")
    with torch.no_grad():
        pruner.model[4].weight.mul_(1e-6)
    report = pruner.prune(0.5)
    assert report.emptied == ["4.weight"]
    assert "emptied: 4.weight" in str(report)


def test_a_dict_prunes_the_named_layers_only():
    pruner = trained()
    pruner.prune({"0": 0.5, "4.weight": 0.9})
    assert zeros(pruner) == {"0.weight": 100, "2.weight": 0, "4.weight": 54}
    pruner.prune({"2*": 0.25})
    assert zeros(pruner) == {"0.weight": 100, "2.weight": 100, "4.weight": 54}


def test_below_a_threshold():
    pruner = trained(criterion="magnitude")
    before = {n: pruner.model.get_parameter(n).detach().clone() for n in pruner.masks}
    report = pruner.prune(threshold=0.1)
    assert all(torch.equal(m, before[n].abs() >= 0.1) for n, m in pruner.masks.items())
    assert all(row.threshold >= 0.1 for row in report.rows)


# ---- parts -------------------------------------------------------------------------------------------------------


def test_one_feature_map_and_any_slice():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 8))
    mask = torch.rand(8, 16) > 0.5
    pruner = pw.Pruner(model, targets=["0.weight[1]", ("2.weight", mask)], criterion="magnitude")
    before = [p.detach().clone() for p in model.parameters()]
    report = pruner.prune(0.5)
    assert [row.name for row in report.rows] == ["0.weight[1]", f"2.weight[{int(mask.sum())} places]"]
    dead = model[0].weight == 0
    assert int(dead[1].sum()) == round(27 / 2)
    assert int(dead.sum()) == int(dead[1].sum())
    assert torch.equal(model[2].weight[~mask], before[2][~mask])
    assert int((model[2].weight == 0).sum()) == round(int(mask.sum()) / 2)
    pruner.prune({"0.weight[1]": 0.9})
    assert int((model[0].weight == 0).sum()) == round(27 * 0.9)


def test_lambda_relative_to_layer_part_and_model():
    model = network()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    rows = model[0].weight.detach()[:5]
    everything = torch.cat([rows.flatten(), model[2].weight.detach().flatten()])
    for group, values in {"layer": model[0].weight.detach(), "part": rows, "model": everything}.items():
        criterion = pw.MagnitudeUncertainty(lam=0.3, relative_to=group)
        pruner = pw.Pruner(model, criterion=criterion, uncertainty=sigma, targets=["0.weight[:5]", "2"])
        expected = pw.tau(rows, sigma["0.weight"][:5], 0.3 * float(values.double().std()))
        torch.testing.assert_close(pruner.scores()["0.weight"][:5], expected)


def test_the_spread_is_that_of_the_survivors():
    model = network()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    pruner = pw.Pruner(model, criterion=pw.MagnitudeUncertainty(lam=0.3), uncertainty=sigma)
    pruner.prune(0.5)
    kept, weight = pruner.masks["2.weight"], model[2].weight.detach()
    expected = pw.tau(weight, sigma["2.weight"], 0.3 * float(weight[kept].double().std()))
    torch.testing.assert_close(pruner.scores()["2.weight"][kept], expected[kept])
    assert (pruner.scores()["2.weight"][~kept] == -torch.inf).all()


def test_the_spread_of_one_weight_is_an_error_that_says_so():
    model = network()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters()}
    criterion = pw.MagnitudeUncertainty(relative_to="slice")
    targets = ["0.weight[0, 0]", "2"]
    pruner = pw.Pruner(model, criterion=criterion, uncertainty=sigma, targets=targets, scope="global")
    with pytest.raises(ValueError, match=r"spread of '0.weight\[0, 0\]', which has 1 weight.*relative_to='model'"):
        pruner.prune(0.5)
    advised = pw.MagnitudeUncertainty(relative_to="model")
    pw.Pruner(model, criterion=advised, uncertainty=sigma, targets=targets, scope="global").prune(0.5)


def test_biases_embeddings_and_norms_on_request():
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    pruner = pw.Pruner(model, targets=["*.bias", nn.Embedding, nn.LayerNorm], criterion="magnitude")
    assert list(pruner.masks) == ["0.weight", "1.bias", "2.weight", "2.bias"]
    pruner.prune(0.5)
    assert zeros(pruner)["0.weight"] == 12


# ---- defaults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.AdamW])
def test_attached_after_training_the_default_uses_the_second_moment(optimizer):
    model = network()
    optimizer = optimizer(model.parameters(), lr=1e-3)
    step(model, optimizer, 20)
    expected = pw.Pruner(model, optimizer, criterion="magnitude-uncertainty", uncertainty="second-moment").scores()
    pruner = pw.Pruner(model, optimizer)
    report = pruner.prune(0.9)
    assert "MagnitudeUncertainty(), sigma from SecondMoment()" in str(report)
    assert not report.notes
    for name, mask in pruner.masks.items():
        assert expected[name][mask].min() >= expected[name][~mask].max()


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_without_optimizer_state_the_default_is_magnitude_and_the_first_line_says_so(optimizer):
    model = network()
    optimizer = optimizer and optimizer(model.parameters(), lr=1e-3)
    if optimizer:
        step(model, optimizer, 3)
    report = pw.Pruner(model, optimizer).prune(0.9)
    assert str(report).startswith("criterion: magnitude, since ")
    assert ("SGD holds no second moment" if optimizer else "there is no optimizer") in str(report)
    assert report.criterion == "Magnitude()"


def test_an_uncertainty_alone_means_magnitude_and_uncertainty():
    pruner = trained(uncertainty=pw.PseudoBootstrap(last=10))
    assert "MagnitudeUncertainty(), sigma from PseudoBootstrap(last=10)" in str(pruner.prune(0.5))


def test_a_dict_of_sigma():
    model = network()
    sigma = {n: torch.rand_like(p) + 0.1 for n, p in model.named_parameters() if p.dim() > 1}
    z = model[0].weight.detach().abs() / sigma["0.weight"]
    pruner = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma)
    pruner.prune(0.5)
    kept = pruner.masks["0.weight"]
    assert z[kept].min() >= z[~kept].max()


def test_an_infinite_sigma_is_pruned_first():
    model = network()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    sigma["0.weight"][3] = torch.inf
    pruner = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma)
    pruner.prune(0.05)
    assert torch.equal(~pruner.masks["0.weight"], (torch.arange(20) == 3)[:, None].expand(20, 10))


# ---- what is refused, with the model untouched -------------------------------------------------------------------


def refused(pruner, message, *args, **kwargs):
    before = copy.deepcopy(pruner.model.state_dict())
    with pytest.raises(ValueError, match=message):
        pruner.prune(*args, **kwargs)
    assert all(torch.equal(before[n].nan_to_num(7), t.nan_to_num(7)) for n, t in pruner.model.state_dict().items())


@pytest.mark.parametrize("sparsity", [-0.1, 1, 1.0, 90, float("nan"), "0.9", True])
def test_sparsity_out_of_range(sparsity):
    refused(trained(), f"not {sparsity!r}", sparsity)
    refused(trained(), f"for '0' must be .* not {sparsity!r}", {"0": sparsity})


def test_neither_or_both_of_sparsity_and_threshold():
    refused(trained(), "was given nothing: give one of")
    refused(trained(), "was given sparsity=0.5, threshold=1.0: give one of", 0.5, threshold=1.0)
    refused(trained(), "threshold must be a finite number", threshold=float("nan"))


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_less_than_is_pruned_already(scope):
    pruner = trained(scope=scope, criterion="magnitude")
    pruner.prune(0.8)
    refused(pruner, "sparsity 0.5 would bring weights of .* back: .*are pruned already", 0.5)


def test_unknown_layers_in_a_dict():
    refused(trained(), "sparsity for '7': no target of that name", {"7": 0.5})
    refused(trained(), "names .* a second time", {"0": 0.5, "0.weight": 0.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(value):
    pruner = trained()
    with torch.no_grad():
        pruner.model[2].weight[1, 1] = value
    refused(pruner, "'2.weight' has NaN or infinite weights", 0.5)


def test_sigmas_that_do_not_fit():
    model = network()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}

    def pruner(**changed):
        given = {n: s for n, s in (sigma | changed).items() if s is not None}
        return pw.Pruner(model, criterion=pw.Wald(), uncertainty=given)

    refused(pruner(**{"2.weight": None}), "no sigma for '2.weight'", 0.5)
    refused(pruner(**{"2.weight": torch.ones(3)}), r"'2.weight' has shape \(3,\), the parameter has \(20, 20\)", 0.5)
    refused(pruner(**{"2.weight": torch.full((20, 20), -1.0)}), "'2.weight' has NaN or negative", 0.5)
    refused(pruner(**{"2.weight": torch.full((20, 20), torch.nan)}), "'2.weight' has NaN or negative", 0.5)


@pytest.mark.parametrize("uncertainty", [None, pw.PseudoBootstrap(last=5), pw.SecondMoment()])
def test_a_tensor_that_never_trained(uncertainty):
    def pruner(model, params):
        optimizer = torch.optim.Adam(params)
        made = pw.Pruner(model, optimizer, criterion=pw.Wald(), uncertainty=uncertainty)
        step(model, optimizer, 6)
        return made

    model = network()
    model[0].weight.requires_grad_(False)
    refused(pruner(model, model.parameters()), "'0.weight' does not require gradients", 0.5)
    model = network()
    refused(pruner(model, model[2:].parameters()), "'0.weight' was in no optimizer", 0.5)
    model = network()
    model[0].weight.register_hook(torch.zeros_like)
    refused(pruner(model, model.parameters()), "'0.weight' got no gradient", 0.5)


def test_magnitude_prunes_a_tensor_that_never_trained():
    model = network().requires_grad_(False)
    pw.Pruner(model, criterion="magnitude").prune(0.5)
    assert int((model[0].weight == 0).sum()) == 100


def test_a_criterion_that_returns_nonsense():
    class Bad(pw.Magnitude):
        def __call__(self, stats):
            return self.give(stats.weight)

    class Short(Bad):
        give = staticmethod(lambda weight: weight.sum(0))

    class Nan(Bad):
        give = staticmethod(lambda weight: weight * torch.nan)

    refused(trained(criterion=Short()), "gave scores of shape", 0.5)
    refused(trained(criterion=Nan()), "gave a NaN score for '0.weight'", 0.5)


def test_a_replaced_parameter():
    pruner = trained()
    pruner.model[0].weight = nn.Parameter(torch.ones(20, 10))
    refused(pruner, "'0.weight' is not the parameter it was", 0.5)


def test_after_detach():
    pruner = trained()
    pruner.detach()
    refused(pruner, "was detached", 0.5)


def test_something_else_than_an_optimizer():
    with pytest.raises(TypeError, match="optimizer must be"):
        pw.Pruner(network(), ["adam"])


# ---- the report --------------------------------------------------------------------------------------------------


def test_the_report_in_numbers():
    pruner = trained()
    with torch.no_grad():
        pruner.model[0].weight[0] = 0.0
    report = pruner.prune(0.9)
    for row in report.rows:
        mask = pruner.masks[row.name]
        assert row.shape == tuple(mask.shape)
        assert row.weights == mask.numel()
        assert row.kept == int(mask.sum())
        assert 0 <= row.overlap <= 1
        assert -1 <= row.correlation <= 1
        assert row.threshold > 0
    assert report.kept == sum(row.kept for row in report.rows)
    assert report.sparsity == pytest.approx(0.9, abs=0.01)


def test_overlap_and_correlation_with_magnitude_by_hand():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    sigma = {"weight": torch.tensor([[0.1, 1.0, 1.0, 8.0]])}
    report = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma).prune(0.5)
    (row,) = report.rows
    assert row.kept == 2
    assert row.threshold == 3.0
    assert row.overlap == 0.5  # Wald keeps 1 and 3, magnitude 3 and 4
    assert row.correlation == pytest.approx(-0.8)


def test_magnitude_agrees_with_itself():
    rows = trained(criterion="magnitude").prune(0.5).rows
    assert all(row.overlap == row.correlation == 1 and row.dead is None for row in rows)


def test_the_report_as_text_data_and_frame():
    import json

    report = trained().prune(0.5)
    data = json.loads(json.dumps(report.to_dict()))
    assert [layer["name"] for layer in data["layers"]] == ["0.weight", "2.weight", "4.weight"]
    assert data["total"] == {"weights": 660, "kept": 330, "sparsity": 0.5}
    frame = report.to_frame()
    assert frame.loc["2.weight", "kept"] == 200
    text = str(report).splitlines()
    assert text[1].split()[:6] == ["layer", "shape", "weights", "kept", "sparsity", "threshold"]
    assert text[-1].split() == ["total", "660", "330", "50.00%"]


def test_a_dry_run_says_so_and_changes_nothing():
    pruner = trained()
    report = pruner.prune(0.5, dry_run=True)
    assert str(report).startswith("would prune by")
    assert pruner.sparsity == 0


def test_two_pruners_on_two_parts_of_one_model():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    a = pw.Pruner(model, optimizer, targets="0", criterion="magnitude")
    b = pw.Pruner(model, optimizer, targets=["2", "4"], uncertainty=pw.PseudoBootstrap(last=5))
    step(model, optimizer, 8)
    a.prune(0.5)
    b.prune(0.9)
    step(model, optimizer, 3)
    assert [int((model[i].weight == 0).sum()) for i in (0, 2, 4)] == [100, 360, 54]


def test_repr_says_what_it_is():
    assert repr(trained(criterion="wald")).startswith("Pruner(Sequential, criterion=Wald(")


def test_a_plain_function_is_a_criterion():
    def squared(stats):
        return stats.weight.square()

    a, b = trained(criterion=squared), trained(criterion="magnitude")
    assert "pruned by squared, scope layer" in str(a.prune(0.5))
    b.prune(0.5)
    assert all(torch.equal(mask, b.masks[name]) for name, mask in a.masks.items())


def test_an_optimizer_that_steps_no_target_is_not_asked_for_its_sigma():
    model, other = network(), nn.Linear(3, 3)
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(other.parameters(), lr=0.1)]
    pruner = pw.Pruner(model, optimizers, uncertainty=pw.PseudoBootstrap(last=5, total_steps=8))
    step(model, optimizers[0], 8)
    assert pruner.prune(0.5).sparsity == 0.5
