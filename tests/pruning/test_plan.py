"""What the caller gave is fixed, each default that was found is named, and a request that cannot be repeats itself."""

import math
import re

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.base import FunctionCriterion
from prunewald.core.patterns import Element
from prunewald.pruning.by_layer import by_slice
from prunewald.pruning.plan import Choices, Request
from prunewald.uncertainty.given import Given
from tests.training import sgd, train, trained_pruner, wide
from tests.transcriptions import NO_MEAN_SQUARE

pytestmark = pytest.mark.usefixtures("one_thread")


def sigmas(model):
    return {n: torch.rand_like(p) + 0.1 for n, p in model.named_parameters() if p.dim() > 1}


# ---- what was given ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["criterion", "uncertainty", "scope", "pattern", "schedule"])
def test_what_was_given_can_be_read_and_not_set(name):
    pruner = pw.Pruner(wide(), criterion="wald", uncertainty="pseudo-bootstrap", scope="erk", schedule="cubic")
    given = getattr(pruner, name)
    assert given is not None
    with pytest.raises(AttributeError, match=f"{name}=.*make a new one"):
        setattr(pruner, name, given)
    assert getattr(pruner, name) is given


def test_short_names_classes_functions_and_dicts_become_parts():
    def squared(stats):
        return stats.weight.square()

    sigma = sigmas(wide())
    pruner = pw.Pruner(wide(), criterion=squared, uncertainty=sigma, scope="global", pattern=pw.Element)
    assert isinstance(pruner.criterion, FunctionCriterion)
    assert isinstance(pruner.uncertainty, Given)
    assert pruner.uncertainty.sigmas is sigma
    assert (type(pruner.scope).__name__, pruner.pattern) == ("Global", pw.Element())


@pytest.mark.parametrize(
    ("criterion", "uncertainty", "watched"),
    [
        (None, None, pw.SecondMoment(every=10)),
        ("magnitude", None, None),
        ("wald", None, pw.SecondMoment()),
        (None, "batch-means", pw.BatchMeans()),
        ("wald", {"0.weight": torch.ones(2, 2)}, None),
    ],
    ids=str,
)
def test_an_estimator_watches_where_it_was_asked_for(criterion, uncertainty, watched):
    assert Choices.of(criterion, uncertainty, "layer", "element", None).watched == (watched, None)


def test_an_infinite_lambda_is_abs_and_the_report_says_so():
    pruners = [trained_pruner(criterion=c) for c in (pw.MagnitudeUncertainty(lam=math.inf), "abs")]
    for pruner in pruners:
        pruner.model[2].weight.data[:, :7] = 0.25  # ties
    infinite, absolute = (pruner.prune(0.6) for pruner in pruners)
    assert str(infinite) == str(absolute)
    assert "Magnitude()" in str(infinite)
    assert all(torch.equal(mask, pruners[1].masks[name]) for name, mask in pruners[0].masks.items())
    assert pruners[0].criterion == pw.Magnitude()
    assert Choices.of(pw.MagnitudeUncertainty(lam=math.inf), None, "layer", "element", None).watched == (None, None)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ({"criterion": "abs"}, {"criterion": pw.Magnitude()}),
        ({"criterion": "ABS"}, {"criterion": pw.Magnitude()}),
        ({"criterion": "m&u", "uncertainty": "pseudo"}, {"criterion": pw.MagnitudeUncertainty()}),
        ({"criterion": "M&U", "uncertainty": "moment"}, {"uncertainty": pw.SecondMoment()}),
    ],
)
def test_the_papers_names_and_those_of_the_command_line_are_read(names, parts):
    pruner = pw.Pruner(wide(), **names)
    assert {kind: getattr(pruner, kind) for kind in parts} == parts


# ---- defaults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.AdamW])
def test_attached_after_training_the_default_uses_the_second_moment(optimizer):
    model = wide()
    optimizer = optimizer(model.parameters(), lr=1e-3)
    train(model, optimizer, 20)
    expected = pw.Pruner(model, optimizer, criterion="magnitude-uncertainty", uncertainty="second-moment").scores()
    pruner = pw.Pruner(model, optimizer)
    report = pruner.prune(0.9)
    assert "MagnitudeUncertainty(), sigma from SecondMoment()" in str(report)
    assert [note for note in report.notes if "by default" in note and "second moment" in note]
    for name, mask in pruner.masks.items():
        assert expected[name][mask].min() >= expected[name][~mask].max()


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_without_optimizer_state_the_default_is_magnitude_and_the_first_line_says_so(optimizer):
    model = wide()
    optimizer = optimizer and optimizer(model.parameters(), lr=1e-3)
    if optimizer:
        train(model, optimizer, 3)
    report = pw.Pruner(model, optimizer).prune(0.9)
    assert str(report).startswith("criterion: magnitude")
    assert ("SGD" if optimizer else "no optimizer") in report.notes[0]
    assert "PseudoBootstrap()" in report.notes[0]
    assert (report.criterion, report.uncertainty) == ("Magnitude()", "")


