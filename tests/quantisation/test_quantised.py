"""Trained quantisation of either kind: resume, scalers, several optimizers, letting go, refusals."""

import copy
import io
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

import prunewald as pw
from prunewald.quantisation import LinearValues, SharedValues
from tests.quantisation.helpers import KINDS, NAMES, make, pruned
from tests.resuming import same
from tests.training import closure_step, fused, loss_of, net, one_step, train

pytestmark = pytest.mark.usefixtures("one_thread")

each_kind = pytest.mark.parametrize("kind", KINDS)


# ---- resume ---------------------------------------------------------------------------------------------------------


class Training:
    """A run in float32 that is pruned, quantised, and at step 9 pruned once more."""

    def __init__(self, kind: str, name: str, seed: int = 0) -> None:
        self.kind = kind
        self.model, self.optimizer, self.pruner = pruned(name, 0.3, model=net(seed))
        self.quantised: Any = None

    def quantise(self) -> "Training":
        self.quantised = KINDS[self.kind](self.pruner)
        return self

    def go(self, first: int, last: int) -> "Training":
        for step in range(first, last):
            (closure_step if step % 2 else one_step)(self.model, self.optimizer, step)
            if step == 9:
                self.pruner.prune(0.6)
        return self

    def parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "pruner": self.pruner}
        return parts if self.quantised is None else parts | {"quantised": self.quantised}

    def state(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, file)
        file.seek(0)
        state: dict[str, Any] = torch.load(file, weights_only=True)
        return state

    def load(self, state: dict[str, Any], order: int = 1) -> "Training":
        for name, part in list(self.parts().items())[::order]:
            part.load_state_dict(copy.deepcopy(state[name]))  # an optimizer would train on in it
        return self


@pytest.mark.parametrize("moment", [0, 6, 12])
@pytest.mark.parametrize("name", ["momentum", "adam"])
@each_kind
def test_going_on_is_exact(kind, name, moment):
    run = Training(kind, name).quantise().go(0, moment)
    state = run.state()
    expected = run.go(moment, 15).state()
    for order in (1, -1):
        assert same(Training(kind, name, seed=1).quantise().load(state, order).go(moment, 15).state(), expected)
    # Quantised only after all else was loaded: what is there already stays, and so does the optimizer's state.
    late = Training(kind, name, seed=1)
    late.load(state).quantise().quantised.load_state_dict(state["quantised"])
    assert same(late.go(moment, 15).state(), expected)


@each_kind
def test_going_back_is_exact(kind):
    run = Training(kind, "adam").quantise().go(0, 5)
    state = run.state()
    expected = run.go(5, 15).state()
    assert same(run.load(state).go(5, 15).state(), expected)


