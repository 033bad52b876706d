import math

import pytest
import torch
from torch.nn import functional as F

from prunewald.companions import distillation_loss, group_lasso, l1, l2


def logits(*shape, seed=0):
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal(student, teacher, targets, temperature, weight):
    """Hinton et al. (2015), example by example."""
    total = 0.0
    for s, t, target in zip(student, teacher, targets, strict=True):
        p, q = torch.softmax(t / temperature, 0), torch.softmax(s / temperature, 0)
        kl = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
        hard = -math.log(torch.softmax(s, 0)[target])
        total += weight * temperature**2 * kl + (1 - weight) * hard
    return total / len(student)


@pytest.mark.parametrize(("temperature", "weight"), [(4.0, 0.9), (1.0, 0.5), (20.0, 1.0), (2.0, 0.0)])
def test_distillation_is_the_formula(temperature, weight):
    student, teacher, targets = logits(7, 5), logits(7, 5, seed=1), torch.arange(7) % 5
    found = distillation_loss(student, teacher, targets, temperature=temperature, weight=weight)
    assert float(found) == pytest.approx(literal(student, teacher, targets, temperature, weight))


def test_distillation_s_defaults():
    student, teacher, targets = logits(7, 5), logits(7, 5, seed=1), torch.arange(7) % 5
    assert float(distillation_loss(student, teacher, targets)) == pytest.approx(
        literal(student, teacher, targets, 4.0, 0.9)
    )


def test_the_gradient_goes_to_the_student_only():
    """T/n · (q - p) for each logit, which is why T² is there."""
    student, teacher = logits(6, 4).requires_grad_(), logits(6, 4, seed=1).requires_grad_()
    targets, temperature = torch.tensor([0, 1, 2, 3, 0, 1]), 3.0
    distillation_loss(student, teacher, targets, temperature=temperature, weight=0.7).backward()
    assert teacher.grad is None
    soft = temperature * (torch.softmax(student / temperature, 1) - torch.softmax(teacher / temperature, 1)) / 6
    hard = (torch.softmax(student, 1) - F.one_hot(targets, 4)) / 6
    torch.testing.assert_close(student.grad, (0.7 * soft + 0.3 * hard).detach())


def test_a_student_that_equals_its_teacher_has_only_the_hard_part():
    student, targets = logits(4, 3), torch.tensor([0, 1, 2, 0])
    found = distillation_loss(student, student, targets, weight=0.75)
    torch.testing.assert_close(found, 0.25 * F.cross_entropy(student, targets))


def test_pixels_and_left_out_targets_count_as_in_cross_entropy():
    student, teacher = logits(2, 4, 3, 3), logits(2, 4, 3, 3, seed=1)
    targets = torch.arange(18).view(2, 3, 3) % 4
    targets[0, 0] = -100
    kept = targets != -100
    flat = [t.movedim(1, -1)[kept] for t in (student, teacher)]
    torch.testing.assert_close(distillation_loss(student, teacher, targets), distillation_loss(*flat, targets[kept]))


def test_targets_may_be_probabilities():
    student, teacher, targets = logits(5, 3), logits(5, 3, seed=1), torch.tensor([0, 1, 2, 0, 1])
    soft = F.one_hot(targets, 3).double()
    torch.testing.assert_close(distillation_loss(student, teacher, soft), distillation_loss(student, teacher, targets))


def test_half_precision_is_computed_in_single():
    student, teacher, targets = logits(5, 3).bfloat16(), logits(5, 3, seed=1).bfloat16(), torch.tensor([0, 1, 2, 0, 1])
    found = distillation_loss(student, teacher, targets)
    torch.testing.assert_close(found, distillation_loss(student.float(), teacher.float(), targets))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temperature": 0.0}, "temperature=0.0: .*above 0"),
        ({"temperature": math.inf}, "temperature=inf: .*above 0"),
        ({"temperature": math.nan}, "temperature=nan: .*above 0"),
        ({"weight": 1.5}, "weight=1.5: .*at least 0 and at most 1"),
        ({"weight": math.nan}, "weight=nan: .*at least 0"),
        ({"teacher": torch.zeros(4, 2)}, r"\(4, 3\), the teacher's \(4, 2\): give both"),
    ],
)
def test_distillation_refuses(change, reason):
    arguments = {"student": torch.zeros(4, 3), "teacher": torch.zeros(4, 3), "targets": torch.zeros(4).long()}
    with pytest.raises(ValueError, match=reason):
        distillation_loss(**arguments | change)


def weights():
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (2, 3, 2, 2), (5,)]
    return {str(s): torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes}


def test_penalties_are_their_formulas():
    found = weights()
    flat = [x for w in found.values() for x in w.flatten().tolist()]
    assert float(l1(found.values())) == pytest.approx(sum(map(abs, flat)))
    assert float(l2(found)) == pytest.approx(sum(x * x for x in flat))


def test_group_lasso_is_its_formula():
    found = weights()
    expected = sum(math.sqrt(w[i].numel()) * float(w[i].norm()) for w in found.values() for i in range(len(w)))
    assert float(group_lasso(found.values())) == pytest.approx(expected)
    wide = [w for w in found.values() if w.dim() > 1]
    expected = sum(math.sqrt(w[:, i].numel()) * float(w[:, i].norm()) for w in wide for i in range(w.shape[1]))
    assert float(group_lasso(wide, dim=1)) == pytest.approx(expected)
    transposed = [w.movedim(1, -1) for w in wide]
    assert float(group_lasso(transposed, dim=-1)) == pytest.approx(expected)


@pytest.mark.parametrize("penalty", [l1, l2, group_lasso])
def test_gradients_by_finite_differences(penalty):
    found = [w.requires_grad_() for w in weights().values()]
    assert torch.autograd.gradcheck(lambda *given: penalty(given), found)


@pytest.mark.parametrize("penalty", [l1, l2, group_lasso])
def test_zeros_get_no_gradient_and_no_nan(penalty):
    """A pruned filter is all zeros, and stays: the next one moves."""
    weight = torch.ones(3, 4)
    weight[1] = 0
    weight.requires_grad_()
    penalty([weight, torch.zeros(2, 2, requires_grad=True)]).backward()
    assert weight.grad.isfinite().all()
    assert (weight.grad[1] == 0).all()
    assert (weight.grad[0] > 0).all()


@pytest.mark.parametrize("penalty", [l1, l2, group_lasso])
def test_penalties_of_half_and_single_precision_add_up_in_single(penalty):
    half, single = torch.ones(3000, 1, dtype=torch.bfloat16), torch.ones(1001, 1)
    assert float(penalty([half, single])) == 4001  # bfloat16 has no 3000
    assert penalty([half]).dtype == torch.float32


@pytest.mark.parametrize("penalty", [l1, l2, group_lasso])
def test_what_is_no_list_of_weights(penalty):
    with pytest.raises(TypeError, match=r"\(2, 2\).*: put it in a list"):
        penalty(torch.ones(2, 2))
    with pytest.raises(ValueError, match="no weights: .*pruner.targets"):
        penalty([])


def test_a_dimension_that_is_not_there():
    with pytest.raises(ValueError, match=r"dim=1: .*\(5,\)"):
        group_lasso([torch.ones(5)], dim=1)


def test_empty_tensors_add_nothing():
    assert float(group_lasso([torch.ones(0, 3), torch.ones(3, 0), torch.ones(1, 4)])) == 4.0
