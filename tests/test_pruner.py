"""How many weights a Pruner prunes, and which: by sparsity, by layer, by threshold, in slices."""

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"0.weight": 120, "2.weight": 400, "4.weight": 80}


def zeros(pruner):
    return {name: int((pruner.model.get_parameter(name) == 0).sum()) for name in pruner.masks}


# ---- counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0, 0.0, 0.333, 0.5, 0.9, 0.999999])
def test_layer_scope_prunes_python_s_round_of_each_and_keeps_one(sparsity):
    pruner = trained_pruner(scope="layer")
    pruner.prune(sparsity)
    assert zeros(pruner) == {name: min(round(sparsity * size), size - 1) for name, size in SIZES.items()}


@pytest.mark.parametrize("sparsity", [0.0, 0.333, 0.5, 0.9])
def test_global_scope_prunes_the_total_exactly(sparsity):
    pruner = trained_pruner(scope="global")
    pruner.prune(sparsity)
    assert sum(zeros(pruner).values()) == round(sparsity * 600)


def test_sparsity_is_of_the_total_not_of_the_rest():
    pruner = trained_pruner(criterion="magnitude", scope="layer")
    pruner.prune(0.5)
    pruner.prune(0.75)
    assert zeros(pruner) == {"0.weight": 90, "2.weight": 300, "4.weight": 60}
    assert pruner.sparsity == 0.75


def test_pruning_in_steps_without_training_is_pruning_at_once():
    a, b = trained_pruner(criterion="magnitude"), trained_pruner(criterion="magnitude")
    for sparsity in (0.2, 0.2, 0.5, 0.9):
        a.prune(sparsity)
    b.prune(0.9)
    assert all(torch.equal(a.masks[n], m) for n, m in b.masks.items())


def test_global_magnitude_is_one_threshold_for_all():
    pruner = trained_pruner(criterion="magnitude", scope="global")
    before = torch.cat([pruner.model.get_parameter(n).detach().flatten().abs() for n in pruner.masks])
    pruner.prune(0.7)
    kept = torch.cat([m.flatten() for m in pruner.masks.values()])
    assert before[kept].min() >= before[~kept].max()


def test_scores_of_another_scope_are_those_that_a_pruner_with_it_has():
    pruner = trained_pruner(scope="layer")
    other = pw.Pruner(pruner.model, pruner.optimizers, scope="global")
    own, found, expected = pruner.scores(), pruner.scores(scope="global"), other.scores()
    assert all(
        torch.equal(found[name], score) and not torch.equal(own[name], score) for name, score in expected.items()
    )
    assert found.criterion == pw.MagnitudeUncertainty(relative_to="targets")
    assert found.uncertainty == pw.SecondMoment()
    assert any("compares layers" in note for note in found.notes)
    assert pruner.scope != other.scope
    with pytest.raises(ValueError, match="unknown scope 'everything'"):
        pruner.scores(scope="everything")


def test_a_dict_prunes_the_named_layers_only():
    pruner = trained_pruner()
    pruner.prune({"0": 0.5, "4.weight": 0.9})
    assert zeros(pruner) == {"0.weight": 60, "2.weight": 0, "4.weight": 72}
    pruner.prune({"2*": 0.25})
    assert zeros(pruner) == {"0.weight": 60, "2.weight": 100, "4.weight": 72}


def test_below_a_threshold():
    pruner = trained_pruner(criterion="magnitude")
    before = {n: pruner.model.get_parameter(n).detach().clone() for n in pruner.masks}
    report = pruner.prune(threshold=0.1)
    assert all(torch.equal(m, before[n].abs() >= 0.1) for n, m in pruner.masks.items())
    assert all(row.threshold >= 0.1 for row in report.rows)


def test_a_dry_run_changes_nothing():
    pruner = trained_pruner()
    report = pruner.prune(0.5, dry_run=True)
    assert report.dry_run
    assert report.sparsity == 0.5
    assert pruner.sparsity == 0
    assert pruner.report is None


# ---- targets -----------------------------------------------------------------------------------------------------


def test_one_feature_map_and_any_slice():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 8))
    mask = torch.rand(8, 16) > 0.5
    pruner = pw.Pruner(model, targets=["0.weight[1]", ("2.weight", mask)], criterion="magnitude", scope="layer")
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


def test_biases_embeddings_and_norms_on_request():
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    pruner = pw.Pruner(model, targets=["*.bias", nn.Embedding, nn.LayerNorm], criterion="magnitude", scope="layer")
    assert list(pruner.masks) == ["0.weight", "1.bias", "2.weight", "2.bias"]
    pruner.prune(0.5)
    assert zeros(pruner)["0.weight"] == 12


def test_two_pruners_on_two_parts_of_one_model():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters())
    a = pw.Pruner(model, optimizer, targets="0", criterion="magnitude")
    b = pw.Pruner(model, optimizer, targets=["2", "4"], uncertainty=pw.PseudoBootstrap(last=5), scope="layer")
    train(model, optimizer, 8)
    a.prune(0.5)
    b.prune(0.9)
    train(model, optimizer, 3, first=8)
    assert [int((model[i].weight == 0).sum()) for i in (0, 2, 4)] == [60, 360, 72]


def test_an_optimizer_that_steps_no_target_is_not_asked_for_its_sigma():
    model, other = wide(), nn.Linear(3, 3)
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(other.parameters(), lr=0.1)]
    pruner = pw.Pruner(model, optimizers, uncertainty=pw.PseudoBootstrap(last=5, total_steps=8))
    train(model, optimizers[0], 8)
    assert pruner.prune(0.5).sparsity == 0.5


# ---- sigmas and scores of the user's own -------------------------------------------------------------------------


def test_a_dict_of_sigma():
    model = wide()
    sigma = {n: torch.rand_like(p) + 0.1 for n, p in model.named_parameters() if p.dim() > 1}
    z = model[0].weight.detach().abs() / sigma["0.weight"]
    pruner = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma)
    pruner.prune(0.5)
    kept = pruner.masks["0.weight"]
    assert z[kept].min() >= z[~kept].max()


def test_an_infinite_sigma_is_pruned_first():
    model = wide()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    sigma["0.weight"][3] = torch.inf
    pruner = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma, scope="layer")
    pruner.prune(0.05)
    assert torch.equal(~pruner.masks["0.weight"], (torch.arange(20) == 3)[:, None].expand(20, 6))


def test_a_plain_function_is_a_criterion():
    def squared(stats):
        return stats.weight.square()

    a, b = trained_pruner(criterion=squared), trained_pruner(criterion="magnitude")
    assert a.prune(0.5).criterion == "squared"
    b.prune(0.5)
    assert all(torch.equal(mask, b.masks[name]) for name, mask in a.masks.items())


def test_magnitude_prunes_a_tensor_that_never_trained():
    model = wide().requires_grad_(False)
    pw.Pruner(model, criterion="magnitude", scope="layer").prune(0.5)
    assert int((model[0].weight == 0).sum()) == 60


# ---- shown -------------------------------------------------------------------------------------------------------


def test_repr_says_what_it_is():
    pruner = trained_pruner(criterion="wald")
    assert repr(pruner).startswith("Pruner(Sequential, criterion=Wald(")
    assert repr(pruner).endswith("3 targets, 0.00% pruned)")


def test_a_notebook_shows_the_pruner_and_its_report():
    pruner = trained_pruner(criterion=lambda stats: stats.weight.abs())
    assert "&lt;lambda&gt;" in pruner._repr_html_()
    assert "<table" not in pruner._repr_html_()
    report = pruner.prune(0.5)
    assert pruner._repr_html_().endswith(report._repr_html_())
