"""The base classes: what has to be written, and the defaults of what need not be."""

import pytest
import torch

from prunewald.core.base import (
    Allocation,
    Criterion,
    Estimate,
    FunctionCriterion,
    FunctionSchedule,
    Offline,
    Online,
    Pattern,
    Schedule,
    Statistic,
)
from prunewald.core.weights import WeightStats
from prunewald.util.registry import make


@pytest.mark.parametrize("base", [Criterion, Allocation, Pattern, Schedule, Statistic, Online])
def test_a_base_class_alone_is_nothing(base):
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_what_an_offline_estimator_has_to_have():
    assert Offline.estimate.__isabstractmethod__


class Least(Online):
    """As little as an estimator can be."""

    def init(self, weights):
        return {}

    def update_(self, state, weights, optimizer):
        pass

    def sigma(self, state, weight, optimizer):
        return Estimate(torch.ones(1), None)


def test_the_defaults_of_an_online_estimator():
    part = Least()
    assert part.learns
    assert part.watch(torch.nn.Linear(1, 1), ["weight"], dict) == []
    assert part.check({}, {}) is None
    assert part.sigma_rows({}, None, None) is None
    assert (part.least, part.horizon, part.standard_error, part.degrees({})) == (1, None, False, None)
    assert part.with_horizon(100) is part
    assert part.average({}) == {}
    assert part.caveats() == ["not p-values: sigma from Least is no standard error, so the level given is nominal only"]


def test_an_estimator_of_standard_errors_needs_no_caveat():
    class Exact(Least):
        standard_error = True

    assert Exact().caveats() == []


def test_the_defaults_of_what_a_pruning_is_made_of():
    class Score(Criterion):
        def __call__(self, stats):
            return stats.weight

    class Keep(Pattern):
        def __call__(self, ranked, keep):
            return ranked.score > 0

    class Now(Schedule):
        def __call__(self, step):
            return 0.5

    assert (Score().uses_sigma, Score().is_magnitude, Score().statistic) == (False, False, None)
    assert (Keep().single, Keep().sparsity, Keep().nearest((2, 3), 4), Keep().check((2, 3))) == (False, None, 4, None)
    assert Now().final is None


def largest(stats):
    return stats.weight.abs()


def test_a_function_of_the_statistics_is_a_criterion():
    criterion = make("criterion", largest)
    assert isinstance(criterion, FunctionCriterion)
    stats = WeightStats("w", torch.tensor([-2.0, 1.0]), None, None, None, lambda group: 1.0)
    assert criterion(stats).tolist() == [2.0, 1.0]
    assert repr(criterion) == "largest"
    assert criterion.uses_sigma is None, "it is given a sigma where there is one"


def test_a_function_of_the_step_is_a_schedule():
    schedule = make("schedule", lambda step: 0.5 if step == 3 else None)
    assert isinstance(schedule, FunctionSchedule)
    assert [schedule(step) for step in (2, 3)] == [None, 0.5]
    assert schedule.final is None
    assert repr(schedule) == "<lambda>"
