"""Other tensors in the places of pruned ones: replaced, loaded and not used yet, on no device, behind torch.compile."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import prunewald as pw
from tests.training import batch, net, train

pytestmark = pytest.mark.usefixtures("one_thread")


def pruned(level=0.8, **choices):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model, optimizer, **choices)
    pruner.prune(level)
    return model, optimizer, pruner


def dense():
    return {name: tensor.clone() for name, tensor in net(1).state_dict().items()}


def zeros(model):
    weights = [param for param in model.parameters() if param.dim() > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def replace_parameter(model):
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))


def replace_module(model):
    model[0] = nn.Linear(model[0].in_features, model[0].out_features)


@pytest.mark.parametrize("replace", [replace_parameter, replace_module])
def test_what_took_the_place_of_a_parameter_is_what_is_told_of_and_saved(replace, tmp_path):
    model, _, pruner = pruned()
    replace(model)
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert pruner.sparsity < 0.5
    assert "not zero" in repr(pruner)
    assert zeros(model) < 0.5, "to look mends nothing"
    with pytest.warns(UserWarning, match="'0.weight'.*replaced"):
        pw.save(pruner, tmp_path / "model.pw")
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.8, abs=0.01)
    assert zeros(pw.load(tmp_path / "model.pw", into=net())) == pytest.approx(pruner.sparsity)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), 2)
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.8, abs=0.01), "its gradient is masked"


def test_apply_reaches_what_took_the_place():
    model, _, pruner = pruned()
    replace_parameter(model)
    pruner.apply_()
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.8, abs=0.01)


def test_a_parameter_that_is_gone_is_said():
    model, _, pruner = pruned()
    model[0] = nn.Linear(3, 20)
    with pytest.raises(ValueError, match="'0.weight'.*attach a new Pruner"):
        _ = pruner.sparsity
    assert "'0.weight'" in repr(pruner)
    assert "'0.weight'" in pruner.report.notes[0]
    with pytest.warns(UserWarning, match="'0.weight'.*holds none of its zeros"):
        model.state_dict()
    model.state_dict()  # said once


def test_parameters_that_are_there_for_one_call_are_not_taken_for_the_models():
    model, optimizer, pruner = pruned()
    others = {name: nn.Parameter(torch.randn_like(param)) for name, param in model.named_parameters()}
    functional_call(model.eval(), others, (batch(0)[0],))
    assert all((param != 0).all() for param in others.values())
    train(model.train(), optimizer, 2)
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.8, abs=0.01)


def test_a_model_that_was_moved_to_no_device_is_named():
    model, _, pruner = pruned()
    model.to("meta")
    assert "meta" in repr(pruner)
    with pytest.raises(ValueError, match="'0.weight'.*meta"):
        _ = pruner.sparsity


def test_the_report_says_what_is_not_so_any_more():
    model, _, pruner = pruned()
    assert "not zero" not in str(pruner.report)
    kept = model[0].weight.detach().clone()
    model[0].weight.data.fill_(1.0)
    assert "pruned weights are not zero" in pruner.report.notes[0]
    assert (model[0].weight == 1).all(), "to look mends nothing"
    model[0].weight.data.copy_(kept)
    assert "not zero" not in str(pruner.report)


def test_a_file_has_the_report_of_what_is_in_it(tmp_path):
    from prunewald.storage import inspect

    model, _, pruner = pruned()
    model[0].weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="written to"):
        pw.save(pruner, tmp_path / "model.pw")
    assert "not zero" not in str(inspect(tmp_path / "model.pw").report)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("let_go", ["detach", "reset", "second"])
def test_what_was_loaded_last_is_there_once_the_zeros_are_let_go(let_go, assign):
    model, optimizer, pruner = pruned(0.95)
    state = dense()
    # A copy: with assign=True the tensors that are given become the model's own, and are zeroed.
    model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=assign)
    assert zeros(model) > 0.9
    if let_go == "second":
        with pytest.warns(UserWarning, match="earlier Pruner.*detached"):
            pw.Pruner(model, optimizer, criterion="magnitude").prune(0.5)
        assert zeros(model) == pytest.approx(0.5, abs=0.02)
    else:
        getattr(pruner, let_go)()
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def operated():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    surgery = pw.Surgery(model, optimizer, sparsity=0.7)
    train(model, optimizer, 20)
    assert zeros(model) > 0.5
    return model, surgery


def test_what_is_written_during_a_surgery_is_found():
    model, surgery = operated()
    model[0].weight.data.fill_(1.0)
    assert surgery.sparsity == pytest.approx(zeros(model))
    with pytest.warns(UserWarning, match="'0.weight'.*written to"):
        model.eval()(batch(0)[0])
    assert surgery.sparsity == pytest.approx(zeros(model))
    assert zeros(model) > 0.5
    model.load_state_dict(dense())
    with pytest.warns(UserWarning, match=r"'0.weight'.*reset\(\)"):
        model(batch(0)[0])
    assert zeros(model) > 0.5


@pytest.mark.parametrize("let_go", ["detach", "reset"])
def test_what_was_loaded_into_a_surgery_is_there_once_it_is_let_go(let_go):
    model, surgery = operated()
    state = dense()
    model.load_state_dict(state)
    assert zeros(model) > 0.5
    getattr(surgery, let_go)()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("let_go", ["detach", "reset", "load_state_dict"])
def test_a_load_over_a_load_is_the_one_that_counts(let_go, assign):
    model, _, pruner = pruned(0.5)
    saved = deepcopy(pruner.state_dict())
    good = {name: tensor * 3 for name, tensor in model.state_dict().items()}
    model.load_state_dict(dense())
    model.load_state_dict({name: tensor.clone() for name, tensor in good.items()}, assign=assign)
    model(batch(0)[0])  # nothing to warn of
    model.load_state_dict(dense())
    model.load_state_dict({name: tensor.clone() for name, tensor in good.items()}, assign=assign)
    getattr(pruner, let_go)(*[saved] * (let_go == "load_state_dict"))
    assert all(torch.equal(tensor, good[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("let_go", ["detach", "reset"])
def test_what_is_written_after_a_load_stays_once_the_zeros_are_let_go(let_go):
    model, _, pruner = pruned()
    state = dense()
    model.load_state_dict(state)
    with torch.no_grad():
        model[0].weight.fill_(7.0)
        model[2].weight[0] = 7.0
    getattr(pruner, let_go)()
    assert (model[0].weight == 7).all()
    assert (model[2].weight[0] == 7).all()
    assert torch.equal(model[2].weight[1:], state["2.weight"][1:]), "the rest is what was loaded"


def test_what_was_loaded_is_given_back_to_a_model_that_was_moved():
    model, _, pruner = pruned()
    state = dense()
    model.load_state_dict(state)
    model.double()
    pruner.detach()
    assert torch.equal(model[0].weight, state["0.weight"].double())
    model, _, pruner = pruned()
    model.load_state_dict(state)
    model.to("meta")
    pruner.detach()


def test_masks_that_are_set_after_a_load_keep_what_it_brought():
    model, _, pruner = pruned(0.9)
    state = dense()
    model.load_state_dict(state)
    pruner.set_masks({name: torch.ones_like(mask) for name, mask in pruner.masks.items()})
    assert torch.equal(model[0].weight, state["0.weight"])


def test_zeros_are_those_that_were_loaded():
    model, _, pruner = pruned(0.9)
    state = dense()
    state["0.weight"][0] = 0
    model.load_state_dict(state)
    pruner.hold_zeros()
    assert torch.equal(model[0].weight, state["0.weight"])
    assert pruner.sparsity == pytest.approx(zeros(model))


def test_a_pruning_after_a_denser_load_says_that_its_old_zeros_stayed():
    model, _, pruner = pruned()
    model.load_state_dict(dense())
    with pytest.warns(UserWarning, match=r"reset\(\)"):
        pruner.prune(0.9)
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.9, abs=0.01)


def test_the_first_evaluation_by_a_compiled_model_sees_zeros():
    model = net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(compiled, optimizer, 2)
    pruner = pw.Pruner(compiled, optimizer)
    pruner.prune(0.8)
    train(compiled, optimizer, 2)
    model[0].weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="'0.weight'.*written to"):
        seen = compiled.eval()(batch(0)[0])
    assert pruner.sparsity == pytest.approx(zeros(model))
    assert zeros(model) == pytest.approx(0.8, abs=0.01)
    assert torch.equal(seen, model(batch(0)[0]))
    pruner.detach()
    assert not compiled._forward_pre_hooks
