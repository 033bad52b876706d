import math

import numpy as np
import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.statistics import betting, drop_losses
from prunewald.strategies import BudgetError, certify_sparsity
from prunewald.strategies.guarantee import Verdict
from tests.resuming import same
from tests.strategies.helpers import Work

pytestmark = pytest.mark.usefixtures("one_thread")
LEVELS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4)


class Toy:
    """Weight j decides example j, and the population is the uniform draw of j: every error is known exactly.

    A positive weight is right, a negative one wrong; without its weight an example flips. Pruning goes from the front,
    so the candidate at level s flips the first share s of the examples.
    """

    def __init__(self, wrong: list[int], size: int = 100) -> None:
        weight = torch.arange(1.0, size + 1)
        weight[wrong] *= -1
        self.model = nn.Linear(size, 1, bias=False)
        with torch.no_grad():
            self.model.weight.copy_(weight)
        self.dense = (weight < 0).float()
        self.pruner = pw.Pruner(self.model, criterion="magnitude")
        self.trained: list[float] = []

    def population(self) -> torch.Tensor:
        """The loss of every example there is."""
        gone = self.model.weight.detach()[0] == 0
        return torch.where(gone, 1 - self.dense, self.dense)

    def certify(self, seed: int, count: int, **options):
        drawn = torch.randint(len(self.dense), (count,), generator=torch.Generator().manual_seed(seed))
        return certify_sparsity(
            self.pruner,
            lambda one: self.trained.append(one.sparsity),
            lambda: self.population()[drawn],
            **{"levels": LEVELS, **options},
        )


DRAWS, DELTA = 500, 0.1
SLACK = 3 * math.sqrt(DELTA * (1 - DELTA) / DRAWS)


def simulate(toy, count, risk, budget, **options):
    """How often the certified model is over budget in the population, and the levels that were certified."""
    dense = {name: value.clone() for name, value in toy.model.state_dict().items()}
    masks = toy.pruner.state_dict()
    over, certified = 0, []
    for seed in range(DRAWS):
        toy.model.load_state_dict(dense)
        toy.pruner.load_state_dict(masks)
        try:
            certificate = toy.certify(seed, count, delta=DELTA, **options)
        except BudgetError:
            continue
        over += risk() > budget
        certified.append(certificate.sparsity)
    return over / DRAWS, certified


@pytest.mark.slow
@pytest.mark.parametrize("levels", [LEVELS, (0.21, 0.22)])
def test_the_error_keeps_its_budget_as_often_as_promised(levels):
    """The error at level s is s: candidates above 0.2 are over budget, in the second case all of them."""
    toy = Toy(wrong=[])
    over, certified = simulate(toy, 150, lambda: float(toy.population().mean()), 0.2 + 1e-6, error=0.2, levels=levels)
    assert over <= DELTA + SLACK
    if levels is LEVELS:
        assert len(certified) > 0.5 * DRAWS, "it certifies something"
    else:
        assert over > 0, "near the limit the test has to err now and then, or it is too timid"


@pytest.mark.slow
@pytest.mark.parametrize("levels", [LEVELS, (0.25, 0.26)])
def test_the_drop_keeps_its_budget_as_often_as_promised(levels):
    """Every tenth example is wrong, and pruned it is right: about 0.8 s at level s, 0.16 at 0.2 and 0.21 at 0.25."""
    toy = Toy(wrong=list(range(9, 100, 10)))

    def drop():
        return float((toy.population() - toy.dense).mean())

    over, certified = simulate(toy, 2000, drop, 0.2 + 1e-6, drop=0.2, levels=levels)
    assert over <= DELTA + SLACK
    assert levels is not LEVELS or certified.count(0.15) + certified.count(0.2) > 0.9 * DRAWS, "it certifies something"


