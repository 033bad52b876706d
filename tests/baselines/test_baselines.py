"""The baselines through the Pruner."""

import io

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.baselines import OBD, PLATON, Movement, Taylor, Wanda
from tests.baselines.helpers import STEPS, Inputs, Watch, assert_same, matrices, score
from tests.training import loss_of, net, one_step, sgd

pytestmark = pytest.mark.usefixtures("one_thread")


def attached(criterion, model=None, **options):
    model = model or net()
    optimizer = sgd(model)
    return model, optimizer, pw.Pruner(model, optimizer, criterion=criterion, **options)


BY_NAME = {"taylor": Taylor(), "movement": Movement(), "obd": OBD(), "platon": PLATON(), "wanda": Wanda()}
each_name = pytest.mark.parametrize("name", BY_NAME)


@each_name
def test_it_runs_the_statistic_and_prunes_by_it(name):
    model, optimizer, pruner = attached(name)
    criterion = BY_NAME[name]
    watch = Inputs(model) if name == "wanda" else Watch(criterion.statistic, model, optimizer)
    for step in range(STEPS):
        one_step(model, optimizer, step)
    scores = {n: score(criterion, w, statistic=watch.value(n)) for n, w in matrices(model).items()}
    assert_same(pruner.scores(), scores)
    pruner.prune(0.5)
    for param, found in scores.items():
        alive = pruner.masks[param]
        assert found[alive].min() >= found[~alive].max()


@each_name
def test_it_starts_anew_after_a_pruning(name):
    model, optimizer, pruner = attached(name)
    for step in range(STEPS):
        one_step(model, optimizer, step)
    pruner.prune(0.5)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="has no (statistic|gradient)"):
        pruner.prune(0.6)
    one_step(model, optimizer, STEPS)
    before = pruner.masks
    pruner.prune(0.6)
    assert all((mask <= before[n]).all() for n, mask in pruner.masks.items())


@each_name
def test_it_goes_on_from_a_saved_state(name):
    def train(resume):
        model, optimizer, pruner = attached(name)
        for step in range(STEPS):
            if step == 3 and resume:
                saved = io.BytesIO()
                torch.save((model.state_dict(), optimizer.state_dict(), pruner.state_dict()), saved)
                saved.seek(0)
                model, optimizer, pruner = attached(name, net(seed=1))
                for part, state in zip((model, optimizer, pruner), torch.load(saved, weights_only=True), strict=True):
                    part.load_state_dict(state)
            one_step(model, optimizer, step)
        return pruner.scores()

    assert_same(train(resume=True), train(resume=False))


@each_name
def test_nothing_is_left_after_detaching(name):
    model, optimizer, pruner = attached(name)
    one_step(model, optimizer, 0)
    pruner.detach()
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("name", ["taylor", "snip"])
def test_a_backward_pass_is_enough(name):
    model = net()
    pruner = pw.Pruner(model, criterion=name, scope="global")
    with pytest.raises(ValueError, match=r"'0.weight' has no gradient.*loss.backward\(\)"):
        pruner.prune(0.5)
    loss_of(model, 0).backward()
    expected = {n: (w * w.grad).abs().detach() for n, w in matrices(model).items()}
    assert_same(pruner.scores(), expected)
    pruner.prune(0.5)


@pytest.mark.parametrize("name", ["movement", "obd", "platon"])
def test_its_own_step_counts(name):
    model = net()
    pruner = pw.Pruner(model, criterion=name)
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match="has no statistic yet"):
        pruner.prune(0.5)
    pruner.apply_()
    pruner.prune(0.5)


def test_calibration_data_are_enough_for_wanda():
    model = net()
    pruner = pw.Pruner(model, criterion="wanda")
    with pytest.raises(ValueError, match="has no statistic yet.*run data"):
        pruner.prune(0.5)
    with torch.inference_mode():
        model(torch.randn(5, 6))
    pruner.prune(0.5)


def test_wanda_on_a_slice():
    model, optimizer, pruner = attached("wanda", targets=["0.weight[2:5]"])
    one_step(model, optimizer, 0)
    report = pruner.prune(0.5)
    assert report.kept == 9


def test_wanda_names_what_it_cannot_read():
    model = nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="ignore='0.weight_ih_l0'"):
        pw.Pruner(model, criterion="wanda")
    pw.Pruner(model, criterion="wanda", ignore=nn.LSTM)


@each_name
def test_two_optimizers(name):
    model = net()
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    pruner = pw.Pruner(model, optimizers, criterion=name)
    for step in range(STEPS):
        loss_of(model, step).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    pruner.prune(0.5)
    assert pruner.sparsity == 0.5
