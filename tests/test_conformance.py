"""What every registered part must do. A new part is picked up from the registry; nothing here names one."""

import dataclasses
import pickle
import re

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.base import Allocation, Criterion, Offline, Online, Pattern, Schedule, Uncertainty
from prunewald.core.ranking import Ranked
from prunewald.util.registry import brief, known, make, name_of
from tests.training import SMALL

# A kind has the name of the Pruner's argument.
KINDS = {
    "criterion": Criterion,
    "uncertainty": Uncertainty,
    "scope": Allocation,
    "pattern": Pattern,
    "schedule": Schedule,
}
EVERY = [(kind, name) for kind in KINDS for name in sorted(known(kind))]
CRITERIA, SCOPES, PATTERNS, SCHEDULES = (sorted(known(kind)) for kind in ("criterion", "scope", "pattern", "schedule"))
ONLINE = sorted(name for name, part in known("uncertainty").items() if issubclass(part, Online))
OFFLINE = sorted(name for name, part in known("uncertainty").items() if issubclass(part, Offline))

SIGMA = [name for name in CRITERIA if make("criterion", name).uses_sigma]
# A criterion that uses no sigma cannot tell one estimator from another.
PAIRS = [(c, u) for c in CRITERIA for u in (ONLINE if c in SIGMA else ["second-moment"])]

# Schedules that a few steps are enough for; one that is not here trains for as long as its defaults say.
SHORT = {"cubic": pw.Cubic(0.8, begin=2, end=9, every=3), "stairs": pw.Stairs((0.3, 0.8), begin=3, every=4)}
# What parts offer their users beyond their fields and what the base class has; the library calls none of it.
BEYOND = {"batch-means": {"lengths", "offset"}}

# Windows are meant for longer trainings than these.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of"),
]


def attached(**choice):
    """A small model with a Pruner, and a function that trains it for some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, **choice)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 1, 6, 6)).square().sum().backward()
            optimizer.step()

    return pruner, train


def trained(uncertainty, **choice):
    pruner, train = attached(uncertainty=SMALL.get(uncertainty, uncertainty), **choice)
    train(24)
    return pruner, train


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_part_is_a_frozen_dataclass_with_defaults_that_travels(kind, name):
    part = make(kind, name)
    assert isinstance(part, KINDS[kind])
    assert dataclasses.is_dataclass(part)
    assert type(part).__dataclass_params__.frozen
    assert part == make(kind, name)
    assert pickle.loads(pickle.dumps(part)) == part
    assert name_of(kind, part) == name
    assert type(part).__doc__
    assert hash(part) == hash(make(kind, name))
    assert brief(part).startswith(type(part).__name__ + "(")


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_what_the_library_asks_of_a_part_is_in_its_base_class(kind, name):
    part = known(kind)[name]
    bases = [cls for cls in part.__mro__ if cls.__module__ == Criterion.__module__]
    asked = {member for base in bases for member in vars(base)}
    own = {member for cls in part.__mro__ if cls not in bases for member in vars(cls) if not member.startswith("_")}
    assert own - asked - {field.name for field in dataclasses.fields(part)} == BEYOND.get(name, set())


@pytest.mark.parametrize("scope", SCOPES)
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
    sigma = pruner.sigma()
    for name, mask in pruner.masks.items():
        assert sigma[name].shape == mask.shape
        assert (sigma[name] >= 0).all()


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
        return (
            all(map(plain, value)) if isinstance(value, list | tuple) else isinstance(value, torch.Tensor | int | float)
        )

    assert plain(pruner.state_dict())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_keeps_the_count_it_is_given_or_the_nearest_it_can(pattern):
    part = make("pattern", pattern)
    score = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    least = 0 if part.sparsity is None else round((1 - part.sparsity) * score.numel())
    before = torch.ones(12, 16, dtype=torch.bool)
    for keep in (192, 191, 130, 101, 97, 96, 30, 1, 0):
        if keep < least:
            with pytest.raises(ValueError, match=f"at least {least}.* {keep}: "):
                part(Ranked(score, score), keep)
            continue
        mask = part(Ranked(score, score), keep)
        assert mask.shape == score.shape
        assert (mask <= before).all(), "a lower count only prunes more"
        assert int(mask.sum()) == part.nearest(score.shape, keep)
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


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_a_function_of_the_step_that_never_falls_and_ends_at_final(schedule):
    for part in (make("schedule", schedule), SHORT.get(schedule, make("schedule", schedule))):
        levels = [part(step) for step in range(1, 20_000)]
        reached = [level for level in levels if level is not None]
        assert all(0 <= level < 1 for level in reached)
        assert reached == sorted(reached)
        assert reached[-1] == part.final
        assert [part(step) for step in range(19_999, 0, -1)] == levels[::-1], "it depends on the step alone"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_prunes_by_itself_while_a_model_trains(schedule):
    part = SHORT.get(schedule, make("schedule", schedule))
    pruner, train = attached(criterion="magnitude", schedule=part)
    size, level = sum(mask.numel() for mask in pruner.masks.values()), 0.0
    for step in range(1, 20_000):
        train(1)
        level = part(step) or level
        assert sum(int((~mask).sum()) for mask in pruner.masks.values()) == round(level * size)
        if level == part.final:
            break
    assert pruner.report is not None
    for name, mask in pruner.masks.items():
        assert (pruner.model.get_parameter(name)[~mask] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_part_is_repeated_with_the_short_names(kind):
    some = sorted(known(kind))[0]
    with pytest.raises(ValueError, match=f"{kind} 'nonsense'.*{some}"):
        pw.Pruner(nn.Linear(2, 2), **{kind: "nonsense"})
    with pytest.raises(TypeError, match=f"{kind}=4: .*'{some}'"):
        pw.Pruner(nn.Linear(2, 2), **{kind: 4})
