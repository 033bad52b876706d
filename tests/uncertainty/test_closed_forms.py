"""Closed forms on real data sets: statsmodels' own, iris and wine, in raw units and both precisions."""

import pytest
import torch

pytest.importorskip("statsmodels", reason="statsmodels is what the closed forms are compared with")

from tests.uncertainty.real_data import ESTIMATORS, REGRESSIONS, disagreement

pytestmark = pytest.mark.usefixtures("one_thread")


BOUNDS = {torch.float64: 1e-8, torch.float32: 1e-4}
HARD = "longley, linear"  # made to be ill conditioned: 1.9e9, with every column scaled


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", REGRESSIONS)
def test_standard_errors_are_those_of_statsmodels(name, estimator, dtype, observed):
    error, notes = disagreement(name, estimator, dtype, observed)
    assert error < BOUNDS[dtype]
    assert ["condition 2e+09" in note for note in notes] == ([True] if name == HARD else [])
