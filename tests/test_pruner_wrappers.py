"""Optimizers and models as trainers wrap them: zeros hold, steps count, and names are those of the plain model."""

import copy
import re

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import assert_zeros, loss_of, one_step, sgd, train, wide
from tests.transcriptions import AcceleratedOptimizer, LightningOptimizer, Unhooked

WRAPPERS = {
    "Accelerate": AcceleratedOptimizer,
    "Lightning": LightningOptimizer,
    "both": lambda optimizer: LightningOptimizer(AcceleratedOptimizer(optimizer)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_under_a_wrapped_optimizer_zeros_hold_and_steps_count(wrapper):
    model = wide()
    inside = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = WRAPPERS[wrapper](inside)
    pruner = pw.Pruner(model, optimizer)
    train(model, optimizer, 4)
    report = pruner.prune(0.8)
    assert (report.criterion, report.uncertainty) == ("MagnitudeUncertainty()", "SecondMoment()")
    train(model, optimizer, 3)
    assert_zeros(model, pruner.masks)
    assert pruner.steps == 7
    assert pruner.optimizers == [inside]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_optimizer_prunes_as_the_plain_one_does(wrapper):
    found = []
    for wrap in (lambda optimizer: optimizer, WRAPPERS[wrapper]):
        model = wide()
        optimizer = wrap(torch.optim.Adam(model.parameters(), lr=1e-3))
        pruner = pw.Pruner(model, [optimizer], schedule=pw.Cubic(0.8, begin=3, end=9))
        train(model, optimizer, 12)
        found.append([p.detach().clone() for p in model.parameters()])
        assert pruner.steps == 12
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_steps_of_another_optimizer_that_shares_the_hooks_are_a_plain_error():
    model = wide()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer)
    other = sgd(model)
    other._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks
    with pytest.raises(RuntimeError, match=r"SGD.*Pruner\(model, optimizer\)") as caught:
        one_step(model, other, 0)
    assert not isinstance(caught.value.__cause__ or caught.value.__context__, StopIteration)
    assert pruner.steps == 0


def test_what_has_no_step_hooks_is_refused_by_name_with_what_to_give():
    model = wide()
    for given in (Unhooked(model.parameters(), 0.1), [AcceleratedOptimizer(Unhooked(model.parameters(), 0.1))]):
        name = type(given[0] if isinstance(given, list) else given).__name__
        with pytest.raises(TypeError, match=rf"{name}.*inside it.*apply_\(\)"):
            pw.Pruner(model, given)


def step_in_backward(model):
    """An optimizer for each parameter, stepped as soon as its gradient is there: torch's tutorial on saving memory."""
    optimizers = {param: torch.optim.Adam([param], lr=1e-2) for param in model.parameters()}

    def step(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("schedule", [None, pw.Cubic(0.5, begin=4, end=6, every=1)])
def test_steps_within_the_backward_pass(order, schedule):
    model = wide()
    optimizers = step_in_backward(model)
    pruner = pw.Pruner(model, optimizers[::order], schedule=schedule)
    for number in range(8):
        loss_of(model, number).backward()
    if schedule is None:
        assert pruner.prune(0.5).uncertainty == "SecondMoment()"
    for number in range(8):
        loss_of(model, number).backward()
        assert_zeros(model, pruner.masks)
    assert (pruner.steps, pruner.sparsity) == (16, 0.5)


# ---- models ------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("order", ["DDP", "compiled DDP", "DDP of compiled"])
def test_a_model_in_ddp_has_its_plain_names_and_its_file_loads_into_the_plain_model(one_process, tmp_path, order):
    model, fresh = wide(), wide(1)
    ddp = nn.parallel.DistributedDataParallel
    outside = {"DDP": ddp, "compiled DDP": lambda m: compiled(ddp(m)), "DDP of compiled": lambda m: ddp(compiled(m))}
    wrapped = outside[order](model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)
    pruner = pw.Pruner(wrapped, optimizer)
    assert pruner.model is model
    train(wrapped, optimizer, 2)
    report = pruner.prune(0.8)
    assert [row.name for row in report.rows] == ["0.weight", "2.weight", "4.weight"]
    train(wrapped, optimizer, 2)
    assert_zeros(model, pruner.masks)
    pw.save(pruner, tmp_path / "a.pw")
    pw.load(tmp_path / "a.pw", into=fresh)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))
    pw.load(tmp_path / "a.pw", into=wrapped)


def test_a_model_in_data_parallel_has_its_plain_names():
    model = wide()
    pruner = pw.Pruner(nn.DataParallel(model), criterion="magnitude")
    pruner.prune(0.5)
    assert list(pruner.masks) == ["0.weight", "2.weight", "4.weight"]


# ---- parameters that come and go ---------------------------------------------------------------------------------


def test_a_group_that_is_added_later_is_known_at_the_next_pruning():
    model = wide()
    optimizer = torch.optim.Adam(model[:4].parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer)
    train(model, optimizer, 2)
    report = pruner.prune(0.3)
    assert any(re.search(r"no optimizer of this Pruner: 4\.weight", note) for note in report.notes)
    assert re.search("'4.weight': there is no optimizer that steps it", report.notes[0])
    optimizer.add_param_group({"params": list(model[4].parameters())})
    assert "Adam has taken no step" in pruner.prune(0.4).notes[0]
    train(model, optimizer, 2)
    report = pruner.prune(0.5)
    assert (report.criterion, report.uncertainty) == ("MagnitudeUncertainty()", "SecondMoment()")
    assert not any("no optimizer" in note for note in report.notes)
    assert pruner.sigma()["4.weight"].shape == (4, 20)
    train(model, optimizer, 2)
    assert_zeros(model, pruner.masks)


def test_an_estimator_that_did_not_watch_an_added_group_says_so():
    model = wide()
    optimizer = sgd(model[:4])
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.SecondMoment())
    optimizer.add_param_group({"params": list(model[4].parameters())})
    train(model, optimizer, 2)
    with pytest.raises(ValueError, match=r"'4\.weight'.*SGD.*make a new Pruner"):
        pruner.prune(0.5)


def test_a_parameter_that_moves_to_another_optimizer_is_read_there():
    model = wide()
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (model, copy.deepcopy(model[0])))
    pruner = pw.Pruner(model, [first, second])
    train(model, first, 2)
    weight = model[4].weight
    first.param_groups[0]["params"] = [p for p in first.param_groups[0]["params"] if p is not weight]
    second.add_param_group({"params": [weight]})
    assert re.search(r"'4\.weight': Adam has taken no step", pruner.prune(0.3).notes[0])
    for step in range(2):
        one_step(model, first, step)
        second.step()
    assert pruner.prune(0.5).uncertainty == "SecondMoment()"
    kept = pruner.masks["4.weight"]
    scaled = pruner.sigma()["4.weight"] * second.state[weight]["exp_avg_sq"].sqrt()
    torch.testing.assert_close(scaled[kept], scaled[kept].mean().expand(int(kept.sum())))


def test_frozen_parameters_are_not_missed():
    model = wide()
    model[0].requires_grad_(False)
    optimizer = sgd(model[1:])
    report = pw.Pruner(model, optimizer, criterion="magnitude").prune(0.5)
    assert not any("no optimizer" in note for note in report.notes)
