"""Zeros hold through every optimizer of torch.optim, and the rest trains on as if pruned by hand."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import prunewald as pw
from tests.training import Case, cases, minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")

BEFORE, AFTER = 4, 5  # steps

# The table of design.md, section 4, spelled out once more.
FIRST_ORDER = {"exp_avg", "momentum_buffer", "grad_avg", "prev", "ax"}
SECOND_ORDER = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf"}
BOOKKEEPING = {"step", "eta", "mu", "mu_product", "row_var", "col_var", "variance", "step_size"}

State = dict[str, dict[str, object]]

each_optimizer = pytest.mark.parametrize("case", list(cases()))


def trained(case: Case) -> tuple[nn.Module, Optimizer]:
    model = case.model()
    optimizer = case.optimizer(model)
    for step in range(BEFORE):
        case.step(model, optimizer, step)
    return model, optimizer


def pruned(case: Case) -> tuple[nn.Module, Optimizer, pw.Pruner]:
    model, optimizer = trained(case)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", scope="layer", targets=case.targets())
    pruner.prune(0.8)
    return model, optimizer, pruner


def states(model: nn.Module, optimizer: Optimizer) -> State:
    """A copy of the state, by parameter name."""
    return {name: deepcopy(optimizer.state[p]) for name, p in model.named_parameters() if p in optimizer.state}


@each_optimizer
def test_zeros_hold_and_the_others_move(case):
    model, optimizer, pruner = pruned(case)
    params = dict(model.named_parameters())
    dead = {name: ~mask for name, mask in pruner.masks.items()}
    start = {name: params[name].detach().clone() for name in dead}
    for step in range(AFTER):
        case.step(model, optimizer, BEFORE + step)
        assert not any(minus_zero_or_worse(params[name], where) for name, where in dead.items())
    for name, where in dead.items():
        assert where.sum() == round(0.8 * where.numel())
        assert (params[name] != start[name])[~where].any()


@each_optimizer
def test_state_right_after_pruning(case):
    model, optimizer = trained(case)
    before = states(model, optimizer)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", targets=case.targets())
    pruner.prune(0.8)
    after = states(model, optimizer)
    assert after.keys() == before.keys()
    if case.name == "LBFGS":
        assert not any(after.values())
        return
    for name, state in after.items():
        dead = ~pruner.masks[name] if name in pruner.masks else torch.zeros_like(model.get_parameter(name)).bool()
        assert state.keys() <= FIRST_ORDER | SECOND_ORDER | BOOKKEEPING, "an optimizer with state unknown so far"
        for key, value in state.items():
            assert_forgotten(key, value, before[name][key], dead)


def assert_forgotten(key: str, after: object, before: object, dead: Tensor) -> None:
    if not isinstance(after, Tensor) or not isinstance(before, Tensor):
        assert after == before
        return
    fill = 0.0 if key in FIRST_ORDER else 0.01 if key == "step_size" else None
    expected = before if fill is None else torch.where(dead, torch.full_like(before, fill), before)
    assert torch.equal(after, expected), key


class ByHand:
    """The slow and obvious way: sort, then zero weights, gradients and first-order state one by one."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model, self.optimizer = trained(case)
        self.dead = {name: self.smallest(p) for name, p in self.model.named_parameters() if self.is_target(name, p)}
        self.zero_weights()
        for name, dead in self.dead.items():
            self.forget(self.optimizer.state.get(self.model.get_parameter(name), {}), dead)
        if case.name == "LBFGS":
            self.optimizer.state.clear()
        for name, dead in self.dead.items():
            self.model.get_parameter(name).register_hook(lambda grad, dead=dead: self.masked(grad, dead))

    def is_target(self, name: str, param: Tensor) -> bool:
        return name == "0.weight" if self.case.name == "SparseAdam" else param.dim() == 2

    @staticmethod
    def smallest(param: Tensor) -> Tensor:
        order = param.detach().abs().flatten().argsort(stable=True)
        dead = torch.zeros(param.numel(), dtype=torch.bool)
        dead[order[: round(0.8 * param.numel())]] = True
        return dead.view_as(param)

    @staticmethod
    def forget(state: dict[str, Tensor], dead: Tensor) -> None:
        for key in FIRST_ORDER & state.keys():
            if state[key] is not None:
                state[key][dead] = 0
        if "step_size" in state:
            state["step_size"][dead] = 0.01

    @staticmethod
    def masked(grad: Tensor, dead: Tensor) -> Tensor:
        return grad if grad.is_sparse else grad.masked_fill(dead, 0)

    @torch.no_grad()
    def zero_weights(self) -> None:
        for name, dead in self.dead.items():
            self.model.get_parameter(name)[dead] = 0

    def step(self, step: int) -> None:
        self.case.step(self.model, self.optimizer, step)
        self.zero_weights()


@each_optimizer
def test_the_rest_trains_as_if_pruned_by_hand(case):
    model, optimizer, pruner = pruned(case)
    by_hand = ByHand(case)
    for step in range(AFTER):
        case.step(model, optimizer, BEFORE + step)
        by_hand.step(BEFORE + step)
        for name, param in model.named_parameters():
            assert torch.equal(param, by_hand.model.get_parameter(name)), (step, name)
    assert all(torch.equal(~mask, by_hand.dead[name]) for name, mask in pruner.masks.items())
