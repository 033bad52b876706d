"""Accelerate: a Pruner before and after prepare, in its checkpoints, and in two processes."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

import prunewald as pw
from prunewald.integrations.accelerate import attach
from tests.processes import free_port, leave
from tests.resuming import same

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: pip install 'prunewald[accelerate]'"
)
STEPS, BATCHES = 24, 12


@pytest.fixture
def accelerator(request):
    """One on the CPU; a parameter is what it is made with. Accelerate keeps its state for the whole process."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    yield accelerate.Accelerator(cpu=True, **getattr(request, "param", {}))
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def parts(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def batch(at):
    draw = torch.Generator().manual_seed(at)
    x = torch.randn(8, 12, generator=draw)
    return x, (x[:, :4]).argmax(1)


def train(accelerator, model, optimizer, first, last):
    for at in range(first, last):
        x, y = batch(at)
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def zeros_of(pruner):
    """How many pruned weights there are, of which none is anything but zero."""
    params = dict(pruner.model.named_parameters())
    pruned = [params[name].detach()[~mask] for name, mask in pruner.masks.items()]
    assert all(not weights.any() for weights in pruned)
    return sum(map(len, pruned))


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accelerator", [{}, {"mixed_precision": "bf16"}], indirect=True, ids=["fp32", "bf16"])
@pytest.mark.parametrize("early", [True, False], ids=["before prepare", "after prepare"])
def test_zeros_hold_while_the_accelerator_trains(accelerator, early):
    model, optimizer = parts()
    pruner = attach(accelerator, model, optimizer) if early else None
    model, optimizer = accelerator.prepare(model, optimizer)
    pruner = pruner or attach(accelerator, model, optimizer)
    train(accelerator, model, optimizer, 0, BATCHES)
    assert "second moment that the optimizer keeps" in pruner.prune(0.8).notes[0]
    before = {name: param.clone() for name, param in pruner.model.named_parameters()}
    train(accelerator, model, optimizer, BATCHES, STEPS)
    assert zeros_of(pruner) == round(0.8 * 512)
    assert pruner.steps == STEPS
    assert not any(torch.equal(param, before[name]) for name, param in pruner.model.named_parameters())


@pytest.mark.parametrize("accelerator", [{"gradient_accumulation_steps": 3}], indirect=True)
def test_steps_are_those_of_the_optimizer_where_gradients_accumulate(accelerator):
    model, optimizer = accelerator.prepare(*parts())
    pruner = attach(accelerator, model, optimizer, schedule="cubic", total_steps=STEPS // 3)
    train(accelerator, model, optimizer, 0, STEPS)
    assert pruner.steps == STEPS // 3
    assert zeros_of(pruner) == pruner.history[-1][2] * 512 > 0.85 * 512
    assert pruner.at_work == ""


def test_before_and_after_prepare_are_the_same_training(accelerator):
    first, second = parts(), parts()
    early = attach(accelerator, *first, criterion="magnitude", schedule="cubic", total_steps=STEPS)
    train(accelerator, *accelerator.prepare(*first), 0, STEPS)
    prepared = accelerator.prepare(*second)
    late = attach(accelerator, *prepared, criterion="magnitude", schedule="cubic", total_steps=STEPS)
    train(accelerator, *prepared, 0, STEPS)
    assert same(dict(early.model.state_dict()), dict(late.model.state_dict()))
    assert same(early.masks, late.masks)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def prepared(accelerator, seed, **choices):
    model, optimizer = accelerator.prepare(*parts(seed))
    return model, optimizer, attach(accelerator, model, optimizer, **choices)


@pytest.mark.parametrize("accelerator", [{"gradient_accumulation_steps": 2}], indirect=True)
@pytest.mark.parametrize("sigma", [None, pw.PseudoBootstrap(last=4)], ids=["default", "pseudo-bootstrap"])
def test_a_resumed_training_is_the_same_bit_for_bit(accelerator, sigma, tmp_path):
    choices = {"uncertainty": sigma, "schedule": pw.Cubic(0.9, begin=6, end=12, every=1)}
    model, optimizer, pruner = prepared(accelerator, 0, **choices)
    train(accelerator, model, optimizer, 0, 16)
    accelerator.save_state(tmp_path / "saved")
    assert torch.load(tmp_path / "saved" / "custom_checkpoint_0.pkl", weights_only=True)["steps"] == 8
    train(accelerator, model, optimizer, 16, STEPS)

    other = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    again, its_optimizer, resumed = prepared(other, 1, **choices)
    other.load_state(tmp_path / "saved")
    assert 0 < zeros_of(resumed) < zeros_of(pruner)
    train(other, again, its_optimizer, 16, STEPS)
    assert same(dict(again.state_dict()), dict(model.state_dict()))
    assert same(resumed.state_dict(), pruner.state_dict())
    assert resumed.history == pruner.history


@pytest.mark.parametrize(
    ("saved", "says"),
    [({"targets": "0"}, "'2.weight' has no mask"), (None, "saved without this Pruner.*attach")],
    ids=["other targets", "no Pruner"],
)
def test_a_checkpoint_that_does_not_fit_is_an_error_and_nothing_is_loaded(accelerator, saved, says, tmp_path):
    model, optimizer = accelerator.prepare(*parts(1))
    if saved is not None:
        attach(accelerator, model, optimizer, **saved).prune(0.5)
    accelerator.save_state(tmp_path)
    other = accelerate.Accelerator(cpu=True)
    model, _, pruner = prepared(other, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=says):
        other.load_state(tmp_path)
    assert same(dict(model.state_dict()), before)
    assert pruner.sparsity == 0


def test_a_pruner_that_was_detached_writes_nothing_and_gives_its_place_to_the_next(accelerator, tmp_path):
    model, optimizer, first = prepared(accelerator, 0)
    first.prune(0.5)
    accelerator.save_state(tmp_path / "pruned")
    first.detach()
    train(accelerator, model, optimizer, 0, BATCHES)
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    accelerator.save_state(tmp_path / "dense")
    with pytest.raises(ValueError, match=r"pruned has the state of a Pruner that was detached since: attach\(\)"):
        accelerator.load_state(tmp_path / "pruned")
    assert same(dict(model.state_dict()), dense)
    second = attach(accelerator, model, optimizer)
    accelerator.load_state(tmp_path / "pruned")
    assert zeros_of(second) == 256
    assert accelerator._custom_objects == [second]


# ---- refused -----------------------------------------------------------------------------------------------------


def test_a_second_pruner_of_a_model_is_refused(accelerator):
    model, optimizer, pruner = prepared(accelerator, 0)
    pruner.prune(0.5)
    with pytest.raises(ValueError, match=r"registered already.*detach\(\)"):
        attach(accelerator, model, optimizer)
    assert pruner.holding
    pruner.detach()
    attach(accelerator, model, optimizer)


def test_another_model_than_the_prepared_one_is_refused(accelerator):
    accelerator.prepare(*parts())
    with pytest.raises(ValueError, match=r"Sequential is none of the models.*prepare\(model"):
        attach(accelerator, *parts())


def test_what_is_no_accelerator_is_refused():
    with pytest.raises(TypeError, match="attach\\(Sequential.*Accelerator first"):
        attach(*parts())


def test_sharding_is_refused_before_anything_is_attached(accelerator):
    model, optimizer = parts()
    accelerator.state.distributed_type = accelerate.DistributedType.FSDP
    with pytest.raises(ValueError, match="distributed_type=FSDP.*DDP"):
        attach(accelerator, model, optimizer)
    assert not optimizer._optimizer_step_post_hooks


# ---- two processes -----------------------------------------------------------------------------------------------


def in_two(rank, port, folder):
    """Train with data of one's own, prune, save, train on; then do the second half again from the checkpoint.

    Once the Pruner is made before prepare, once after it.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "yes"}
    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True)
    found = []
    mine, schedule = 100 * (rank + 1), pw.Cubic(0.9, begin=4, end=10, every=1)
    for seed in (0, 1):
        if seed == 0:
            model, optimizer = parts(seed)
            pruner = attach(accelerator, model, optimizer, schedule=schedule)
            model, optimizer = accelerator.prepare(model, optimizer)
            train(accelerator, model, optimizer, mine, mine + 8)
            accelerator.save_state(f"{folder}/saved")
        else:
            model, optimizer, pruner = prepared(accelerator, seed, schedule=schedule)
            accelerator.load_state(f"{folder}/saved")
        train(accelerator, model, optimizer, mine + 8, mine + 16)
        found.append((pruner.masks, dict(pruner.model.state_dict()), type(model).__name__, zeros_of(pruner)))
        accelerator = accelerate.Accelerator(cpu=True)
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_prune_alike_and_resume_bit_for_bit(tmp_path):
    multiprocessing.spawn(in_two, (free_port(), str(tmp_path)), nprocs=2)
    runs = [run for rank in (0, 1) for run in torch.load(tmp_path / f"{rank}.pt")]
    first, *others = runs
    assert first[2] == "DistributedDataParallel"
    assert first[3] == round(0.9 * 512)
    for other in others:
        assert same(other[0], first[0])
        assert same(other[1], first[1])
