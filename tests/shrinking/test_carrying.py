"""Optimizers go on with the smaller model as they would have gone on with the masked one."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.newer import Transformer
from tests.shrinking.helpers import assert_same, outputs, zero_units

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, optimizer, steps=3):
    def closure():
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_small_model_trains_on_as_the_masked_one_does(kind):
    model = mlp()
    optimizer = KINDS[kind](model.parameters())
    train(model, optimizer)
    zero_units(model, X)
    masks = {name: param != 0 for name, param in model.named_parameters()}
    small, carried = pw.shrink(model, X, optimizer)
    train(small, carried)
    pw.Pruner(model, optimizer, targets=list(masks)).set_masks(masks)
    train(model, optimizer)
    assert_same(outputs(model, X), outputs(small, X))


def test_a_history_of_all_weights_is_dropped_and_said():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    with pytest.warns(UserWarning, match="LBFGS forgets its history"):
        small, carried = pw.shrink(zero_units(model, X), X, optimizer)
    before = outputs(small, X)[0].square().mean()
    train(small, carried, 1)
    assert outputs(small, X)[0].square().mean() < before


def test_rows_and_columns_of_a_factored_state():
    model = mlp()
    optimizer = torch.optim.Adafactor(model.parameters())
    train(model, optimizer)
    small, carried = pw.shrink(zero_units(model, X), X, optimizer)
    assert carried.state[small[2].weight]["row_var"].shape == (4, 1)
    train(small, carried)


class Odd(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["projector"] = torch.ones(5)
        return super().step(closure)


def test_a_state_of_another_form_begins_anew_and_is_said():
    model = mlp()
    optimizer = Odd(model.parameters(), lr=0.1)
    train(model, optimizer)
    with pytest.warns(UserWarning, match=r"Odd keeps state of 0.weight, 0.bias, .* in a form that cannot be cut"):
        small, carried = pw.shrink(zero_units(model, X), X, optimizer)
    assert not carried.state[small[0].weight]
    assert carried.state[small[4].bias]


def test_groups_lists_and_parameters_of_others():
    model, extra = mlp(), nn.Parameter(torch.ones(3))
    first = torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}])
    second = torch.optim.SGD([*model[4].parameters(), extra], lr=0.1)
    small, (one, two) = pw.shrink(zero_units(model, X), X, [first, second])
    assert one.param_groups[0]["lr"] == 0.5
    assert one.param_groups[0]["params"][0] is small[0].weight
    assert two.param_groups[0]["params"][-1] is extra


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_scheduler_and_a_pruner_stay_with_the_old_one():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", pattern=pw.Filter())
    pruner.prune(0.5, example_inputs=X, of="filters")
    small, carried = pw.shrink(pruner, X, optimizer)
    steps = pruner.steps
    train(small, carried)
    assert pruner.steps == steps
    assert pruner.sparsity == pytest.approx(0.5, abs=0.3)


def test_pruned_shrunk_trained_and_shrunk_again(tmp_path):
    torch.manual_seed(0)
    images = torch.randn(4, 1, 12, 12)
    model = Transformer(1, 12, 10)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        outputs_ = model(images)
        optimizer.zero_grad()
        outputs_.square().mean().backward()
        optimizer.step()
        pruner = pw.Pruner(model, optimizer, criterion="magnitude", pattern=pw.Filter())
        pruner.prune(0.3, example_inputs=images, of="filters")
        wanted = outputs(model, images)
        model, optimizer = pw.shrink(pruner, images, optimizer)
        assert_same(wanted, outputs(model, images))
    pw.save(model, tmp_path / "small.pw")
    loaded = pw.load(tmp_path / "small.pw", into=Transformer(1, 12, 10))
    assert_same(outputs(model, images), outputs(loaded, images))
