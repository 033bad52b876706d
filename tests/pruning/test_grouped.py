"""Biases and entries of norms go with the filters they belong to: held at zero, through all that may happen."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import prunewald as pw
from prunewald.model.groups import Group
from prunewald.pruning.grouped import Coupled
from tests.pruning.coupled import Forked, X, adam, cnn, held, train

OPTIMIZERS = {
    "adamw": adam,
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, centered=True),
    "two": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, fused=True),
}


def attached(model: nn.Module, optimizer: torch.optim.Optimizer, **chosen) -> pw.Pruner:
    return pw.Pruner(model, optimizer, **{"pattern": pw.Filter(), "criterion": "magnitude", **chosen})


def freed(net, optimizer, alive=None):
    """Nothing holds a norm's shift any more, or what is alive of it: what is written there stays, and trains."""
    mask = torch.ones(8, dtype=torch.bool) if alive is None else alive
    with torch.no_grad():
        net[1].bias[mask] = 1.0
    train(net, optimizer, 1)
    assert bool((net[1].bias[mask] != 0).all())


@pytest.mark.parametrize("model", [cnn, Forked])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_they_stay_at_zero_while_the_model_trains(model, make):
    net = model()
    optimizer = make(net)
    train(net, optimizer, 3)  # so that momentum would move what is pruned
    pruner = attached(net, optimizer)
    report = pruner.prune(0.6, example_inputs=X[:1])
    count = held(pruner)
    assert count > 10
    assert any(f"not counted: {count} entries of" in note for note in report.notes)
    for _ in range(4):
        train(net, optimizer, 1)
        assert held(pruner) == count
    assert report.weights == sum(mask.numel() for mask in pruner.masks.values())
    assert not pruner.masks.keys() & pruner.beside.keys()


def test_a_bias_goes_with_its_filter_without_example_inputs_too():
    net = cnn()
    optimizer = adam(net)
    pruner = attached(net, optimizer)
    pruner.prune(0.5)
    assert pruner.beside.keys() == {"0.bias", "8.bias"}
    assert torch.equal(pruner.beside["0.bias"], pruner.masks["0.weight"].flatten(1).any(1))
    train(net, optimizer, 3)
    assert held(pruner) == 4 + 2


@pytest.mark.parametrize("pattern", [pw.Filter(dim=1), pw.Block(1, 1), "element"])
def test_nothing_is_beside_where_no_filters_go(pattern):
    net = cnn()
    pruner = attached(net, adam(net), pattern=pattern, ignore="0")
    pruner.prune(0.5)
    assert pruner.beside == {}
    assert ("beside" in pruner.state_dict()) == isinstance(pattern, pw.Filter)


def test_biases_of_layers_that_store_their_outputs_elsewhere():
    net = nn.Sequential(nn.ConvTranspose2d(3, 6, 2), nn.Flatten(), nn.Linear(6 * 25, 4))
    attention = nn.MultiheadAttention(8, 2)
    pruner = attached(net, adam(net), ignore="2")
    pruner.prune(0.5)
    assert torch.equal(pruner.beside["0.bias"], pruner.masks["0.weight"].any(0).flatten(1).any(1))
    other = attached(attention, adam(attention), targets="in_proj_weight")
    other.prune(0.5)
    assert torch.equal(other.beside["in_proj_bias"], other.masks["in_proj_weight"].any(1))
    shared = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    shared[2].weight = shared[0].weight
    tied = attached(shared, adam(shared))
    tied.prune(0.5)
    assert tied.beside.keys() == {"0.bias", "2.bias"}