def test_a_naive_choice_would_break_the_promise():
    """Guards the tests above: with the mean in place of the p-value, an error over budget is often accepted."""
    toy = Toy(wrong=[])
    toy.pruner.prune(0.21)
    draws = [torch.randint(100, (150,), generator=torch.Generator().manual_seed(seed)) for seed in range(DRAWS)]
    naive = sum(float(toy.population()[drawn].mean()) <= 0.2 for drawn in draws) / DRAWS
    assert naive > DELTA + 2 * SLACK


def test_the_first_failure_ends_it_and_later_levels_are_not_trained():
    toy = Toy(wrong=[])
    found = toy.certify(0, 1000, error=0.25, delta=0.05)
    assert found.sparsity == 0.2
    assert toy.trained == [0.1, 0.15, 0.2, 0.25]
    assert [one.sparsity for one in found.tested] == toy.trained
    assert [one.p <= 0.05 for one in found.tested] == [True, True, True, False]
    assert float(toy.population().mean()) == pytest.approx(0.2)
    assert toy.pruner.sparsity == pytest.approx(0.2)
    assert (found.of, found.budget, found.delta) == ("error", 0.25, 0.05)
    title, over, head, _, first, *_ = str(found).splitlines()
    assert title == "at 20.00% the error is at most 0.25, with probability at least 0.95"
    assert head.split() == ["sparsity", "error", "p", "test"]
    assert first.split()[-1] == "binomial"
    assert found._repr_html_().startswith(f"<p>{title}\n{over}</p><table>")


def test_all_may_pass():
    toy = Toy(wrong=[])
    assert toy.certify(0, 1000, drop=0.9).sparsity == 0.4
    assert "at 40.00% the drop is at most 0.9" in str(Toy(wrong=[]).certify(0, 1000, drop=0.9))


def test_the_drop_is_paired():
    """Where every example keeps its loss, the drop is 0 however large the error is."""
    toy = Toy(wrong=list(range(0, 100, 2)))
    found = toy.certify(0, 4000, drop=0.1, levels=(0.02, 0.04))
    assert [one.loss for one in found.tested] == pytest.approx([0, 0], abs=0.01)


@pytest.mark.parametrize("choice", [{"criterion": "wanda"}, {"uncertainty": pw.PseudoBootstrap(last=10)}])
def test_without_any_that_passes_the_model_is_as_it_was(choice):
    work = Work(**choice)
    work.steps(12)
    before = work.state()
    with pytest.raises(BudgetError, match=r"0.3 .* error=0.001 at delta=0.05 .*: allow more"):
        certify_sparsity(work.pruner, work.train, work.losses, error=0.001, levels=(0.3, 0.5))
    assert work.trained == [0.3]
    assert same(work.state(), before)


def test_the_calibration_data_touch_nothing():
    """Wanda's statistic reads every input the model meets, but not those of the calibration."""
    masks = []
    for scale in (1.0, 100.0):
        work = Work(criterion="wanda")
        work.steps(12)

        def losses(work=work, scale=scale):
            x = scale * torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
            return work.model(x).sigmoid().mean(1)

        certify_sparsity(work.pruner, work.train, losses, error=0.99, levels=(0.3, 0.5, 0.7))
        masks.append(work.state())
    assert same(*masks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "error=None, drop=None: "),
        ({"error": 0.1, "drop": 0.1}, "error=0.1, drop=0.1: "),
        ({"error": 0.0}, "error=0.0: .*above 0 and below 1"),
        ({"drop": 1.0}, "drop=1.0: .*at least 0 and below 1"),
        ({"error": 0.1, "delta": 0.0}, "delta=0.0: .*above 0 and below 1"),
        ({"error": "x"}, "error='x': give"),
        ({"drop": 0.1, "delta": None}, "delta=None: give"),
        ({"drop": 0.1, "losses": None}, "losses=None: give a function"),
        ({"error": 0.1, "levels": (0.5, 0.4)}, "0.5 to 0.4"),
        ({"error": 0.1, "losses": lambda: torch.tensor([0.0, 1.5])}, "hold 1.5 at index 1"),
        ({"drop": 0.1, "losses": lambda: torch.tensor(0.5)}, r"shape \(\)"),
    ],
)
def test_bad_input_is_refused_before_any_training(options, message):
    work = Work(criterion="magnitude")
    before = work.state()
    with pytest.raises((ValueError, TypeError), match=message):
        certify_sparsity(work.pruner, work.train, **{"losses": work.losses, **options})
    assert not work.trained
    assert same(work.state(), before)


