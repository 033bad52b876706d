"""Between steps the model has the zeros, whoever looks, steps, moves or fails."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.amp import GradScaler
from torch.optim.swa_utils import AveragedModel

import prunewald as pw
from tests.resuming import same
from tests.strategies.surgery_helpers import LEVELS, NAMES, Guo, adam, full, make, running, seeing
from tests.training import assert_zeros, closure_step, fused, loss_of, net, one_step, sgd

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]


def test_between_steps_the_model_has_the_zeros():
    model, optimizer, surgery = running(1)
    for step in range(20):
        assert_zeros(model, surgery.masks)
        assert all(not state[~surgery.masks[n]].any() for n, state in model.state_dict().items() if n in NAMES)
        assert 0.3 < surgery.sparsity < 0.7
        one_step(model, optimizer, step)
    assert all(full(surgery)[n][~mask].abs().min() > 0 for n, mask in surgery.masks.items())


def test_gradients_and_moments_of_dark_weights_are_not_masked():
    model, optimizer, surgery = running()
    for name, mask in surgery.masks.items():
        assert model.get_parameter(name).grad[~mask].any()
        assert optimizer.state[model.get_parameter(name)]["momentum_buffer"][~mask].any()


def refused(surgery: pw.Surgery, sparsity: Any) -> None:
    with pytest.raises(ValueError, match="no such layer"):
        surgery.prune(sparsity)


CHANGELESS: dict[str, Callable[[pw.Surgery], Any]] = {
    "sigma": lambda s: s.sigma(),
    "scores": lambda s: s.scores(),
    "dead": lambda s: s.dead(),
    "choose": lambda s: s.choose(0.5),
    "choose-fdr": lambda s: s.choose(fdr=0.1),
    "dry_run": lambda s: s.prune(0.8, dry_run=True),
    "state_dict": lambda s: s.state_dict(),
    "repr": repr,
    "error": lambda s: refused(s, {"no such layer": 0.5}),
}


@pytest.mark.filterwarnings("ignore:uncertainty", "ignore:sigma")
@pytest.mark.parametrize("look", CHANGELESS)
def test_to_look_changes_nothing(look):
    results = []
    for looking in (False, True):
        model, optimizer, surgery = running(optimizer=adam, uncertainty=pw.PseudoBootstrap(last=4), criterion="wald")
        for step in range(12, 16):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            if looking:
                CHANGELESS[look](surgery)  # with a graph in the making
            assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
            loss.backward()
            optimizer.step()
        results.append((model.state_dict(), optimizer.state_dict(), surgery.state_dict()))
    assert same(*results)


def test_scores_and_sigma_are_of_the_dark_weights_too():
    _, _, surgery = running(criterion="wald", uncertainty=pw.PseudoBootstrap(last=4))
    weights, sigma, scores = full(surgery), surgery.sigma(), surgery.scores()
    for name, weight in weights.items():
        torch.testing.assert_close(scores[name], weight.abs() / sigma[name])
        assert (sigma[name] > 0).all()


def test_sigma_is_over_the_steps_of_the_dark_weights():
    model, optimizer, surgery = running(uncertainty=pw.PseudoBootstrap(last=5))
    snapshots = []
    for step in range(12, 17):
        one_step(model, optimizer, step)
        snapshots.append(full(surgery))
    for name, sigma in surgery.sigma().items():
        torch.testing.assert_close(sigma, torch.stack([s[name] for s in snapshots]).std(0), rtol=1e-4, atol=1e-8)


def test_a_copy_that_follows_has_the_zeros():
    model, optimizer, surgery = running(0)
    averaged = AveragedModel(model, avg_fn=lambda a, p, _: 0.9 * a + 0.1 * p)
    surgery.follow(averaged)
    for step in range(12):
        one_step(model, optimizer, step)
        averaged.update_parameters(model)
        assert_zeros(averaged.module, surgery.masks)


def test_to_other_types_in_between():
    model, optimizer, surgery = running(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    before = full(surgery)
    model.double()
    assert_zeros(model, surgery.masks)
    one_step(model, optimizer, 12)
    assert_zeros(model, surgery.masks)
    for name, weight in full(surgery).items():
        assert weight.dtype == torch.float64
        # The last step was small: what was in the dark is still there.
        torch.testing.assert_close(weight, before[name].double(), rtol=0, atol=0.2)
        assert not torch.equal(weight, before[name].double())


def test_bfloat16():
    model = net().to(torch.bfloat16)
    optimizer = sgd(model)
    surgery = pw.Surgery(model, optimizer, sparsity=0.6, criterion="magnitude", gamma=0.0)
    alive = []
    for step in range(30):
        one_step(model, optimizer, step)
        assert_zeros(model, surgery.masks)
        alive.append(surgery.masks)
    assert any((after[n] & ~before[n]).any() for before, after in pairwise(alive) for n in NAMES)
    assert all(weight.dtype == torch.bfloat16 for weight in full(surgery).values())


def test_what_something_else_wrote_into_the_living_stays():
    model, _, surgery = running(stop=12)
    dark, masks = full(surgery), surgery.masks
    other = net(1)
    model.load_state_dict(other.state_dict())
    surgery.apply_()
    assert_zeros(model, masks)
    for name, weight in full(surgery).items():
        assert torch.equal(weight, torch.where(masks[name], other.get_parameter(name), dark[name]))


def test_a_closure_sees_the_zeros_where_something_else_wrote():
    model, optimizer, surgery = running(stop=12)
    dark, evaluations = full(surgery), []
    model.load_state_dict(net(1).state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match=r"reset\(\)"):
        optimizer.step(seeing(surgery, 12, evaluations))
    assert evaluations == [12]
    assert all(torch.equal(full(surgery)[n][~mask], dark[n][~mask]) for n, mask in surgery.masks.items())


def test_two_optimizers():
    guo = Guo("sgd", LEVELS["global"])
    model = net().double()
    first, second = make("sgd", model[0].parameters()), make("sgd", model[2].parameters())
    surgery = pw.Surgery(model, [first, second], criterion="magnitude", gamma=0.0, **LEVELS["global"])
    for step in range(30):
        guo.step(step)
        model.zero_grad()
        loss_of(model, step).backward()
        for optimizer in (first, second):
            optimizer.step()
            assert_zeros(model, surgery.masks) if step else None
        assert all(torch.equal(model.get_parameter(n), seen) for n, seen in guo.seen().items()), step
    assert guo.spliced > 0


@pytest.mark.parametrize("form", ["fused", "unfused"])
def test_steps_that_a_scaler_skips_leave_no_trace(form):
    results = []
    for bad in (0.0, torch.inf):
        model = net()
        optimizer = fused("Adam", model.parameters(), lr=0.01) if form == "fused" else adam(model)
        surgery = pw.Surgery(model, optimizer, sparsity=0.6, criterion="movement", gamma=0.1)
        scaler = GradScaler("cpu", init_scale=1024.0)
        for step in range(20):
            for factor in [bad, 1.0] if step % 3 == 1 and bad else [1.0]:
                optimizer.zero_grad()
                scaler.scale(loss_of(model, step) * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                if step:
                    assert_zeros(model, surgery.masks)
        state = surgery.state_dict()
        results.append((model.state_dict(), surgery.steps, surgery.masks, state["dark"][0]))
    assert same(*results)
    assert results[0][1] == 20


@pytest.mark.slow
def test_a_compiled_step():
    runs = []
    for compiled in (False, True):
        model, optimizer, surgery = running(0, adam)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for number in range(6):
            optimizer.zero_grad()
            loss_of(model, number).backward()
            step()
        assert_zeros(model, surgery.masks)
        runs.append(surgery)
    assert same(runs[0].masks, runs[1].masks)
    torch.testing.assert_close(full(runs[0]), full(runs[1]), rtol=1e-4, atol=1e-5)


# ---- errors in the middle ------------------------------------------------------------------------------------------


def test_an_error_in_a_closure_leaves_the_weights_in_the_dark():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    surgery = pw.Surgery(model, optimizer, sparsity=0.6, criterion="magnitude", gamma=0.0)
    for step in range(5):
        closure_step(model, optimizer, step)
    before, masks = full(surgery), surgery.masks

    def fail() -> float:
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(fail)
    assert_zeros(model, masks)
    assert same(full(surgery), before)
    closure_step(model, optimizer, 5)
    assert_zeros(model, surgery.masks)


def test_an_error_in_the_step_itself_is_put_right_by_apply():
    model, optimizer, surgery = running()
    before, masks = full(surgery), surgery.masks
    optimizer.zero_grad()
    loss_of(model, 12).backward()
    buffer = optimizer.state[model[0].weight]["momentum_buffer"]
    optimizer.state[model[0].weight]["momentum_buffer"] = buffer[:1, :1].double().expand(3, 3)
    with pytest.raises(RuntimeError):
        optimizer.step()
    optimizer.state[model[0].weight]["momentum_buffer"] = buffer
    surgery.apply_()
    assert_zeros(model, masks)
    assert same(full(surgery), before)


def test_an_error_in_an_operation_leaves_the_weights_in_the_dark():
    model, optimizer, surgery = running()
    masks = surgery.masks
    optimizer.zero_grad()
    loss_of(model, 12).backward()
    model[0].weight.grad[0, 0] = torch.nan
    with pytest.raises(ValueError, match="'0.weight'.*earlier checkpoint"):
        optimizer.step()
    assert_zeros(model, masks)
