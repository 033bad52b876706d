"""What is written to pruned weights behind the Pruner's back is found, set to zero again, and said."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

import prunewald as pw
from tests.training import batch, net, one_step, sgd, train

pytestmark = pytest.mark.usefixtures("one_thread")


def pruned(level: float = 0.8):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(level)
    return model, optimizer, pruner


def zeros(pruner) -> bool:
    return all((p[~pruner.masks[n]] == 0).all() for n, p in pruner.model.named_parameters() if n in pruner.masks)


def dense_of(model):
    return {name: tensor + 0.1 for name, tensor in model.state_dict().items()}


WRITES = {
    "data.copy_": lambda model: [p.data.copy_(torch.ones_like(p)) for p in model.parameters()],
    "data=": lambda model: [p.__setattr__("data", torch.ones_like(p)) for p in model.parameters()],
    "vector": lambda model: vector_to_parameters(parameters_to_vector(model.parameters()) + 1, model.parameters()),
    "copy_": lambda model: [p.detach().copy_(torch.ones_like(p)) for p in model.parameters()],
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_sparsity_and_repr_look_at_the_weights_and_mend_nothing(write):
    model, _, pruner = pruned()
    write(model)
    assert pruner.sparsity == 0
    assert "pruned weights are not zero" in repr(pruner)
    assert pruner.sparsity == 0
    pruner.apply_()
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)
    assert "not zero" not in repr(pruner)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_first_forward_pass_in_eval_mode_sees_zeros(write):
    model, optimizer, pruner = pruned()
    one_step(model, optimizer, 1)
    write(model)
    with pytest.warns(UserWarning, match="'0.weight'.*set to zero"):
        model.eval()(batch(0)[0])
    assert zeros(pruner)
    model(batch(0)[0])  # said once


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_state_dict_has_zeros(write, tmp_path):
    looks = (lambda p: p.model.state_dict(), lambda p: p.state_dict(), lambda p: pw.save(p, tmp_path / "model.pw"))
    for look in looks:
        model, _, pruner = pruned()
        write(model)
        with pytest.warns(UserWarning, match="set to zero"):
            look(pruner)
        assert zeros(pruner)
        write(model)
        look(pruner)  # said once
        assert zeros(pruner)


def test_a_training_pass_notices_a_counted_write():
    """An optimizer that the Pruner was not given steps the same weights, as SAM's second step does."""
    model, _, pruner = pruned()
    other = sgd(model, lr=0.5)
    model.train()
    loss = (model(batch(0)[0]) ** 2).mean()
    loss.backward()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    other.step()
    assert not zeros(pruner)
    with pytest.warns(UserWarning, match=r"Adam.*optimizer that Pruner\(model, optimizer\) was not given"):
        model(batch(1)[0])
    assert zeros(pruner)


@pytest.mark.parametrize("assign", [False, True])
def test_a_denser_state_dict_is_mended_and_reset_is_named(assign):
    model, _, pruner = pruned()
    dense = dense_of(net(1))
    model.load_state_dict(dense, assign=assign)
    assert zeros(pruner)
    with pytest.warns(UserWarning, match=r"'0.weight'.*reset\(\)"):
        model(batch(0)[0])
    model(batch(0)[0])  # said once
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)
    alive = pruner.masks["0.weight"]
    assert torch.equal(model[0].weight[alive], dense["0.weight"][alive])


def test_after_reset_a_dense_state_dict_stays_dense():
    model, optimizer, pruner = pruned()
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner.reset()
    assert pruner.sparsity == 0
    assert pruner.report is None
    assert all(torch.equal(p, values[name]) for name, p in model.named_parameters())
    train(model, optimizer, 2)
    assert all((p != 0).all() for p in model.parameters()), "all of them train"
    model.load_state_dict(dense_of(net(1)))
    pruner.prune(0.5)
    train(model, optimizer, 1)
    assert pruner.sparsity == pytest.approx(0.5, abs=0.01)


