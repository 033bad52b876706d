"""Dynamic network surgery is a literal transcription of Guo et al. (2016), to the last bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import prunewald as pw
from tests.resuming import same
from tests.strategies.surgery_helpers import LEVELS, NAMES, Guo, make, seeing
from tests.training import net, one_step, sgd

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]


@pytest.mark.parametrize(
    ("name", "levels"), [(name, levels) for name in ("sgd", "momentum", "adam", "rmsprop") for levels in LEVELS]
)
def test_it_is_guos_algorithm_to_the_last_bit(name, levels):
    guo = Guo(name, LEVELS[levels])
    model = net().double()
    optimizer = make(name, model.parameters())
    surgery = pw.Surgery(
        model, optimizer, **{"criterion": "magnitude", "scope": "layer", "gamma": 0.0, **LEVELS[levels]}
    )
    evaluations: list[int] = []
    for step in range(25):
        guo.step(step)
        closure = seeing(surgery, step, evaluations)
        if step % 2:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        for n, seen in guo.seen().items():
            assert torch.equal(model.get_parameter(n), seen), (step, n)
        for n in NAMES:
            assert torch.equal(surgery.masks[n], guo.T[n]), (step, n)
    assert len(evaluations) >= 25
    assert guo.pruned > 10
    assert guo.spliced > 0
    for n, dark in surgery.state_dict()["dark"][0].items():
        assert torch.equal(torch.where(guo.T[n], 0.0, dark), torch.where(guo.T[n], 0.0, guo.W[n].detach()))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_probability_of_an_operation_decays(seed):
    guo = Guo("adam", LEVELS["sparsity"], gamma=0.3, power=1.5, seed=seed)
    model = net().double()
    optimizer = make("adam", model.parameters())
    surgery = pw.Surgery(
        model, optimizer, sparsity=0.6, criterion="magnitude", scope="layer", gamma=0.3, power=1.5, seed=seed
    )
    changes = []
    for step in range(60):
        before = surgery.masks
        guo.step(step)
        one_step(model, optimizer, step)
        assert all(torch.equal(surgery.masks[n], guo.T[n]) for n in NAMES), step
        changes += [] if same(before, surgery.masks) else [step + 1]
    assert 3 < len(changes) < 30
    assert len([step for step in changes if step <= 20]) > len([step for step in changes if step > 40])


def operations(steps: int = 40, **options: Any) -> list[int]:
    """The steps at which masks changed, where every operation changes them."""
    model = net()
    optimizer = sgd(model)
    surgery = pw.Surgery(model, optimizer, criterion=flips(), threshold=0.0, margin=0.0, **options)
    found = []
    for step in range(1, steps + 1):
        before = surgery.masks
        one_step(model, optimizer, step)
        found += [] if same(before, surgery.masks) else [step]
    return found


def flips() -> Any:
    """A criterion that gives every weight another sign each time it is asked."""
    asked: dict[str, int] = {}

    def score(stats: Any) -> Tensor:
        asked[stats.name] = asked.get(stats.name, 0) + 1
        return torch.full_like(stats.weight, (-1.0) ** asked[stats.name])

    return score


def test_every_and_stop():
    assert operations(gamma=0.0) == list(range(1, 41))
    assert operations(gamma=0.0, every=7) == [7, 14, 21, 28, 35]
    assert operations(gamma=0.0, every=7, stop=21) == [7, 14, 21]
    assert operations(gamma=0.0, every=7, stop=20) == [7, 14]
    assert operations(gamma=0.0, stop=0) == []


def test_the_seed_makes_a_difference():
    first, again, other = (operations(gamma=1.0, power=0.5, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_between_the_thresholds_all_stay_as_they_are():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    surgery = pw.Surgery(model, optimizer, criterion="magnitude", threshold=1.0, margin=0.2, targets="0", gamma=0.0)

    def move(*values: float) -> list[bool]:
        """Let the optimizer bring the first weights to these values; tell which are alive then."""
        weight = model[0].weight
        full = surgery.state_dict()["dark"][0].get("0.weight", weight).detach()
        full = torch.where(surgery.masks["0.weight"], weight.detach(), full)
        weight.grad = torch.zeros_like(weight)
        weight.grad[0, : len(values)] = full[0, : len(values)] - torch.tensor(values)
        optimizer.step()
        return list(surgery.masks["0.weight"][0, : len(values)])

    assert move(0.9, 0.7, 1.1, 1.3) == [True, False, True, True]
    assert move(1.1, 1.1, 0.9, 0.7) == [True, False, True, False]
    assert move(0.7, 1.3, 0.9, 1.1) == [False, True, True, False]
    assert move(-1.3, 0.9, -0.7, 0.9) == [True, True, False, False]