BROKEN: dict[str, tuple[str, Any, str]] = {
    "other keys": ("shared", lambda s: s.pop("codes"), r"SharedValues.*\['codebooks'\].*\['codes', 'codebooks'\]"),
    "other targets": (
        "shared",
        lambda s: s["codes"].pop("0.weight"),
        r"\['2.weight'\].*\['0.weight', '2.weight'\]",
    ),
    "other shape": (
        "shared",
        lambda s: s["codes"].update({"0.weight": torch.ones(2)}),
        r"'0.weight'.*\(2,\).*\(8, 6\)",
    ),
    "short codebook": (
        "shared",
        lambda s: s["codebooks"].update({"2.weight": torch.ones(2)}),
        "'2.weight'.*codebook of 2",
    ),
    "row scale": (
        "linear",
        lambda s: s["scales"].update({"0.weight": torch.ones(8, 1)}),
        r"'0.weight'.*\(8, 1\).*per='target'",
    ),
    "no full": ("linear", lambda s: s.pop("full"), "LinearValues.*'full'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_state_of_something_else_is_refused_and_nothing_changes(case):
    kind, damage, message = BROKEN[case]
    run = Training(kind, "adam").quantise().go(0, 3)
    state = run.state()["quantised"]
    before = run.go(3, 5).state()
    damage(state)
    with pytest.raises(ValueError, match=message):
        run.quantised.load_state_dict(state)
    assert same(run.state(), before)


def test_a_state_that_is_no_dict():
    run = Training("shared", "adam").quantise()
    with pytest.raises(ValueError, match="SharedValues.*list"):
        run.quantised.load_state_dict([])


@each_kind
def test_it_does_not_copy(kind):
    run = Training(kind, "adam").quantise()
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        copy.deepcopy(run.quantised)


# ---- steps of other kinds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["fused", "unfused"])
@each_kind
def test_a_scalers_skipped_steps_leave_no_trace(kind, form):
    results = []
    for bad in (0.0, torch.inf):
        model = net()
        adam = {"lr": 0.01}
        optimizer: Optimizer = (
            fused("Adam", model.parameters(), **adam)
            if form == "fused"
            else torch.optim.Adam(model.parameters(), lr=0.01)
        )
        pruner = pw.Pruner(model, optimizer, criterion="magnitude")
        pruner.prune(0.5)
        quantised = KINDS[kind](pruner)
        scaler = GradScaler("cpu", init_scale=1024.0)
        for step in range(12):
            for factor in [bad, 1.0] if step % 3 == 1 and bad else [1.0]:
                optimizer.zero_grad()
                scaler.scale(loss_of(model, step) * factor).backward()
                scaler.step(optimizer)
                scaler.update()
        results.append((model.state_dict(), quantised.state_dict()))
    assert same(*results)


@each_kind
def test_two_optimizers_are_as_one(kind):
    results = []
    for several in (False, True):
        model = net().double()
        parts = [model[0], model[2]] if several else [model]
        optimizers = [make("momentum", part.parameters()) for part in parts]
        pruner = pw.Pruner(model, optimizers, criterion="magnitude")
        pruner.prune(0.5)
        quantised = KINDS[kind](pruner)
        for step in range(8):
            model.zero_grad()
            loss_of(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append((model.state_dict(), quantised.state_dict()))
    assert same(*results)


def backward(model: nn.Module, step: int) -> torch.Tensor:
    model.zero_grad()
    loss = loss_of(model, step)
    loss.backward()
    return loss


@each_kind
def test_a_closure_by_name(kind):
    results = []
    for named in (False, True):
        model, optimizer, pruner = pruned("momentum")
        quantised = KINDS[kind](pruner)
        for step in range(4):
            closure = partial(backward, model, step)
            loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
            assert isinstance(loss, torch.Tensor)
        results.append((model.state_dict(), quantised.state_dict()))
    assert same(*results)


@pytest.mark.slow
@each_kind
def test_a_compiled_step(kind):
    results = []
    for compiled in (False, True):
        model, optimizer, pruner = pruned("adam")
        quantised = KINDS[kind](pruner)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for number in range(4):
            optimizer.zero_grad()
            loss_of(model, number).backward()
            step()
        results.append((model.state_dict(), quantised.codes()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert same(results[0][1], results[1][1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_kind
def test_a_model_that_moves_to_the_device_in_between(kind):
    results = []
    for device in ("cpu", "cuda"):
        model, optimizer, pruner = pruned("sgd")
        quantised = KINDS[kind](pruner)
        for step in range(8):
            if step == 4:
                model.to(device)
            one_step(model, optimizer, step)
        assert all(code.device.type == device for code in quantised.codes().values())
        results.append(model.cpu().state_dict())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@each_kind
def test_a_surgery_that_was_finished(kind):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    surgery = pw.Surgery(model, optimizer, sparsity=0.5, criterion="magnitude")
    train(model, optimizer, 10)
    with pytest.raises(ValueError, match=r"finish\(\) it first"):
        KINDS[kind](surgery)
    surgery.finish()
    KINDS[kind](surgery)
    masks = surgery.masks
    train(model, optimizer, 5, first=10)
    assert all(not model.get_parameter(n)[~masks[n]].any() for n in NAMES)


# ---- letting go, and the file ---------------------------------------------------------------------------------------


@each_kind
def test_letting_go(kind):
    model, optimizer, pruner = pruned("adam")
    quantised = KINDS[kind](pruner)
    one_step(model, optimizer, 0)
    before = copy.deepcopy(model.state_dict())
    quantised.detach()
    assert same(model.state_dict(), before)
    assert not optimizer._optimizer_step_pre_hooks
    one_step(model, optimizer, 1)
    weight = model[2].weight[pruner.masks["2.weight"]]
    assert len(weight.unique()) == len(weight)
    assert not model[2].weight[~pruner.masks["2.weight"]].any()
    KINDS[kind](pruner)  # and again


@each_kind
def test_the_file_holds_it_without_loss(kind, tmp_path):
    model, optimizer, pruner = pruned("adam", model=net())
    KINDS[kind](pruner)
    train(model, optimizer, 3)
    pw.save(pruner, tmp_path / "model.pw")
    loaded = pw.load(tmp_path / "model.pw", into=net(1))
    assert same(loaded.state_dict(), model.state_dict())


# ---- refusals -------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "size 1": (lambda p: SharedValues(p, 1), "size=1:.*2 to 256"),
    "size 257": (lambda p: SharedValues(p, 257), "size=257:.*2 to 256"),
    "size 4.5": (lambda p: SharedValues(p, cast(Any, 4.5)), "size=4.5:.*2 to 256"),
    "size True": (lambda p: SharedValues(p, True), "size=True:.*2 to 256"),
    "size by name": (lambda p: SharedValues(p, {"0": 300}), "size for '0'=300:.*2 to 256"),
    "no such layer": (lambda p: SharedValues(p, {"7": 4}), "size for '7'.*'0.weight'"),
    "reduce": (lambda p: SharedValues(p, reduce=cast(Any, "max")), "reduce='max'.*'sum', 'mean'"),
    "bits 1": (lambda p: LinearValues(p, 1), "bits=1:.*2 to 8"),
    "bits 16": (lambda p: LinearValues(p, 16), "bits=16:.*2 to 8"),
    "bits by name": (lambda p: LinearValues(p, {"0*": 9}), r"bits for '0\*'=9:.*2 to 8"),
    "per": (lambda p: LinearValues(p, per=cast(Any, "column")), "per='column'.*'target', 'row'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_argument_is_repeated_and_nothing_changes(case):
    make_it, message = REFUSED[case]
    model, optimizer, pruner = pruned()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        make_it(pruner)
    assert same(model.state_dict(), before)
    assert not optimizer._optimizer_step_pre_hooks


def test_what_cannot_be_quantised():
    model, _, pruner = pruned()
    with pytest.raises(TypeError, match=r"SharedValues.*Sequential.*Pruner\(model, optimizer\)"):
        SharedValues(model)
    SharedValues(pruner)
    with pytest.raises(ValueError, match=r"detach\(\).*LinearValues"):
        LinearValues(pruner)
    with pytest.raises(ValueError, match="LinearValues.*optimizer"):
        LinearValues(pw.Pruner(net(), criterion="magnitude"))
    broken, _, pruner = pruned()
    with torch.no_grad():
        broken[2].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="'2.weight'.*earlier checkpoint"):
        SharedValues(pruner)
    _, _, pruner = pruned("lbfgs")
    with pytest.raises(ValueError, match="reduce='sum'.*LBFGS.*'mean'"):
        SharedValues(pruner)


def test_repr():
    _, _, pruner = pruned()
    shared = SharedValues(pruner, 4)
    assert repr(shared) == "SharedValues(size=4, reduce='sum': 2 targets, 8 values)"