def test_a_resumed_pruner_holds_and_goes_on_as_the_first():
    net = cnn()
    optimizer = adam(net)
    pruner = attached(net, optimizer)
    pruner.prune(0.4, example_inputs=X[:1])
    train(net, optimizer, 2)
    file = io.BytesIO()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "pruner": pruner.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)

    other = cnn()
    fresh = adam(other)
    resumed = attached(other, fresh)
    other.load_state_dict(saved["model"])
    fresh.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["pruner"])
    assert {name: mask.tolist() for name, mask in resumed.beside.items() if not mask.all()} == {
        name: mask.tolist() for name, mask in pruner.beside.items()
    }
    for one in (pruner, resumed):
        train(one.model, one.optimizers[0], 2)
        one.prune(0.7)
        train(one.model, one.optimizers[0], 2)
        held(one)
    assert [group.name for group in resumed.groups] == ["0", "3"]
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_state_of_before_and_one_of_another_model():
    net = cnn()
    pruner = attached(net, adam(net))
    pruner.prune(0.5)
    state = {key: value for key, value in pruner.state_dict().items() if key not in ("beside", "coupled")}
    pruner.reset()
    assert pruner.beside == {}
    pruner.load_state_dict(state)
    assert held(pruner) == 4 + 2
    bad = pruner.state_dict()
    bad["beside"] = {"0.bias": torch.ones(5, dtype=torch.bool)}
    with pytest.raises(ValueError, match=r"masks beside.*'0.bias'"):
        pruner.load_state_dict(bad)
    pruner.couple(X[:1])
    bad = pruner.state_dict()
    bad["coupled"]["groups"][0]["members"][0]["at"] += 1
    with pytest.raises(ValueError, match=r"'0.weight'.*another"):
        pruner.load_state_dict(bad)


def test_a_state_with_fewer_brings_the_others_back():
    net = cnn()
    optimizer = adam(net)
    pruner = attached(net, optimizer)
    pruner.prune(0.3, example_inputs=X[:1])
    early = copy.deepcopy(pruner.state_dict())
    few = held(pruner)
    pruner.prune(0.8)
    assert held(pruner) > few
    pruner.load_state_dict(early)
    assert held(pruner) == few
    freed(net, optimizer, pruner.beside["1.bias"])


def test_masks_from_elsewhere_take_them_along():
    first, second = cnn(), cnn()
    pruner = attached(first, adam(first))
    pruner.prune(0.5, example_inputs=X[:1])
    optimizer = adam(second)
    other = attached(second, optimizer)
    other.couple(X[:1])
    other.set_masks(pruner.masks)
    train(second, optimizer, 2)
    assert held(other) == held(pruner)
    other.set_masks({name: torch.ones_like(mask) for name, mask in other.masks.items()})
    assert held(other) == 0


def test_a_load_that_writes_there_is_noticed_and_undone():
    net = cnn()
    dense = copy.deepcopy(net.state_dict())
    optimizer = adam(net)
    pruner = attached(net, optimizer)
    pruner.prune(0.5, example_inputs=X[:1])
    net.load_state_dict(dense)
    assert held(pruner)
    with pytest.warns(UserWarning, match="1.weight"):
        net.eval()(X)
    with torch.no_grad():
        net[1].bias.fill_(1.0)
    with pytest.warns(UserWarning, match=r"pruned weights of '1.bias' were written"):
        net(X)
    assert held(pruner)
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    held(pruner)


def test_reset_detach_copies_and_an_average():
    net = cnn()
    optimizer = adam(net)
    average = AveragedModel(net)
    pruner = attached(net, optimizer)
    pruner.follow(average)
    pruner.prune(0.5, example_inputs=X[:1])
    held(pruner, average.module)
    train(net, optimizer, 1)
    average.update_parameters(net)
    twin = copy.deepcopy(net)
    held(pruner, twin)
    freed(twin, adam(twin))
    pruner.detach()
    freed(net, optimizer)


def test_reset_lets_all_of_it_train():
    net = cnn()
    optimizer = adam(net)
    pruner = attached(net, optimizer)
    pruner.prune(0.5, example_inputs=X[:1])
    pruner.reset()
    freed(net, optimizer)
    assert [group.name for group in pruner.groups] == ["0", "3"]
    pruner.prune(0.5)
    assert held(pruner)