def test_an_average_that_began_before_the_pruning():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    averaged = AveragedModel(model)
    train(model, optimizer, 2)
    averaged.update_parameters(model)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.8)
    model.load_state_dict(averaged.module.state_dict())
    assert zeros(pruner)
    with pytest.warns(UserWarning, match=r"reset\(\)"):
        train(model, optimizer, 1)


def test_a_checkpoint_from_before_the_pruning_comes_back_whole():
    """Model first, then the Pruner: what the model's part wrote to weights that are pruned now is not lost."""
    model, optimizer, pruner = pruned(0.5)
    saved = {"model": copy.deepcopy(model.state_dict()), "pruner": copy.deepcopy(pruner.state_dict())}
    pruner.prune(0.9)
    model.load_state_dict(saved["model"])
    pruner.load_state_dict(saved["pruner"])
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in saved["model"].items())
    assert pruner.sparsity == pytest.approx(0.5, abs=0.01)
    train(model, optimizer, 1)


def test_a_write_that_is_fine_is_looked_at_once(monkeypatch):
    model, _, pruner = pruned()
    model.eval()
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(2.0)
    looks = []
    find = pruner.zeros.revived
    monkeypatch.setattr(pruner.zeros, "revived", lambda name: looks.append(name) or find(name))
    model(batch(0)[0])
    assert sorted(set(looks)) == sorted(pruner.masks)
    looks.clear()
    model(batch(0)[0])
    assert looks == []


def test_nothing_is_said_in_an_ordinary_loop():
    model, optimizer, pruner = pruned()
    for step in range(3):
        train(model, optimizer, 2, first=step)
        model.eval()(batch(0)[0])
        model.train()
        state = copy.deepcopy(model.state_dict())
        model.load_state_dict(state)
    assert zeros(pruner)


def test_copies_are_plain_and_load_without_prunewald(tmp_path):
    model, _, _ = pruned()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.fill_(1.0)
    twin.eval()(batch(0)[0])
    assert (twin[0].weight == 1).all(), "nothing holds a copy"
    assert pickle.loads(pickle.dumps(model))(batch(0)[0]).shape == (16, 4)
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys, torch; sys.modules['prunewald'] = None\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "model.eval()(torch.zeros(2, 6)); model.state_dict(); model.load_state_dict(model.state_dict())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_graphs_of_torch_are_as_they_were():
    model, _, _ = pruned()
    x = batch(0)[0]
    model.eval()
    expected = model(x)
    assert torch.equal(torch.jit.trace(model, (x,))(x), expected)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)


@pytest.mark.slow
def test_a_full_graph_is_compiled():
    model, optimizer, pruner = pruned()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x, y = batch(0)
    for _ in range(2):
        optimizer.zero_grad()
        (compiled(x) - y).square().mean().backward()
        optimizer.step()
    assert zeros(pruner)
    compiled.eval()(x)


def test_a_detached_pruner_looks_no_more():
    model, _, pruner = pruned()
    pruner.detach()
    WRITES["copy_"](model)
    model.eval()(batch(0)[0])
    assert (model[0].weight == 1).all()


def test_the_one_liner_holds_through_retraining():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    print(pw.Pruner(model, optimizer).prune(0.9))
    gc.collect()
    gone = {name: p == 0 for name, p in model.named_parameters()}
    train(model, optimizer, 5)
    gc.collect()
    assert sum(int(g.sum()) for g in gone.values()) > 60
    assert all((p[gone[name]] == 0).all() for name, p in model.named_parameters())


def test_two_losses_and_two_optimizers_in_turn():
    """The second backward pass needs the weights that its forward pass saw: a step writes to its own alone."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "c": nn.Linear(4, 4)})
    one, two = torch.optim.SGD(model["a"].parameters(), lr=0.1), torch.optim.SGD(model["c"].parameters(), lr=0.1)
    pruner = pw.Pruner(model, [one, two], criterion="magnitude")
    pruner.prune(0.5)
    x = torch.randn(3, 4, requires_grad=True)
    first, second = model["a"](x).square().mean(), model["c"](model["c"](x)).square().mean()
    first.backward()
    one.step()
    second.backward()
    two.step()
    assert zeros(pruner)
