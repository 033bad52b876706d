import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.weights import Weight
from prunewald.uncertainty.diagnosis import Diagnosis, Sigmas
from prunewald.uncertainty.given import Given

PARAM = nn.Parameter(torch.ones(2, 3))


def test_a_dict_is_an_uncertainty():
    sigmas = {"weight": torch.rand(2, 3)}
    pruner = pw.Pruner(nn.Linear(3, 2), criterion="wald", uncertainty=sigmas)
    assert isinstance(pruner.uncertainty, Given)
    assert pruner.uncertainty.sigmas is sigmas
    assert torch.equal(pruner.sigma()["weight"], sigmas["weight"])
    assert repr(pruner.uncertainty) == "a dict of 1 tensors"


def test_there_is_nothing_to_gather():
    given = Given({"weight": torch.ones(2, 3)})
    assert not given.learns
    assert given.init({"weight": PARAM}) == {}
    given.update_({}, {"weight": PARAM}, None)
    assert given.horizon is None


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]
)
def test_sigma_is_as_wide_as_the_weights_are_scored(dtype, wide):
    weight = Weight("weight", PARAM.detach().to(dtype), None)
    sigma, dead = Given({"weight": torch.ones(2, 3, dtype=torch.float16)}).sigma({}, weight, None)
    assert sigma.dtype == wide
    assert dead is None, "which weights are dead is not known"


@pytest.mark.parametrize(
    ("sigmas", "message"),
    [
        ({"bias": torch.ones(2)}, r"'weight'.*\['bias'\].*ignore='weight'"),
        ({"weight": torch.ones(3, 2)}, r"'weight'.*\(3, 2\).*\(2, 3\)"),
        ({"weight": -torch.ones(2, 3)}, "'weight'.*at least 0.*torch.inf"),
        ({"weight": torch.full((2, 3), torch.nan)}, "'weight'.*nan_to_num"),
    ],
)
def test_what_is_no_sigma_of_these_weights_is_named(sigmas, message):
    with pytest.raises(ValueError, match=message):
        Given(sigmas).check({}, {"weight": PARAM})
    Given({"weight": torch.full((2, 3), torch.inf), "other": torch.ones(1)}).check({}, {"weight": PARAM})


def test_the_diagnosis_of_bad_sigmas_is_shown():
    sigmas = Sigmas(weight=torch.full((2, 3), torch.nan))
    sigmas.diagnosis = Diagnosis(7, (), {"weight": 6})
    with pytest.raises(ValueError, match="7 samples\nno standard error for 6 entries of weight"):
        Given(sigmas).check({}, {"weight": PARAM})


def test_notes_are_those_of_the_estimator_and_caveats_that_nothing_is_known():
    sigmas = Sigmas(weight=torch.ones(2, 3))
    sigmas.notes = ("nominal only",)
    assert (Given(sigmas).notes, Given(sigmas).caveats()) == (("nominal only",), [])
    plain = Given({"weight": torch.ones(2, 3)})
    assert plain.notes == ()
    assert "need standard errors" in plain.caveats()[0]


def test_degrees_of_freedom_are_those_of_the_estimator():
    sigmas = Sigmas(weight=torch.ones(2, 3))
    assert Given(sigmas).degrees({}) is Given(dict(sigmas)).degrees({}) is None
    sigmas.degrees = 9.0
    assert Given(sigmas).degrees({}) == 9


def test_what_is_no_standard_error_is_not_tested_but_pruned_by():
    sigmas = Sigmas(weight=torch.ones(2, 3))
    sigmas.untested, sigmas.notes = "it was damped: use 'inverse'", ("damped",)
    pruner = pw.Pruner(nn.Linear(3, 2), criterion="wald", uncertainty=sigmas)
    for level in ({"alpha": 0.05}, {"fdr": 0.1}):
        with pytest.raises(ValueError, match="alpha= and fdr=.*damped: use 'inverse'"):
            pruner.prune(**level)
    assert pruner.prune(0.5).notes == ["damped"]