def test_losses_of_other_examples_are_refused_and_the_model_is_as_it_was():
    work = Work(criterion="magnitude")
    before = work.state()
    with pytest.raises(ValueError, match="199 losses .* 200 of"):
        certify_sparsity(
            work.pruner, work.train, lambda: work.losses()[: 200 - len(work.trained)], drop=0.5, levels=(0.3,)
        )
    assert same(work.state(), before)


def test_every_candidate_that_was_tested_can_be_restored():
    toy = Toy(wrong=[])
    found = toy.certify(0, 1000, error=0.25, delta=0.05)
    found.restore_(0.25)
    assert float(toy.population().mean()) == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"no candidate at 0.3: .*\[0.1, 0.15, 0.2, 0.25\], and None"):
        found.restore_(0.3)


def test_numbers_of_numpy_are_numbers(tmp_path):
    for _ in range(2):
        toy = Toy(wrong=[])
        found = toy.certify(
            0, 1000, error=np.float32(0.5), delta=np.float32(0.05), levels=np.array([0.1, 0.2]), folder=tmp_path
        )
        assert type(found.sparsity) is float
    assert not toy.trained


def test_right_and_wrong_may_be_bool():
    work = Work(criterion="magnitude")
    found = certify_sparsity(work.pruner, work.train, lambda: work.losses() > 0.9, error=0.5, levels=(0.3,))
    assert 0 <= found.tested[0].loss < 0.5


def test_a_certificate_says_over_what_its_probability_is():
    found = Toy(wrong=[]).certify(0, 1000, error=0.25)
    assert found.over == "draws of 1,000 calibration examples, for this model and these candidates, fixed before"
    assert str(found).splitlines()[1] == f"over {found.over}"
    assert f"over {found.over}</p>" in found._repr_html_()
    assert found.over in repr(found)


def test_each_kind_of_loss_has_its_test():
    toy = Toy(wrong=[])
    assert {one.test for one in toy.certify(0, 1000, error=0.25).tested} == {"binomial"}
    toy = Toy(wrong=[])
    assert {one.test for one in toy.certify(0, 1000, drop=0.25).tested} == {"betting"}
    work = Work(criterion="magnitude")
    found = certify_sparsity(work.pruner, work.train, work.losses, error=0.8, levels=(0.3,))
    (one,) = found.tested
    assert one == Verdict(0.3, float(work.losses().double().mean()), betting(work.losses(), 0.8), "betting")


def test_a_drop_of_two_points_takes_a_few_hundred_examples_where_none_changes():
    toy = Toy(wrong=list(range(0, 100, 2)))
    found = certify_sparsity(
        toy.pruner, lambda one: None, lambda: toy.dense[torch.arange(210) % 100], drop=0.02, levels=(0.3, 0.6)
    )
    assert found.sparsity == 0.6


def test_stakes_are_for_the_delta_that_is_asked_for():
    toy = Toy(wrong=list(range(9, 100, 10)))
    found = toy.certify(0, 2000, drop=0.25, delta=0.001, levels=(0.15,))
    drawn = torch.randint(100, (2000,), generator=torch.Generator().manual_seed(0))
    drops = drop_losses(toy.population()[drawn], toy.dense[drawn])
    assert found.tested[0].p == betting(drops, 0.625, 0.001) != betting(drops, 0.625)
