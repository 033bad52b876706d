"""Optimizers of others that keep weights beside the model's, or step in two halves: zeros hold, steps are counted."""

import copy

import pytest
import torch

import prunewald as pw
from prunewald.strategies.training_state import restore_, take
from tests import transcriptions
from tests.training import assert_zeros, batch, closure_step, loss_of, one_step, train, wide, zeros_hold
from tests.transcriptions import SAM, AdamBoth8bit, LightningOptimizer, Lookahead, SlowLookahead

pytestmark = pytest.mark.usefixtures("one_thread")


def kind_of(package, name):
    """A class of the package itself, where it is installed, or its transcription."""
    return getattr(transcriptions if package is None else pytest.importorskip(package), name)


def assert_seen_everywhere(model, pruner, path):
    """Zeros in an evaluation, in a state dict, in a file, and in what the Pruner says; nothing is warned of."""
    share = pruner.report.sparsity
    assert pruner.sparsity == pytest.approx(share)
    model.eval()(batch(0)[0])
    assert zeros_hold(model, pruner)
    saved = copy.deepcopy(model.state_dict())
    assert all((saved[name][~mask] == 0).all() for name, mask in pruner.masks.items())
    pw.save(pruner, path)
    assert "not zero" not in repr(pruner)
    model.train()


# ---- schedule-free -----------------------------------------------------------------------------------------------

SCHEDULE_FREE = {"AdamWScheduleFree": {}, "SGDScheduleFree": {"lr": 0.1}}


@pytest.mark.parametrize("package", [None, "schedulefree"])
@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_a_schedule_free_optimizer_evaluates_and_saves_zeros(package, name, tmp_path):
    model = wide()
    optimizer = kind_of(package, name)(model.parameters(), **SCHEDULE_FREE[name])
    pruner = pw.Pruner(model, optimizer)
    optimizer.train()
    train(model, optimizer, 5)
    pruner.prune(0.8)
    for epoch in range(2):
        optimizer.eval()
        assert_seen_everywhere(model, pruner, tmp_path / "model.pw")
        optimizer.train()
        assert zeros_hold(model, pruner)
        train(model, optimizer, 3, first=3 * epoch)
    assert pruner.steps == 11
    assert all((optimizer.state[model.get_parameter(n)]["z"][~mask] == 0).all() for n, mask in pruner.masks.items())


@pytest.mark.parametrize("package", [None, "schedulefree"])
def test_a_schedule_fires_under_a_schedule_free_optimizer(package, tmp_path):
    model = wide()
    optimizer = kind_of(package, "AdamWScheduleFree")(model.parameters())
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=3, end=9))
    optimizer.train()
    train(model, optimizer, 12)
    optimizer.eval()
    assert pruner.sparsity == pytest.approx(0.8)
    assert_seen_everywhere(model, pruner, tmp_path / "model.pw")


@pytest.mark.parametrize("package", [None, "schedulefree"])
def test_the_second_moment_of_schedule_free_adamw_is_its_own_and_not_that_of_the_scaled_gradients(package):
    model = wide()
    optimizer = kind_of(package, "AdamWScheduleFree")(model.parameters(), betas=(0.9, 0.99))
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.SecondMoment())
    optimizer.train()
    squares = torch.zeros(20, 6)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        squares = 0.99 * squares + 0.01 * model[0].weight.grad.square()
        optimizer.step()
    scaled = pruner.sigma()["0.weight"] * squares.sqrt()
    living = squares > 0
    torch.testing.assert_close(scaled[living], scaled[living].mean().expand(int(living.sum())))


@pytest.mark.parametrize("package", [None, "schedulefree"])
def test_a_state_of_before_the_pruning_is_noticed_once(package):
    """The values beside the weights come back dense with the optimizer's own state_dict."""
    model = wide()
    optimizer = kind_of(package, "SGDScheduleFree")(model.parameters(), lr=0.1)
    optimizer.train()
    train(model, optimizer, 3)
    dense = copy.deepcopy(optimizer.state_dict())
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    optimizer.load_state_dict(dense)
    optimizer.eval()
    with pytest.warns(UserWarning, match="'0.weight'.*SGDScheduleFree.*set to zero") as caught:
        model.eval()(batch(0)[0])
    assert len(caught) == 1
    for _ in range(2):
        optimizer.train()
        optimizer.eval()
        model(batch(0)[0])
        model.state_dict()
        assert zeros_hold(model, pruner)


# ---- SAM ---------------------------------------------------------------------------------------------------------


def two_halves(model, optimizer, step):
    """The two steps as the README of davda54/sam has them."""
    loss_of(model, step).backward()
    optimizer.first_step(zero_grad=True)
    loss_of(model, step).backward()
    optimizer.second_step(zero_grad=True)


def with_closure(model, optimizer, step):
    """The closure as the README of davda54/sam has it."""

    def closure():
        loss = loss_of(model, step)
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)
    optimizer.zero_grad()


SAMS = {"davda54": lambda: SAM, "pytorch_optimizer": lambda: kind_of("pytorch_optimizer", "SAM")}


