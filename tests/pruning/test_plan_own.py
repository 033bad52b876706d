"""Sigma by default under optimizers that keep no second moment: an average of the Pruner's own, every tenth step."""

import copy

import pytest
import torch

import prunewald as pw
from tests.training import one_step, sgd, train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")


def of_sgd(steps, **choice):
    return trained_pruner(torch.optim.SGD, steps, **choice)


def test_attached_before_training_there_is_a_sigma_and_the_report_says_whose():
    report = of_sgd(95).prune(0.9)
    assert (report.criterion, report.uncertainty) == ("MagnitudeUncertainty()", "SecondMoment(every=10)")
    assert "averaged itself" in report.notes[0]
    assert report.scope == "lamp"


def test_it_is_the_mean_square_of_every_tenth_gradient():
    model = wide()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer)
    average, steps = torch.zeros_like(model[2].weight), 0
    reached = torch.zeros_like(model[2].weight, dtype=torch.bool)
    for step in range(1, 112):
        one_step(model, optimizer, step)
        reached |= model[2].weight.grad != 0
        if step % 10 == 1:
            average, steps = 0.99 * average + 0.01 * model[2].weight.grad.square(), steps + 1
    error = (average / (1 - 0.99**steps)).rsqrt()
    found = pruner.sigma()["2.weight"]
    moved = error.isfinite()
    ratio = found[moved] / error[moved]
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))
    assert pruner.dead()["2.weight"].equal(~reached), "every step tells what gradients reach"


def test_after_too_few_steps_it_is_magnitude_with_the_same_counts_and_a_note():
    pruner = of_sgd(85)
    report = pruner.prune(0.9)
    assert report.criterion == "Magnitude()"
    assert "SGD" in report.notes[0]
    assert "100 steps" in report.notes[0]
    assert report.scope == "lamp"
    same = pw.Pruner(copy.deepcopy(wide()), criterion="magnitude").prune(0.9, dry_run=True)
    assert same.kept == report.kept


def test_a_layer_without_gradients_is_no_reason_for_an_error():
    model = wide()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer)
    model[4].requires_grad_(False)
    train(model, optimizer, 100)
    assert pruner.prune(0.5).criterion == "Magnitude()"


def test_with_an_optimizer_that_keeps_one_nothing_is_gathered():
    pruner = trained_pruner(steps=30)
    assert not pruner._watcher._states[0]["average"]
    assert pruner.prune(0.5).uncertainty == "SecondMoment()"


@pytest.mark.parametrize("choice", [{"criterion": "magnitude"}, {"uncertainty": pw.PseudoBootstrap(last=4)}], ids=str)
def test_who_has_chosen_gets_nothing_beside(choice):
    assert of_sgd(3, **choice)._choices.watched[0] is choice.get("uncertainty")


def test_it_goes_on_from_a_checkpoint_and_starts_anew_from_one_without_it():
    whole = of_sgd(100)
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    first = pw.Pruner(model, optimizer)
    train(model, optimizer, 50)
    saved = copy.deepcopy(first.state_dict())
    first.detach()
    second = pw.Pruner(model, optimizer)
    second.load_state_dict(saved)
    train(model, optimizer, 50, first=50)
    assert all(torch.equal(sigma, second.sigma()[name]) for name, sigma in whole.sigma().items())
    second.load_state_dict({**saved, "aside": ()})
    with pytest.raises(ValueError, match="no second moment"):
        second.sigma()
    plain = pw.Pruner(wide(), criterion="magnitude")
    plain.load_state_dict(saved)
    assert plain.sparsity == 0


def test_a_parameter_that_is_added_to_an_optimizer_with_a_second_moment_is_scored_by_that():
    """The Pruner averages the gradients of another optimizer's parameters itself: that is no matter of this one."""
    model = wide()
    adam, plain = torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.01)
    pruner = pw.Pruner(model, [adam, plain])
    for step in range(101):
        plain.zero_grad()
        one_step(model, adam, step)
        plain.step()
    adam.add_param_group({"params": list(model[4].parameters())})
    untold = pruner.prune(0.5, dry_run=True)
    assert untold.criterion == "Magnitude()"
    assert "'4.weight': Adam has taken no step with a gradient for it yet" in untold.notes[0]
    one_step(model, adam, 101)
    report = pruner.prune(0.5)
    assert report.criterion == "MagnitudeUncertainty()"
    assert any("4.weight: 1 of 100 steps are in the second moment" in note for note in report.notes)


def test_of_several_optimizers_a_note_tells_which_parameters_the_pruner_averaged_for():
    model = wide()
    adam, plain = torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[2:].parameters(), lr=0.01)
    pruner = pw.Pruner(model, [adam, plain], ignore="4")
    for step in range(101):
        plain.zero_grad()
        one_step(model, adam, step)
        plain.step()
    note = pruner.prune(0.5).notes[0]
    assert "that the optimizer keeps, of 2.weight one that the Pruner averaged itself, every tenth step" in note
