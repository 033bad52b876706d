from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw


def net() -> Any:
    torch.manual_seed(0)
    inner = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.3)]
    return nn.Sequential(*inner, nn.BatchNorm1d(5, track_running_stats=False))


def test_statistics_are_means_over_the_batches_without_dropout() -> None:
    model, batches = net(), list(torch.randn(3, 50, 4))
    pw.recalibrate(model, batches)
    first = [model[0](x) for x in batches]
    torch.testing.assert_close(model[1].running_mean, torch.stack([h.mean(0) for h in first]).mean(0))
    torch.testing.assert_close(model[1].running_var, torch.stack([h.var(0) for h in first]).mean(0))
    second = [model[3](nn.functional.batch_norm(h, None, None, model[1].weight, model[1].bias, True)) for h in first]
    torch.testing.assert_close(model[4].running_mean, torch.stack([h.mean(0) for h in second]).mean(0))


def test_nothing_else_changes() -> None:
    model, x = net(), torch.randn(50, 4)
    model[4].eval()
    before = {name: param.clone() for name, param in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    pw.recalibrate(model, [(x, torch.zeros(50))])
    assert all(torch.equal(param, before[name]) and param.grad is None for name, param in model.named_parameters())
    assert [module.training for module in model.modules()] == modes
    assert [norm.momentum for norm in (model[1], model[4])] == [0.1, 0.3]


def test_pruning_holds_and_accuracy_statistics_are_those_of_what_is_left() -> None:
    model, x = net(), torch.randn(200, 4)
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    pw.recalibrate(model, [x])
    assert pruner.sparsity == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0))


def test_nothing_to_do_is_an_error_and_leaves_all_as_it_was() -> None:
    with pytest.raises(ValueError, match="no BatchNorm"):
        pw.recalibrate(nn.Linear(2, 2), [torch.randn(5, 2)])
    model = net()
    model(torch.randn(20, 4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(ValueError, match="gave no sample"):
        pw.recalibrate(model, [])
    with pytest.raises(RuntimeError):
        pw.recalibrate(model, [torch.randn(20, 4), torch.randn(20, 3)])
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert model[4].momentum == 0.3
    assert model.training


def test_batches_as_a_training_loop_has_them() -> None:
    x = torch.randn(3, 50, 4)
    expected = net()
    pw.recalibrate(expected, list(x[:2]))
    for batches in ([(one, torch.zeros(50)) for one in x], [{"input": one, "labels": torch.zeros(50)} for one in x]):
        model = net()
        pw.recalibrate(model, batches, limit=2)
        torch.testing.assert_close(model[1].running_mean, expected[1].running_mean)
    with pytest.raises(ValueError, match="limit=0"):
        pw.recalibrate(expected, list(x), limit=0)