@pytest.mark.parametrize("sam", SAMS)
@pytest.mark.parametrize("step", [two_halves, with_closure])
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, LightningOptimizer], ids=["plain", "Lightning"])
def test_sam_holds_zeros_and_counts_its_steps(sam, step, wrap, tmp_path):
    model = wide()
    optimizer = SAMS[sam]()(model.parameters(), torch.optim.Adam, lr=1e-2)
    pruner = pw.Pruner(model, wrap(optimizer))
    for number in range(4):
        step(model, optimizer, number)
    assert pruner.prune(0.8).uncertainty == "SecondMoment()"
    for number in range(4):
        step(model, optimizer, number)
        assert_zeros(model, pruner.masks)
    assert pruner.steps == 8
    assert_seen_everywhere(model, pruner, tmp_path / "model.pw")


@pytest.mark.parametrize("sam", SAMS)
@pytest.mark.parametrize("step", [two_halves, with_closure])
def test_a_schedule_fires_under_sam_and_the_perturbed_weights_are_pruned_too(sam, step):
    model = wide()
    optimizer = SAMS[sam]()(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=pw.Cubic(0.8, begin=3, end=9))
    seen = []
    model.register_forward_hook(lambda *_: seen.append(zeros_hold(model, pruner)))
    for number in range(12):
        step(model, optimizer, number)
    assert pruner.sparsity == pytest.approx(0.8)
    assert len(seen) == 24
    assert all(seen)


# ---- Lookahead ---------------------------------------------------------------------------------------------------

LOOKAHEADS = {
    "torch_optimizer": lambda inside: Lookahead(inside),
    "pytorch_optimizer": lambda inside: kind_of("pytorch_optimizer", "Lookahead")(inside, k=2),
}


@pytest.mark.parametrize("name", LOOKAHEADS)
@pytest.mark.parametrize("step", [one_step, closure_step])
def test_lookahead_brings_nothing_back(name, step, tmp_path):
    model = wide()
    optimizer = LOOKAHEADS[name](torch.optim.Adam(model.parameters(), lr=1e-2))
    pruner = pw.Pruner(model, optimizer)
    for number in range(5):
        step(model, optimizer, number)
    assert pruner.prune(0.8).uncertainty == "SecondMoment()"
    for number in range(6):
        step(model, optimizer, number)
        assert_zeros(model, pruner.masks)
        assert_seen_everywhere(model, pruner, tmp_path / "model.pw")
    assert pruner.steps == 11


@pytest.mark.parametrize("name", LOOKAHEADS)
def test_a_schedule_fires_under_lookahead(name):
    model = wide()
    optimizer = LOOKAHEADS[name](torch.optim.Adam(model.parameters(), lr=1e-2))
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=3, end=9))
    train(model, optimizer, 12)
    assert pruner.sparsity == pytest.approx(0.8)


def test_slow_weights_that_no_state_shows_are_noticed_once(tmp_path):
    model = wide()
    optimizer = SlowLookahead(torch.optim.Adam(model.parameters(), lr=1e-2))
    pruner = pw.Pruner(model, optimizer)
    train(model, optimizer, 4)
    pruner.prune(0.8)
    train(model, optimizer, 2)
    with pytest.warns(UserWarning, match="'0.weight'.*SlowLookahead.*set to zero") as caught:
        model.eval()(batch(0)[0])
    assert len(caught) == 1
    for number in range(3):
        model.train()
        train(model, optimizer, 2, first=2 * number)
        assert_seen_after_a_look(model, pruner, tmp_path / "model.pw")
    assert pruner.steps == 12


def assert_seen_after_a_look(model, pruner, path):
    model.eval()(batch(0)[0])
    assert_seen_everywhere(model, pruner, path)


# ---- state in 8 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [None, pw.Cubic(0.8, begin=4, end=5)])
def test_moments_in_8_bits_are_left_alone_and_the_report_says_so(schedule):
    model = wide()
    optimizer = AdamBoth8bit(model.parameters(), lr=1e-2)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=schedule)
    train(model, optimizer, 6)
    if schedule is None:
        before = optimizer.state[model[0].weight]["exp_avg"].codes.clone()
        pruner.prune(0.8)
        assert torch.equal(optimizer.state[model[0].weight]["exp_avg"].codes, before)
    (note,) = [note for note in pruner.report.notes if "8 bits" in note]
    assert "AdamBoth8bit" in note
    assert "exp_avg" in note
    train(model, optimizer, 4)
    assert_zeros(model, pruner.masks)
    assert pruner.sparsity == pytest.approx(0.8)


# ---- going back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKAHEADS)
def test_slow_weights_go_back_with_the_training(name):
    """What is trained after a way back is what was trained after the state was taken."""
    model = wide()
    optimizer = LOOKAHEADS[name](torch.optim.Adam(model.parameters(), lr=1e-2))
    pruner = pw.Pruner(model, optimizer)
    train(model, optimizer, 5)
    before, checkpoint = take(pruner), pw.strategies.Checkpoint(model, optimizer)
    train(model, optimizer, 4)
    after = copy.deepcopy(model.state_dict())
    pruner.prune(0.8)
    restore_(pruner, before)
    train(model, optimizer, 4)
    assert all(torch.equal(after[key], tensor) for key, tensor in model.state_dict().items())
    pruner.reset()
    checkpoint.weights_()
    train(model, optimizer, 4)
    assert all(torch.equal(after[key], tensor) for key, tensor in model.state_dict().items())
