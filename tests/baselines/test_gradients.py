"""The gradient baselines against their papers' formulas, and what training may do to them."""

import io
import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import prunewald as pw
from prunewald.baselines import OBD, PLATON, SNIP, Movement, Taylor, Wanda
from prunewald.baselines.gradients import TotalMovement
from tests.baselines.helpers import (
    LITERAL,
    OPTIMIZERS,
    STEPS,
    Watch,
    assert_same,
    assert_scores,
    each_optimizer,
    each_statistic,
    literal_platon,
    matrices,
    score,
)
from tests.pruning.holding.test_zeros_scaler import BAD, optimizer_of, scaled_step
from tests.resuming import same
from tests.training import closure_step, loss_of, net, one_step, sgd, sparse_net, sparse_step, train

pytestmark = pytest.mark.usefixtures("one_thread")


@each_optimizer
@pytest.mark.parametrize("step", [one_step, closure_step])
@pytest.mark.parametrize("criterion", LITERAL, ids=repr)
def test_the_papers_formula_over_a_training(criterion, step, optimizer):
    model = net()
    optimizer = OPTIMIZERS[optimizer](model)
    watch = Watch(criterion.statistic, model, optimizer)
    for i in range(STEPS):
        step(model, optimizer, i)
    for name, weight in watch.weights.items():
        expected = [LITERAL[criterion](*one) for one in watch.history(name)]
        assert_scores(score(criterion, weight, statistic=watch.value(name)), expected)


def test_platon_takes_its_two_rates():
    model = net()
    optimizer = sgd(model)
    watch = Watch(PLATON(beta1=0.3, beta2=0.6).statistic, model, optimizer)
    for i in range(STEPS):
        one_step(model, optimizer, i)
    expected = [literal_platon(*one, beta1=0.3, beta2=0.6) for one in watch.history("0.weight")]
    assert_scores(watch.value("0.weight"), expected)


@pytest.mark.parametrize("beta", [-0.1, 1.0, math.nan])
def test_a_bad_rate_is_named(beta):
    with pytest.raises(ValueError, match=f"beta2={beta}.*at least 0 and below 1"):
        PLATON(beta2=beta)


