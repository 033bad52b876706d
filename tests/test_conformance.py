"""What every registered part must do. A new part is picked up from the registry; nothing here names one."""

import dataclasses
import pickle

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.registry import brief, make, name_of, parts, register
from prunewald.selection import Ranked

CRITERIA = sorted(parts("criterion"))
ONLINE = sorted(name for name, part in parts("uncertainty").items() if hasattr(part, "update_"))
OFFLINE = sorted(name for name, part in parts("uncertainty").items() if hasattr(part, "estimate"))
ALLOCATIONS, PATTERNS = sorted(parts("allocation")), sorted(parts("pattern"))
EVERY = [(kind, name) for kind in ("criterion", "uncertainty", "allocation", "pattern") for name in sorted(parts(kind))]


# Windows are meant for longer trainings than these.
pytestmark = pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of")


def trained(**choice):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, **choice)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 1, 6, 6)).square().sum().backward()
            optimizer.step()

    train(402)
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
@pytest.mark.parametrize("uncertainty", ONLINE)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_prunes_by_every_uncertainty_in_every_scope(criterion, uncertainty, scope):
    pruner, train = trained(criterion=criterion, uncertainty=uncertainty, scope=scope)
    total = sum(mask.numel() for mask in pruner.masks.values())
    for sparsity in (0.5, 0.8):
        before = pruner.masks
        dry = pruner.prune(sparsity, dry_run=True)
        assert all(torch.equal(before[n], m) for n, m in pruner.masks.items())
        report = pruner.prune(sparsity)
        assert report.rows == dry.rows
        assert abs(report.kept - (1 - sparsity) * total) <= len(pruner.masks)
        assert all((m <= before[n]).all() for n, m in pruner.masks.items()), "a pruned weight came back"
        for name, mask in pruner.masks.items():
            assert (pruner.model.get_parameter(name)[~mask] == 0).all()
        train(402)
    for name, mask in pruner.masks.items():
        assert (pruner.model.get_parameter(name)[~mask] == 0).all()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_scores_are_the_same_twice_and_leave_the_model_alone(criterion):
    pruner, _ = trained(criterion=criterion, uncertainty=pw.PseudoBootstrap(last=50))
    before = {n: p.clone() for n, p in pruner.model.named_parameters()}
    first, second = pruner.scores(), pruner.scores()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert all(torch.equal(before[n], p) for n, p in pruner.model.named_parameters())


@pytest.mark.parametrize("uncertainty", ONLINE)
def test_sigma_is_one_number_a_weight_and_not_negative(uncertainty):
    pruner, _ = trained(criterion=pw.Wald(), uncertainty=uncertainty)
    sigma, frozen = pruner.sigma(), pruner.frozen()
    for name, mask in pruner.masks.items():
        assert sigma[name].shape == frozen[name].shape == mask.shape
        assert (sigma[name] >= 0).all()
        assert frozen[name].dtype == torch.bool


def test_an_estimator_is_online_or_offline():
    assert sorted(ONLINE + OFFLINE) == sorted(parts("uncertainty"))


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
def test_every_pattern_keeps_the_count_it_is_given(pattern):
    score = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    for keep in (0, 1, 96, 192):
        assert int(make("pattern", pattern)(Ranked(score, score), keep).sum()) == keep


def test_an_unknown_name_is_repeated_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown criterion 'magnitud'; known: magnitude, magnitude-uncertainty"):
        pw.Pruner(nn.Linear(2, 2), criterion="magnitud")
    with pytest.raises(ValueError, match="unknown allocation 'rows'"):
        pw.Pruner(nn.Linear(2, 2), scope="rows")


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="criterion 'magnitude' is registered already"):
        register("criterion", "magnitude")(object)