@pytest.mark.parametrize("given", [True, False])
def test_several_optimizers_or_none(given):
    net = cnn()
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    both = [torch.optim.Adam(weights, lr=0.01), torch.optim.SGD(others, lr=0.1, momentum=0.9, weight_decay=0.1)]
    for optimizer in both:
        train(net, optimizer, 2)
    pruner = attached(net, both if given else None)
    pruner.prune(0.5, example_inputs=X[:1])
    for optimizer in both * 2:
        net.zero_grad()
        train(net, optimizer, 1)
        if not given:
            pruner.apply_()
        held(pruner)


def test_an_optimizer_that_steps_in_the_backward_pass():
    net = cnn()
    by = {param: torch.optim.SGD([param], lr=0.1, momentum=0.9, weight_decay=0.1) for param in net.parameters()}

    def step(param: torch.Tensor) -> None:
        by[param].step()
        by[param].zero_grad()

    for param in by:
        param.register_post_accumulate_grad_hook(step)
    pruner = attached(net, list(by.values()))
    pruner.prune(0.5, example_inputs=X[:1])
    for _ in range(3):
        net(X).square().mean().backward()
        held(pruner)


def test_a_file_has_the_zeros(tmp_path):
    net = cnn()
    pruner = attached(net, adam(net))
    pruner.prune(0.5, example_inputs=X[:1])
    pw.save(pruner, tmp_path / "model.pw")
    fresh = cnn()
    pw.load(tmp_path / "model.pw", into=fresh)
    held(pruner, fresh)
    other = pw.Pruner.from_file(tmp_path / "model.pw", cnn(), pattern=pw.Filter())
    assert torch.equal(other.beside["0.bias"], pruner.beside["0.bias"])
    assert "1.bias" not in other.beside
    other.couple(X[:1])
    assert {name: mask.tolist() for name, mask in other.beside.items()} == {
        name: mask.tolist() for name, mask in pruner.beside.items()
    }


def test_a_refit_leaves_them_at_zero_and_keeps_its_promise():
    net = cnn()
    train(net, adam(net), 5)
    pruner = attached(net, adam(net))
    report = pruner.prune(0.5, example_inputs=X[:1], refit=[X, X.flip(0)])
    held(pruner)
    assert report.refit is not None
    pw.refit(pruner, [X, X.flip(0)], dense=cnn())
    assert held(pruner)


def test_the_model_gives_what_it_would_without_the_units():
    for net in (cnn(), Forked()):
        optimizer = adam(net)
        train(net, optimizer, 5)
        pruner = attached(net, optimizer)
        pruner.prune(0.5, example_inputs=X[:1], of="macs")
        wanted = net.eval()(X)
        small, _ = pw.shrink(pruner, X[:2])
        torch.testing.assert_close(small(X), wanted, rtol=1e-5, atol=1e-5)
        assert sum(p.numel() for p in small.parameters()) < 0.75 * sum(p.numel() for p in net.parameters())


@pytest.mark.slow
def test_a_compiled_model():
    net = cnn()
    compiled = torch.compile(net, backend="eager")
    optimizer = adam(net)
    pruner = pw.Pruner(compiled, optimizer, pattern=pw.Filter())
    train(compiled, optimizer, 2)
    pruner.prune(0.5, example_inputs=X[:1])
    train(compiled, optimizer, 3)
    assert held(pruner)


def test_surgery_lets_them_live_until_it_ends():
    net = cnn()
    optimizer = adam(net)
    surgery = pw.Surgery(net, optimizer, sparsity=0.5, pattern=pw.Filter(), criterion="magnitude")
    train(net, optimizer, 3)
    assert surgery.beside == {}
    surgery.finish()
    train(net, optimizer, 2)
    assert held(surgery)


def test_groups_as_plain_data_and_those_of_one_name():
    net = cnn()
    pruner = attached(net, adam(net))
    first, second = pruner.couple(X[:1])
    again = Coupled.from_plain(Coupled.of([first, second], pruner.slices, {"0.weight": 2.0}).to_plain(), net)
    assert [group.name for group in again.groups] == ["0", "3"]
    assert again.uses == {"0.weight": 2.0}
    twice = Coupled.of([first, Group("0", second.units, second.members)], pruner.slices, {})
    assert [group.name for group in twice.groups] == ["0", "0 #2"]
