"""What every registered part must do. A new part is picked up from the registry; nothing here names one."""

import dataclasses
import pickle
import re

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.ranking import Ranked
from prunewald.util.registry import brief, known, make, name_of, register
from tests.training import SMALL

CRITERIA = sorted(known("criterion"))
ONLINE = sorted(name for name, part in known("uncertainty").items() if hasattr(part, "update_"))
OFFLINE = sorted(name for name, part in known("uncertainty").items() if hasattr(part, "estimate"))
ALLOCATIONS, PATTERNS = sorted(known("allocation")), sorted(known("pattern"))
EVERY = [(kind, name) for kind in ("criterion", "uncertainty", "allocation", "pattern") for name in sorted(known(kind))]


SIGMA = [name for name in CRITERIA if make("criterion", name).uses_sigma]
# A criterion that uses no sigma cannot tell one estimator from another.
PAIRS = [(c, u) for c in CRITERIA for u in (ONLINE if c in SIGMA else ["second-moment"])]

# Windows are meant for longer trainings than these.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of"),
]


def trained(uncertainty, **choice):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, uncertainty=SMALL.get(uncertainty, uncertainty), **choice)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 1, 6, 6)).square().sum().backward()
            optimizer.step()

    train(24)
    return pruner, train


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_part_is_a_frozen_dataclass_with_defaults_that_travels(kind, name):
    part = make(kind, name)
    assert dataclasses.is_dataclass(part)
    assert type(part).__dataclass_params__.frozen
    assert part == make(kind, name)
    assert pickle.loads(pickle.dumps(part)) == part
    assert name_of(kind, part) == name
    assert type(part).__doc__
    assert hash(part) == hash(make(kind, name))
    assert brief(part).startswith(type(part).__name__ + "(")


@pytest.mark.parametrize("scope", ALLOCATIONS)
@pytest.mark.parametrize(("criterion", "uncertainty"), PAIRS)
def test_every_criterion_prunes_by_every_uncertainty_in_every_scope(criterion, uncertainty, scope):
    pruner, train = trained(criterion=criterion, uncertainty=uncertainty, scope=scope)
    total = sum(mask.numel() for mask in pruner.masks.values())
    for sparsity in (0.5, 0.8):
        before = pruner.masks
        dry = pruner.prune(sparsity, dry_run=True)
        assert all(torch.equal(before[n], m) for n, m in pruner.masks.items())
        report = pruner.prune(sparsity)
        assert report.rows == dry.rows
        rows = sum(map(len, before.values()))
        assert abs(report.kept - (1 - sparsity) * total) <= rows / 2, "one rounding a row, at the most"
        assert all((m <= before[n]).all() for n, m in pruner.masks.items()), "a pruned weight came back"
        for name, mask in pruner.masks.items():
            assert (pruner.model.get_parameter(name)[~mask] == 0).all()
        train(24)
    for name, mask in pruner.masks.items():
        assert (pruner.model.get_parameter(name)[~mask] == 0).all()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_scores_are_the_same_twice_and_leave_the_model_alone(criterion):
    pruner, _ = trained(criterion=criterion, uncertainty="pseudo-bootstrap")
    before = {n: p.clone() for n, p in pruner.model.named_parameters()}
    first, second = pruner.scores(), pruner.scores()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert all(torch.equal(before[n], p) for n, p in pruner.model.named_parameters())


@pytest.mark.parametrize("uncertainty", ONLINE)
def test_sigma_is_one_number_a_weight_and_not_negative(uncertainty):
    pruner, _ = trained(criterion=pw.Wald(), uncertainty=uncertainty)
    sigma, dead = pruner.sigma(), pruner.dead()
    for name, mask in pruner.masks.items():
        assert sigma[name].shape == dead[name].shape == mask.shape
        assert (sigma[name] >= 0).all()
        assert dead[name].dtype == torch.bool


def test_an_estimator_is_online_or_offline():
    assert sorted(ONLINE + OFFLINE) == sorted(known("uncertainty"))


@pytest.mark.parametrize("uncertainty", OFFLINE)
def test_an_offline_sigma_has_the_shape_of_the_weights_and_leaves_the_model_alone(uncertainty):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    before = {n: p.clone() for n, p in model.named_parameters()}
    x = torch.randn(64, 3, dtype=torch.float64)
    estimator = make("uncertainty", uncertainty)
    if "inverse" in {f.name for f in dataclasses.fields(estimator)}:
        estimator = dataclasses.replace(estimator, inverse="damped")
    data = [(x, x.sum(1, keepdim=True))]
    if "rate" in {f.name for f in dataclasses.fields(estimator)}:  # the Hessian of two layers is singular
        model = nn.Sequential(nn.Linear(3, 1)).double()
        before = {n: p.clone() for n, p in model.named_parameters()}
    sigma = estimator.estimate(model, data, nn.functional.mse_loss)
    assert model.training
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    for name, value in sigma.items():
        assert value.shape == model.get_parameter(name).shape
        assert (value >= 0).all()


@pytest.mark.parametrize("uncertainty", ONLINE)
def test_the_state_of_an_estimator_is_tensors_and_numbers(uncertainty):
    pruner, _ = trained(criterion=pw.Wald(), uncertainty=uncertainty)

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        return all(map(plain, value)) if isinstance(value, list) else isinstance(value, torch.Tensor | int | float)

    assert plain(pruner.state_dict())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_keeps_the_count_it_is_given_or_the_nearest_it_can(pattern):
    part = make("pattern", pattern)
    score = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    least = round((1 - getattr(part, "sparsity", 1.0)) * score.numel())
    before = torch.ones(12, 16, dtype=torch.bool)
    for keep in (192, 191, 130, 101, 97, 96, 30, 1, 0):
        if keep < least:
            with pytest.raises(ValueError, match="keeps at least"):
                part(Ranked(score, score), keep)
            continue
        mask = part(Ranked(score, score), keep)
        assert mask.shape == score.shape
        assert (mask <= before).all(), "a lower count only prunes more"
        assert int(mask.sum()) == (part.nearest(score.shape, keep) if hasattr(part, "nearest") else keep)
        mask &= mask  # a mask is the caller's own
        before = mask


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_says_which_shapes_it_fits(pattern):
    part = make("pattern", pattern)
    score = torch.rand(7, 3)
    try:
        mask = part(Ranked(score, score), 21)
    except ValueError:
        with pytest.raises(ValueError, match=re.escape(f"shape (7, 3): {part!r} ")):
            part.check(score.shape)
    else:
        assert mask.all()


def test_an_unknown_name_is_repeated_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown criterion 'magnitud'; known: magnitude, magnitude-uncertainty"):
        pw.Pruner(nn.Linear(2, 2), criterion="magnitud")
    with pytest.raises(ValueError, match="unknown allocation 'rows'"):
        pw.Pruner(nn.Linear(2, 2), scope="rows")


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="criterion 'magnitude' is registered already"):
        register("criterion", "magnitude")(object)