def test_movement_is_positive_where_gradient_descent_led_away_from_zero():
    weight = nn.Parameter(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    statistic = TotalMovement()
    state = statistic.init({"w": weight})
    for _ in range(3):
        weight.grad = torch.tensor([[-1.0, 1.0, 1.0, -1.0]])
        optimizer.step()
        statistic.update_(state, {"w": weight}, optimizer)
    assert statistic.value(state, "w").sign().tolist() == [[1.0, -1.0, 1.0, -1.0]]


def test_snip_is_the_papers_formula_up_to_its_total():
    model = net()
    loss_of(model, 0).backward()
    scores = {n: score(SNIP(), w, gradient=w.grad) for n, w in matrices(model).items()}
    total = sum(float(s.double().sum()) for s in scores.values())
    products = {n: [(w * g) for w, g in pairs(p)] for n, p in matrices(model).items()}
    everything = sum(abs(value) for values in products.values() for value in values)
    for name, found in scores.items():
        assert_scores(found / total, [abs(value) / everything for value in products[name]])


def pairs(param):
    return zip(param.detach().double().flatten().tolist(), param.grad.double().flatten().tolist(), strict=True)


def test_taylor_takes_the_present_gradient_before_the_first_step():
    weight, gradient = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(score(Taylor(), weight, gradient=gradient), (weight * gradient).abs())
    both = score(Taylor(), weight, gradient=gradient, statistic=torch.ones(3, 4))
    assert torch.equal(both, weight.abs())


@pytest.mark.parametrize("criterion", [Taylor(), SNIP()], ids=repr)
def test_no_gradient_says_what_to_do(criterion):
    with pytest.raises(ValueError, match=r"'w' has no gradient.*loss.backward\(\)"):
        score(criterion, torch.ones(2, 2))


@pytest.mark.parametrize("criterion", [Movement(), OBD(), PLATON(), Wanda()], ids=repr)
def test_no_statistic_says_what_to_do(criterion):
    with pytest.raises(ValueError, match="'w' has no statistic yet.*train a few steps"):
        score(criterion, torch.ones(2, 2), gradient=torch.ones(2, 2))


# ---- what a training may bring -----------------------------------------------------------------------------------


@each_statistic
def test_before_the_first_step_there_is_no_value(statistic):
    state = statistic.init(matrices(net()))
    assert statistic.value(state, "0.weight") is None


@each_statistic
def test_a_value_is_no_view_of_the_state(statistic):
    model = net()
    optimizer = sgd(model)
    watch = Watch(statistic, model, optimizer)
    one_step(model, optimizer, 0)
    before = watch.value("0.weight").clone()
    watch.value("0.weight").zero_()
    assert torch.equal(watch.value("0.weight"), before)
    assert not before.requires_grad


@each_statistic
def test_the_gradient_and_the_weight_stay_as_they_are(statistic):
    model = net()
    loss_of(model, 0).backward()
    weights = matrices(model)
    before = {name: (w.detach().clone(), w.grad.clone()) for name, w in weights.items()}
    state = statistic.init(weights)
    statistic.update_(state, weights, None)
    for name, weight in weights.items():
        assert torch.equal(weight, before[name][0])
        assert torch.equal(weight.grad, before[name][1])


@pytest.mark.parametrize("criterion", LITERAL, ids=repr)
def test_sparse_gradients(criterion):
    model = sparse_net()
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    watch = Watch(criterion.statistic, model, optimizer)
    for step in range(STEPS):
        sparse_step(model, optimizer, step)
        assert model[0].weight.grad.is_sparse
    expected = [LITERAL[criterion](*one) for one in watch.history("0.weight")]
    assert_scores(score(criterion, model[0].weight, statistic=watch.value("0.weight")), expected)


@pytest.mark.parametrize("criterion", LITERAL, ids=repr)
def test_no_gradient_in_a_step_counts_as_zero(criterion):
    model = net()
    optimizer = sgd(model)
    watch = Watch(criterion.statistic, model, optimizer)
    for step in range(STEPS):
        model[0].weight.requires_grad_(step not in (0, 4))
        one_step(model, optimizer, step)
        assert (model[0].weight.grad is None) == (step in (0, 4))
    expected = [LITERAL[criterion](*one) for one in watch.history("0.weight")]
    assert_scores(score(criterion, model[0].weight, statistic=watch.value("0.weight")), expected)


@pytest.mark.parametrize("criterion", LITERAL, ids=repr)
def test_low_precision_weights_are_summed_in_float32(criterion):
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(criterion.statistic, model, optimizer)
    for step in range(STEPS):
        one_step(model, optimizer, step)
    found = watch.value("0.weight")
    assert found.dtype == torch.float32
    expected = [LITERAL[criterion](*one) for one in watch.history("0.weight")]
    assert_scores(score(criterion, model[0].weight.float(), statistic=found), expected)


@each_statistic
def test_double_precision_stays(statistic):
    model = net().double()
    optimizer = sgd(model)
    watch = Watch(statistic, model, optimizer)
    one_step(model, optimizer, 0)
    assert watch.value("0.weight").dtype == torch.float64


@each_statistic
def test_a_master_copy_changes_nothing(statistic):
    """The gradient was taken at the rounded weight."""

    def values(keep):
        model = net().bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = Watch(statistic, model, optimizer)
        for step in range(3):
            one_step(model, optimizer, step)
            if keep:
                for p in model.parameters():
                    optimizer.state[p]["master_param"] = torch.full_like(p, 99.0, dtype=torch.float32)
        return watch.values()

    assert_same(values(keep=True), values(keep=False))


@pytest.mark.parametrize("form", ["fused", "unfused"])
@pytest.mark.parametrize("bad", [[], [0], [3], [5], [0, 0, 2]], ids=str)
@each_statistic
def test_a_skipped_step_leaves_no_trace(statistic, bad, form):
    def values(batches):
        model = net()
        optimizer = optimizer_of("SGD", form, model)
        watch = Watch(statistic, model, optimizer)
        scaler = GradScaler("cpu", init_scale=1024.0)
        for batch in batches:
            scaled_step(model, optimizer, scaler, batch)
        return watch.values()

    batches = list(range(5))
    for place in reversed(bad):
        batches.insert(place, BAD)
    assert_same(values(batches), values(list(range(5))))


@each_statistic
def test_only_skipped_steps_are_none(statistic):
    model = net()
    optimizer = optimizer_of("SGD", "fused", model)
    watch = Watch(statistic, model, optimizer)
    scaled_step(model, optimizer, GradScaler("cpu", init_scale=1024.0), BAD)
    assert watch.value("0.weight") is None


@each_statistic
def test_a_saved_state_goes_on(statistic):
    model = net()
    optimizer = sgd(model)
    watch = Watch(statistic, model, optimizer)
    for step in range(STEPS):
        if step == 3:
            saved = io.BytesIO()
            torch.save(watch.state, saved)
            saved.seek(0)
            watch.state = torch.load(saved, weights_only=True)
        one_step(model, optimizer, step)
    other = net()
    optimizer = sgd(other)
    expected = Watch(statistic, other, optimizer)
    for step in range(STEPS):
        one_step(other, optimizer, step)
    assert_same(watch.values(), expected.values())


@pytest.mark.parametrize("criterion", ["movement", "platon"])
@pytest.mark.parametrize("pruner_first", [False, True])
def test_copies_of_the_weights_are_not_in_a_checkpoint_and_it_goes_on_exactly(criterion, pruner_first):
    def attached(seed):
        model = net(seed)
        optimizer = sgd(model)
        return model, optimizer, pw.Pruner(model, optimizer, criterion=criterion)

    model, optimizer, pruner = attached(0)
    train(model, optimizer, 4)
    saved = deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
    assert saved[2]["statistics"][0]["before"] == {}
    others = attached(1)
    for part, state in list(zip(others, saved, strict=True))[:: -1 if pruner_first else 1]:
        part.load_state_dict(state)
    train(model, optimizer, 4, first=4)
    train(*others[:2], 4, first=4)
    assert same(others[2].state_dict(), pruner.state_dict())
    assert same(others[2].scores(), pruner.scores())


def test_copies_that_are_not_the_present_weights_are_in_a_checkpoint():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="movement")
    train(model, optimizer, 2)
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert torch.equal(pruner.state_dict()["statistics"][0]["before"]["0.weight"], before)