@pytest.mark.parametrize("kind", NO_MEAN_SQUARE, ids=lambda kind: kind.__name__)
def test_second_moments_that_mean_something_else_are_not_the_default(kind):
    model = wide()
    optimizer = kind(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    report = pw.Pruner(model, optimizer).prune(0.5)
    assert re.search(f"'0.weight': {kind.__name__}.*{NO_MEAN_SQUARE[kind]}", report.notes[0])
    assert (report.criterion, report.uncertainty) == ("Magnitude()", "")


def test_before_the_first_step_the_note_says_so():
    model = wide()
    report = pw.Pruner(model, torch.optim.Adam(model.parameters())).prune(0.5)
    assert re.search("magnitude.*Adam has taken no step", report.notes[0])


def test_an_uncertainty_alone_means_magnitude_and_uncertainty():
    report = trained_pruner(uncertainty=pw.PseudoBootstrap(last=10)).prune(0.5)
    assert (report.criterion, report.uncertainty) == ("MagnitudeUncertainty()", "PseudoBootstrap(last=10)")


def test_a_criterion_alone_has_the_second_moment():
    report = trained_pruner(criterion="wald").prune(0.5)
    assert (report.criterion, report.uncertainty) == ("Wald()", "SecondMoment()")


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize("request_", [{"alpha": 0.05}, {"fdr": 0.1}], ids=str)
def test_a_test_is_made_by_the_wald_statistic_whatever_the_criterion(request_):
    pruner = trained_pruner(criterion="magnitude")
    report = pruner.prune(**request_, uncertainty=sigmas(pruner.model))
    assert (report.criterion, report.uncertainty) == ("Wald()", "a dict of 3 tensors")


def test_the_report_names_the_sigma_of_this_pruning():
    pruner = trained_pruner()
    own = pruner.prune(0.5, uncertainty=sigmas(pruner.model))
    assert own.uncertainty == "a dict of 3 tensors"
    assert not any("by default: tau" in note for note in own.notes)
    assert pruner.uncertainty is None
    train(pruner.model, pruner.optimizers[0], 2, first=30)
    assert pruner.prune(0.6).uncertainty == "SecondMoment()"


def test_the_sigma_of_one_pruning_decides_it():
    pruner = trained_pruner(criterion="wald")
    sigma = sigmas(pruner.model)
    z = {n: p.detach().abs() / sigma[n] for n, p in pruner.targets().items()}
    masks, _ = pruner.choose(0.5, uncertainty=sigma)
    assert all(z[n][mask].min() >= z[n][~mask].max() for n, mask in masks.items())
    assert any(not torch.equal(mask, masks[n]) for n, mask in pruner.choose(0.5)[0].items())


# ---- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(), "nothing.*sparsity, threshold, alpha, fdr, quality"),
        (Request(0.5, alpha=0.1), "sparsity=0.5, alpha=0.1.*give one of"),
        (Request(1.0), "sparsity=1.0"),
        (Request({"0": 2}), "'0'=2"),
        (Request({}), "sparsity={}.*no layer"),
        (Request(threshold=float("inf")), "threshold=inf"),
        (Request(threshold={"0": float("inf")}), "threshold for '0'=inf"),
        (Request(quality=-1), "quality=-1"),
        (Request(quality={"0": float("nan")}), "quality for '0'=nan"),
        (Request(threshold=1.0, quality=1.0), "threshold=1.0, quality=1.0.*give one of"),
        (Request(alpha=0), "alpha=0"),
        (Request(fdr=1.5), "fdr=1.5"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_repeats_the_callers_words(request_, message):
    with pytest.raises(ValueError, match=message):
        request_.checked(Element())


def test_a_pattern_that_fixes_its_sparsity_is_asked_for_that():
    assert Request().checked(pw.KeepNOfM(1, 4)).sparsity == 0.75


@pytest.mark.parametrize("asked", [{"threshold": 0.1}, {"alpha": 0.05}, {"fdr": 0.05}], ids=str)
def test_groups_are_chosen_by_sparsity_only(asked):
    with pytest.raises(ValueError, match=rf"{next(iter(asked))}.*Filter\(.*give a sparsity"):
        Request(**asked).checked(pw.Filter())


def test_a_pattern_that_does_not_fit_names_the_target():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 6), nn.Linear(6, 4))
    with pytest.raises(ValueError, match=r"'2.weight'.*4"):
        pw.Pruner(model, sgd(model), pattern="n-of-m")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"0": 0.1}, {"0.weight": 0.1}),
        ({"*": 0.1}, {"0.weight": 0.1, "2.weight[0]": 0.1, "2.weight[1:]": 0.1}),
        ({"2.weight": 0.2}, {"2.weight[0]": 0.2, "2.weight[1:]": 0.2}),
        ({"2.weight[0]": 0.3, "0.*": 0.1}, {"2.weight[0]": 0.3, "0.weight": 0.1}),
    ],
    ids=str,
)
def test_a_dict_by_names_of_slices_parameters_modules_or_globs(given, expected):
    pruner = pw.Pruner(wide(), targets=["0", "2.weight[0]", "2.weight[1:]"])
    assert by_slice(pruner.model, pruner.slices, given) == expected


@pytest.mark.parametrize("key", ["4", "2.weight[2]", "fc"])
def test_a_name_that_is_no_target_is_repeated_with_those_that_are(key):
    pruner = pw.Pruner(wide(), targets=["0", "2.weight[0]"])
    with pytest.raises(ValueError, match="size") as caught:
        by_slice(pruner.model, pruner.slices, {key: 4}, "size")
    for words in (repr(key), "0.weight", "2.weight[0]"):
        assert words in str(caught.value)


def test_a_name_goes_before_a_glob():
    pruner = trained_pruner()
    report = pruner.prune({"*": 0.75, "2": 0.25}, dry_run=True)
    assert [round(row.sparsity, 2) for row in report.rows] == [0.75, 0.25, 0.75]
    assert pruner.prune({"2": 0.25, "*": 0.75}, dry_run=True) == report
    with pytest.raises(ValueError, match="a second time"):
        pruner.prune({"*": 0.75, "2*": 0.25})
