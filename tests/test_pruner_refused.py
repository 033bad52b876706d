"""What a Pruner refuses: the error repeats what was given and says what to give, and the model is untouched."""

import copy

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import sgd, train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- what is given to the constructor ----------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [0.9, "adam", ["adam"], nn.Linear(2, 2)], ids=str)
def test_what_is_no_optimizer(optimizer):
    with pytest.raises(TypeError, match=r"optimizer=.*Optimizer.*prune\(0.9\)") as caught:
        pw.Pruner(wide(), optimizer)
    assert repr(optimizer) in str(caught.value)


@pytest.mark.parametrize("model", ["model.pt", None, {"0.weight": torch.ones(2, 2)}], ids=["path", "None", "state"])
def test_what_is_no_model(model):
    with pytest.raises(TypeError, match=r"(?s)model=.*torch.nn.Module") as caught:
        pw.Pruner(model)
    assert repr(model) in str(caught.value)


def test_model_and_optimizer_in_the_wrong_order():
    model = wide()
    with pytest.raises(TypeError, match=r"(?s)model=SGD.*torch.nn.Module"):
        pw.Pruner(sgd(model), model)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"criterion": 3}, TypeError, r"criterion=3.*Magnitude\(\)"),
        ({"criterion": "tau"}, ValueError, "'tau'.*magnitude-uncertainty"),
        ({"uncertainty": 7}, TypeError, r"uncertainty=7.*SecondMoment\(\).*dict"),
        ({"scope": 0.9}, TypeError, "scope=0.9.*'lamp'"),
        ({"scope": "foo"}, ValueError, "scope 'foo'.*global"),
        ({"pattern": 4}, TypeError, r"pattern=4.*Element\(\)"),
        ({"schedule": 5}, TypeError, r"schedule=5.*Cubic"),
        ({"targets": 3.5}, ValueError, "target 3.5.*0.weight"),
        ({"targets": ["0", 3.5]}, ValueError, "target 3.5.*0.weight"),
        ({"ignore": 3.5}, ValueError, "ignore 3.5.*0.weight"),
    ],
    ids=str,
)
def test_a_choice_that_is_none(choice, error, message):
    model = wide()
    optimizer = sgd(model)
    with pytest.raises(error, match=message):
        pw.Pruner(model, optimizer, **choice)
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("given", [pw.uncertainty.Sandwich(), "fisher-diagonal"])
def test_an_offline_estimator_is_not_an_uncertainty_but_gives_one(given):
    with pytest.raises(TypeError, match=r"uncertainty=(Sandwich|FisherDiagonal).*estimate\(model, batches, loss\)"):
        pw.Pruner(wide(), uncertainty=given)


# ---- what is given to prune() ------------------------------------------------------------------------------------


def refused(pruner, message, *args, **kwargs):
    before = copy.deepcopy(pruner.model.state_dict())
    with pytest.raises(ValueError, match=message):
        pruner.prune(*args, **kwargs)
    assert all(torch.equal(before[n].nan_to_num(7), t.nan_to_num(7)) for n, t in pruner.model.state_dict().items())


@pytest.mark.parametrize("sparsity", [-0.1, 1, 1.0, 90, float("nan"), "0.9", True])
def test_sparsity_out_of_range(sparsity):
    refused(trained_pruner(), f"sparsity={sparsity!r}: .*0.9 prunes 90 %", sparsity)
    refused(trained_pruner(), f"'0'={sparsity!r}: .*0.9 prunes 90 %", {"0": sparsity})


def test_neither_or_both_of_sparsity_and_threshold():
    refused(trained_pruner(), r"nothing.*sparsity, threshold, alpha, fdr")
    refused(trained_pruner(), "sparsity=0.5, threshold=1.0.*give one of", 0.5, threshold=1.0)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), float("-inf"), True, "0.1"])
def test_a_threshold_that_is_no_number(threshold):
    refused(trained_pruner(), f"threshold={threshold!r}: give a number", threshold=threshold)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_less_than_is_pruned_already(scope):
    pruner = trained_pruner(scope=scope, criterion="magnitude")
    pruner.prune(0.8)
    refused(pruner, r"sparsity 0.5 .*Ask for more.*reset\(\)", 0.5)
    pruner.reset()
    assert pruner.prune(0.5).sparsity == pytest.approx(0.5, abs=0.01)


def test_unknown_layers_in_a_dict():
    refused(trained_pruner(), "'7'.*'0.weight'", {"7": 0.5})
    refused(trained_pruner(), "'0.weight'.*a second time", {"0": 0.5, "0.weight": 0.5})


def test_after_detach():
    pruner = trained_pruner()
    pruner.detach()
    refused(pruner, "detached: make a new one", 0.5)


# ---- weights and sigmas ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(value):
    pruner = trained_pruner()
    with torch.no_grad():
        pruner.model[2].weight[1, 1] = value
    refused(pruner, "'2.weight'.*earlier checkpoint", 0.5)


def test_a_replaced_parameter():
    pruner = trained_pruner()
    pruner.model[0].weight = nn.Parameter(torch.ones(20, 6))
    refused(pruner, "'0.weight'.*attach a new Pruner", 0.5)


def test_sigmas_that_do_not_fit():
    model = wide()
    sigma = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}

    def pruner(**changed):
        given = {n: s for n, s in (sigma | changed).items() if s is not None}
        return pw.Pruner(model, criterion=pw.Wald(), uncertainty=given)

    refused(pruner(**{"2.weight": None}), "'2.weight'.*ignore='2.weight'", 0.5)
    refused(pruner(**{"2.weight": torch.ones(3)}), r"'2.weight'.*\(3,\).*\(20, 20\)", 0.5)
    refused(pruner(**{"2.weight": torch.full((20, 20), -1.0)}), "'2.weight'.*negative", 0.5)
    refused(pruner(**{"2.weight": torch.full((20, 20), torch.nan)}), "'2.weight'.*NaN", 0.5)


@pytest.mark.parametrize("uncertainty", [None, pw.PseudoBootstrap(last=5), pw.SecondMoment()])
def test_a_tensor_that_never_trained(uncertainty):
    def pruner(model, params):
        optimizer = torch.optim.Adam(params)
        made = pw.Pruner(model, optimizer, criterion=pw.Wald(), uncertainty=uncertainty)
        train(model, optimizer, 6)
        return made

    model = wide()
    model[0].weight.requires_grad_(False)
    refused(pruner(model, model.parameters()), "'0.weight' does not require gradients.*ignore='0.weight'", 0.5)
    model = wide()
    refused(pruner(model, model[2:].parameters()), "'0.weight' was in no optimizer.*ignore='0.weight'", 0.5)
    model = wide()
    model[0].weight.register_hook(torch.zeros_like)
    refused(pruner(model, model.parameters()), "'0.weight' got no gradient.*ignore='0.weight'", 0.5)


def test_a_criterion_that_returns_nonsense():
    def short(stats):
        return stats.weight.sum(0)

    def nan(stats):
        return stats.weight * torch.nan

    refused(trained_pruner(criterion=short), r"short.*\(6,\).*'0.weight'.*\(20, 6\)", 0.5)
    refused(trained_pruner(criterion=nan), "nan.*'0.weight'", 0.5)
