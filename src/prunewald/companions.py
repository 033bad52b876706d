"""What goes with pruning in a training loop: terms to add to a loss, each a pure function of tensors.

`distillation_loss` lets the pruned network learn from the dense one; `l1`, `l2` and `group_lasso` are penalties that
push weights towards zero before they are pruned. A Pruner tells their gradient from that of the data: a weight that
penalties alone move is dead.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from prunewald.model.penalties import noted
from prunewald.util.arguments import real
from prunewald.util.tensors import accumulator

Penalised: TypeAlias = Iterable[Tensor] | Mapping[str, Tensor]

_IGNORED = -100  # the target that cross_entropy leaves out


def distillation_loss(
    student: Tensor, teacher: Tensor, targets: Tensor, *, temperature: float = 4.0, weight: float = 0.9
) -> Tensor:
    """Let a pruned network learn from the dense one: weight · T² KL(teacher_T || student_T) + (1 - weight) · CE.

    `student` and `teacher` are logits, classes in dimension 1; `_T` is their softmax at the temperature. `targets` are
    what `cross_entropy` takes. The teacher gets no gradient. Hinton, Vinyals & Dean (2015).
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"the student's logits have shape {tuple(student.shape)}, the teacher's {tuple(teacher.shape)}: "
            "give both for the same batch and classes"
        )
    real("temperature", temperature, above=0, what="a number (1 is the plain softmax)")
    real("weight", weight, least=0, most=1, what="the teacher's share of the loss,")
    soft = _divergence(teacher.detach(), student, temperature)
    if not targets.is_floating_point():
        soft = soft[targets != _IGNORED]  # as cross_entropy does
    hard = F.cross_entropy(student.to(accumulator(student)), targets, ignore_index=_IGNORED)
    return weight * temperature**2 * soft.mean() + (1 - weight) * hard


def l1(weights: Penalised) -> Tensor:
    """The sum of |w|: pulls weights to zero at an equal pace, so that many end close to it."""
    return _total(weights, lambda w: w.abs().sum(dtype=accumulator(w)))


def l2(weights: Penalised) -> Tensor:
    """The sum of w²: pulls large weights most."""
    return _total(weights, lambda w: w.square().sum(dtype=accumulator(w)))


def group_lasso(weights: Penalised, dim: int = 0) -> Tensor:
    """The sum over groups of sqrt(size) · ||w_g||₂: pulls whole groups to zero together. Yuan & Lin (2006).

    A group is what shares an index of `dim`: with 0 the weights of one output unit or filter, with 1 those that read
    one input. A group that is zero has gradient zero.
    """
    return _total(weights, partial(_group_norms, dim=dim))


def _divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of each example, at the temperature."""
    # Half precision is not enough for a difference of logarithms that is then multiplied by T².
    log_p, log_q = (F.log_softmax(t.to(accumulator(t)) / temperature, dim=1) for t in (teacher, student))
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def _group_norms(weight: Tensor, dim: int) -> Tensor:
    if not -weight.dim() <= dim < weight.dim():
        raise ValueError(f"dim={dim!r}: give a dimension that a weight of shape {tuple(weight.shape)} has, to group by")
    groups = weight.movedim(dim, 0)
    size = math.prod(groups.shape[1:])
    # vector_norm's gradient at zero is zero, where that of a square root of squares is NaN.
    norms: Tensor = torch.linalg.vector_norm(groups.reshape(len(groups), size), dim=1, dtype=accumulator(weight))
    return math.sqrt(size) * norms.sum()


def _total(weights: Penalised, penalty: Callable[[Tensor], Tensor]) -> Tensor:
    if isinstance(weights, Tensor):
        raise TypeError(
            f"a single tensor of shape {tuple(weights.shape)} would be taken apart row by row: put it in a list"
        )
    found = [penalty(noted(w)) for w in (weights.values() if isinstance(weights, Mapping) else weights)]
    if not found:
        raise ValueError("there are no weights: give tensors, such as pruner.targets()")
    return sum((term.to(found[0]) for term in found[1:]), start=found[0])
