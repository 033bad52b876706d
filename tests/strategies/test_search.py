import os

import pytest
import torch

import prunewald as pw
from prunewald.strategies import find_sparsity
from prunewald.util.trees import copied
from tests.resuming import same
from tests.strategies.helpers import Work, trained
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")
LEVELS = (0.3, 0.5, 0.8)
WINDOW = {"uncertainty": pw.PseudoBootstrap(last=10)}


def judge(work, values):
    """An `evaluate` that knows the answer for each level."""
    return lambda: values[round(work.pruner.sparsity, 1)]


def test_the_highest_that_fits_is_chosen_though_a_lower_one_does_not():
    work = trained(**WINDOW)
    evaluate = judge(work, {0.0: 0.9, 0.3: 0.7, 0.5: 0.86, 0.8: 0.2})
    found = find_sparsity(work.pruner, work.train, evaluate, budget=0.05, levels=LEVELS)
    assert work.trained == list(LEVELS)
    assert found.dense == 0.9
    assert [(c.sparsity, c.value, c.fits) for c in found.candidates] == [
        (0.3, 0.7, False),
        (0.5, 0.86, True),
        (0.8, 0.2, False),
    ]
    assert [c.loss for c in found.candidates] == pytest.approx([0.2, 0.04, 0.7])
    assert found.best == found.candidates[1]
    assert str(found).splitlines()[0] == "dense 0.9000, budget 0.05"
    assert "50.00%  0.8600  +0.0400  <- chosen" in str(found)
    assert "80.00%  0.2000  +0.7000  over budget" in str(found)
    assert found._repr_html_().count("<tr>") == 4
    assert work.pruner.sparsity == pytest.approx(0.5, abs=0.01)
    work.steps(3)
    for name, mask in work.pruner.masks.items():
        assert not minus_zero_or_worse(work.model.get_parameter(name), ~mask)


def test_the_model_is_left_at_the_candidate_that_was_evaluated(tmp_path):
    work, seen = trained(**WINDOW), {}

    def evaluate():
        seen[round(work.pruner.sparsity, 1)] = work.state()
        return {0.0: 1.0, 0.3: 1.0, 0.5: 1.0, 0.8: 0.0}[round(work.pruner.sparsity, 1)]

    find_sparsity(work.pruner, work.train, evaluate, budget=0, levels=LEVELS, folder=tmp_path)
    assert same(work.state(), seen[0.5])
    assert sorted(os.listdir(tmp_path)) == ["level-0.3.pt", "level-0.5.pt", "level-0.8.pt", "plan.json", "start.pt"]
    for level in LEVELS:
        fresh = Work(seed=9)
        fresh.model.load_state_dict(torch.load(tmp_path / f"level-{level}.pt", weights_only=True)["model"])
        assert same(copied(fresh.model.state_dict()), seen[level]["model"])


def test_going_on_trains_only_what_is_missing(tmp_path):
    work, whole = trained(**WINDOW), trained(**WINDOW)
    torch.manual_seed(4)
    expected = find_sparsity(whole.pruner, whole.train, whole.accuracy, budget=0.05, levels=LEVELS)

    def train(one):
        if one.index == 3 and len(work.trained) == 2:
            raise KeyboardInterrupt
        work.train(one)

    torch.manual_seed(4)
    with pytest.raises(KeyboardInterrupt):
        find_sparsity(work.pruner, train, work.accuracy, budget=0.05, levels=LEVELS, folder=tmp_path)
    work.steps(3)  # whatever the model is by then
    work.trained.append(0)
    found = find_sparsity(work.pruner, train, work.accuracy, budget=0.05, levels=LEVELS, folder=tmp_path)
    assert work.trained == [0.3, 0.5, 0, 0.8]
    assert found == expected
    assert same(work.state(), whole.state())


def test_another_budget_may_be_asked_of_the_same_candidates(tmp_path):
    work = trained(**WINDOW)
    evaluate = judge(work, {0.0: 0.9, 0.3: 0.9, 0.5: 0.86, 0.8: 0.2})
    for budget, best in ((0.0, 0.3), (0.05, 0.5), (1.0, 0.8)):
        found = find_sparsity(work.pruner, work.train, evaluate, budget=budget, levels=LEVELS, folder=tmp_path)
        assert found.best.sparsity == best
        assert work.pruner.sparsity == pytest.approx(best, abs=0.01)
    assert work.trained == list(LEVELS)


@pytest.mark.parametrize(
    ("dense", "value", "budget"),
    [
        (0.9, 0.89, 0.01),
        (0.9, 0.87, 0.03),
        (*torch.tensor([0.8, 0.75]).tolist(), 0.05),  # float32, as a mean of rights and wrongs is
        (90.0, 89.7, 0.3),
        (-0.5, -0.6, 0.1),
    ],
)
def test_a_budget_that_is_met_exactly_is_met(dense, value, budget):
    work = trained(**WINDOW)
    evaluate = judge(work, {0.0: dense, 0.3: value, 0.5: value - 2e-6 * abs(dense)})
    found = find_sparsity(work.pruner, work.train, evaluate, budget=budget, levels=(0.3, 0.5))
    assert [c.fits for c in found.candidates] == [True, False]


def test_what_is_lost_without_end_does_not_fit():
    work = trained(**WINDOW)
    evaluate = judge(work, {0.0: 0.9, 0.3: 0.9, 0.5: float("-inf")})
    assert find_sparsity(work.pruner, work.train, evaluate, budget=1, levels=(0.3, 0.5)).best.sparsity == 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": -0.1}, "budget=-0.1: .*at least 0"),
        ({"budget": float("nan")}, "budget=nan: .*at least 0"),
        ({"budget": "x"}, "budget='x': .*at least 0"),
        ({"budget": None}, "budget=None: .*at least 0"),
        ({"evaluate": None}, "evaluate=None: give a function"),
        ({"estimate": 1}, "estimate=1: give a function"),
        ({"levels": (0.9, 0.5)}, "0.9 to 0.5"),
        ({"evaluate": lambda: float("nan")}, "evaluate\\(\\) gave NaN"),
        ({"evaluate": lambda: None}, "evaluate\\(\\) gave None"),
        ({"evaluate": lambda: "good"}, "evaluate\\(\\) gave str"),
    ],
)
def test_bad_input_is_refused_before_any_training(options, message):
    work = trained(**WINDOW)
    before = work.state()
    with pytest.raises((ValueError, TypeError), match=message):
        find_sparsity(work.pruner, work.train, **{"evaluate": work.accuracy, "budget": 1, **options})
    assert not work.trained
    assert same(work.state(), before)


def test_a_candidate_that_diverged_does_not_fit():
    work = trained(**WINDOW)
    evaluate = judge(work, {0.0: 0.9, 0.3: 0.9, 0.5: float("nan"), 0.8: float("nan")})
    assert find_sparsity(work.pruner, work.train, evaluate, budget=1, levels=LEVELS).best.sparsity == 0.3
