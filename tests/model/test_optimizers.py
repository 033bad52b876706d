"""What optimizers keep, against transcriptions of their formulas one number at a time."""

import re

import pytest
import torch
from torch import nn

from prunewald.model.optimizers import (
    as_given,
    as_list,
    forget_,
    forget_history_,
    group_of,
    keeps_mean_square,
    layers,
    master,
    mean_square_gradient,
    mean_square_state,
    own_state,
    owned,
    set_own_state_,
    step_taken,
    stepped_by,
    unwrapped,
    with_closures,
)
from tests.training import cases, net, one_step
from tests.transcriptions import (
    NO_MEAN_SQUARE,
    SAM,
    SOAP,
    AcceleratedOptimizer,
    AdamBoth8bit,
    GaLore,
    LightningOptimizer,
    Lookahead,
    SlowLookahead,
    Unhooked,
)

STEPS = 5


def why_no_mean_square(optimizer, param):
    found = mean_square_state(optimizer, param)
    return found if isinstance(found, str) else ""


def exponential(decay):
    """v ← decay · v + (1 - decay) · g², without its start-up bias."""

    def mean(gradients):
        v = 0.0
        for g in gradients:
            v = decay * v + (1 - decay) * g * g
        return v / (1 - decay ** len(gradients))

    return mean


def plain_mean(gradients):
    return sum(g * g for g in gradients) / len(gradients)


LITERAL = {
    "Adam": (torch.optim.Adam, {"betas": (0.9, 0.95)}, exponential(0.95)),
    "Adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}, exponential(0.999)),
    "AdamW": (torch.optim.AdamW, {"betas": (0.8, 0.7), "weight_decay": 0.1}, exponential(0.7)),
    "RMSprop": (torch.optim.RMSprop, {"alpha": 0.9}, exponential(0.9)),
    "RMSprop-centred": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}, exponential(0.99)),
    "Adadelta": (torch.optim.Adadelta, {"rho": 0.8}, exponential(0.8)),
    "Adagrad": (torch.optim.Adagrad, {}, plain_mean),
    "Adagrad-initial": (torch.optim.Adagrad, {"initial_accumulator_value": 0.5}, plain_mean),
}


@pytest.mark.parametrize("name", LITERAL)
def test_the_mean_square_gradient_is_the_formula(name):
    kind, options, formula = LITERAL[name]
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    optimizer = kind([weight], **options)
    gradients = torch.randn(STEPS, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    expected = [formula(one) for one in gradients.flatten(1).T.tolist()]
    torch.testing.assert_close(mean_square_gradient(optimizer, weight).flatten().tolist(), expected)


def test_a_mean_square_is_a_tensor_of_its_own_and_at_least_float32():
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    found = mean_square_gradient(optimizer, weight)
    assert found.dtype == torch.float32
    before = optimizer.state[weight]["exp_avg_sq"].clone()
    found.zero_()
    assert torch.equal(optimizer.state[weight]["exp_avg_sq"], before)


@pytest.mark.parametrize("case", list(cases()))
def test_keeps_mean_square_says_whether_there_is_one(case):
    model = case.model()
    optimizer = case.optimizer(model)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    assert all(mean_square_gradient(optimizer, param) is None for param in params)
    case.step(model, optimizer, 0)
    for param in params:
        found = mean_square_gradient(optimizer, param)
        assert keeps_mean_square(optimizer, param) == (found is not None)
        assert found is None or found.shape == param.shape
    assert mean_square_gradient(None, params[0]) is None
    assert not keeps_mean_square(None, params[0])


@pytest.mark.parametrize("kind", NO_MEAN_SQUARE, ids=lambda kind: kind.__name__)
def test_what_is_no_mean_square_of_each_weight_is_never_read_and_the_reason_names_the_optimizer(kind):
    model = net()
    optimizer = kind([model[0].weight, model[2].weight], lr=1e-3)
    for step in range(3):
        one_step(model, optimizer, step)
        for weight in (model[0].weight, model[2].weight):
            assert mean_square_gradient(optimizer, weight) is None
            assert not keeps_mean_square(optimizer, weight)
            assert re.search(f"{kind.__name__}.*{NO_MEAN_SQUARE[kind]}", why_no_mean_square(optimizer, weight))


def test_a_projection_that_keeps_the_shape_is_known_too():
    weight = nn.Parameter(torch.randn(3, 5))
    optimizer = GaLore([weight], rank=3)
    weight.grad = torch.randn(3, 5)
    optimizer.step()
    assert optimizer.state[weight]["exp_avg_sq"].shape == weight.shape
    assert "projected" in why_no_mean_square(optimizer, weight)


def test_what_derives_from_adam_is_believed_unless_its_state_has_keys_of_its_own():
    class Mine(torch.optim.Adam):
        pass

    class Rotated(torch.optim.Adam):
        update = SOAP.update
        step = SOAP.step

    for kind, why in ((Mine, ""), (Rotated, "Rotated.*rotated")):
        weight = nn.Parameter(torch.randn(3, 5))
        optimizer = kind([weight])
        weight.grad = torch.randn(3, 5)
        optimizer.step()
        assert re.fullmatch(f"{why}.*" if why else "", why_no_mean_square(optimizer, weight))
        assert keeps_mean_square(optimizer, weight) == (not why)


@pytest.mark.parametrize("change", ["key", "shape", "dtype", "float8", "group", "count"])
def test_adam_s_own_state_is_not_read_when_it_is_not_as_it_should_be(change):
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    state = optimizer.state[weight]
    assert keeps_mean_square(optimizer, weight)
    if change == "key":
        state["basis"] = torch.eye(2)
    elif change == "group":
        del optimizer.param_groups[0]["betas"]
    elif change == "count":
        del state["step"]
    else:
        kinds = {"shape": torch.ones(4), "dtype": torch.ones(2, 2, dtype=torch.int32)}
        state["exp_avg_sq"] = kinds.get(change, torch.ones(2, 2).to(torch.float8_e4m3fn))
    assert mean_square_gradient(optimizer, weight) is None
    assert not keeps_mean_square(optimizer, weight)
    assert "Adam" in why_no_mean_square(optimizer, weight)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_before_its_first_step_an_optimizer_has_no_mean_square_yet(kind):
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([weight])
    assert mean_square_gradient(optimizer, weight) is None
    assert not keeps_mean_square(optimizer, weight)
    assert re.search(f"{kind.__name__}.*no step", why_no_mean_square(optimizer, weight))


def test_state_of_a_parameter_that_left_is_not_read():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.param_groups[0]["params"] = []
    assert mean_square_gradient(optimizer, weight) is None
    assert "Adam steps it no more" in why_no_mean_square(optimizer, weight)


MOVING = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {},
    "NAdam": {},
    "Adamax": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
}


@pytest.mark.parametrize("name", MOVING)
def test_forgotten_places_do_not_move_without_a_gradient_and_second_moments_stay(name):
    model = net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **MOVING[name])
    for step in range(3):
        one_step(model, optimizer, step)
    weight, alive = model[0].weight, torch.arange(48).view(8, 6) % 3 > 0
    kept = {key: value.clone() for key, value in optimizer.state[weight].items() if isinstance(value, torch.Tensor)}
    forget_(optimizer, weight, alive)
    for key, value in optimizer.state[weight].items():
        if key in kept and value.shape == alive.shape:
            assert torch.equal(value[alive], kept[key][alive])
            if "sq" in key or key in ("square_avg", "sum", "exp_inf"):
                assert torch.equal(value, kept[key])
    before = weight.detach().clone()
    weight.grad.zero_()
    optimizer.step()
    assert torch.equal(weight[~alive], before[~alive])


def test_forgotten_momentum_is_plus_zero_and_the_step_of_rprop_its_first():
    weight, alive = nn.Parameter(torch.ones(2)), torch.tensor([True, False])
    momentum = torch.optim.SGD([weight], momentum=0.9)
    momentum.state[weight]["momentum_buffer"] = torch.tensor([-1.0, -1.0])
    forget_(momentum, weight, alive)
    assert momentum.state[weight]["momentum_buffer"].tolist() == [-1.0, 0.0]
    assert not momentum.state[weight]["momentum_buffer"][1].signbit()
    rprop = torch.optim.Rprop([weight], lr=0.01)
    rprop.state[weight] = {"step_size": torch.tensor([0.5, 0.5]), "prev": torch.ones(2)}
    forget_(rprop, weight, alive)
    assert rprop.state[weight]["step_size"].tolist() == pytest.approx([0.5, 0.01])
    assert rprop.state[weight]["prev"].tolist() == [1.0, 0.0]


def test_the_history_of_lbfgs_goes_and_other_states_stay():
    weight = nn.Parameter(torch.ones(2))
    lbfgs, adam = torch.optim.LBFGS([weight]), torch.optim.Adam([weight])
    lbfgs.step(lambda: weight.square().sum())
    lbfgs.state[weight]["old_dirs"] = [torch.ones(2)]
    weight.grad = torch.ones(2)
    adam.step()
    for optimizer in (lbfgs, adam):
        forget_history_(optimizer)
    assert not lbfgs.state[weight]
    assert "exp_avg" in adam.state[weight]


def test_master_weights_where_there_are_any():
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight])
    assert master(None, weight).data_ptr() == master(optimizer, weight).data_ptr() == weight.data_ptr()
    optimizer.state[weight]["master_param"] = full = torch.full((2,), 1.001)
    assert master(optimizer, weight) is full
    optimizer.state[weight]["master_param"] = torch.ones(3)  # of another shape, so of something else
    assert master(optimizer, weight).data_ptr() == weight.data_ptr()


def test_a_skipped_step_is_known_by_found_inf():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    assert step_taken(None) is None
    assert step_taken(optimizer) is None
    for found, took in ((0.0, 1), (1.0, 0)):
        optimizer.found_inf = torch.tensor([found])
        assert step_taken(optimizer).tolist() == took


def test_which_optimizer_steps_which_parameter():
    model = net()
    first, second = (torch.optim.SGD(model[at].parameters()) for at in (0, 2))
    params = dict(model.named_parameters())
    assert owned(params, [first, second]) == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    assert owned(params, []) == [list(params)]
    assert group_of(first, model[0].weight) is first.param_groups[0]
    assert group_of(first, model[2].weight) is None


def test_optimizers_as_a_list_with_each_once():
    one, two = (torch.optim.SGD(net().parameters()) for _ in range(2))
    assert as_list(None) == []
    assert as_list(one) == as_list([one, one]) == [one]
    assert as_list(iter((one, two))) == [one, two]


@pytest.mark.parametrize("given", [0.9, [0.9], "adam", [nn.Linear(2, 2)]], ids=str)
def test_what_is_no_optimizer_is_repeated(given):
    with pytest.raises(TypeError, match=r"optimizer=.*torch\.optim\.Optimizer.*prune\(0\.9\)") as caught:
        as_list(given)
    assert repr(given) in str(caught.value)


def test_wrappers_are_taken_off_down_to_what_has_step_hooks():
    one = torch.optim.SGD(net().parameters())
    for wrapped in (AcceleratedOptimizer(one), LightningOptimizer(one), LightningOptimizer(AcceleratedOptimizer(one))):
        assert unwrapped(wrapped) is one
        assert as_list(wrapped) == as_list([wrapped, one]) == [one]
    assert unwrapped(one) is one
    assert unwrapped(None) is None


def test_of_a_wrapper_that_steps_otherwise_the_innermost_is_watched_and_every_state_is_known():
    model = net()
    one = torch.optim.SGD(model.parameters())
    sam, ahead, slow = SAM(model.parameters(), torch.optim.SGD, lr=0.1), Lookahead(one), SlowLookahead(one)
    assert layers(one) == [one]
    assert layers(sam) == [sam, sam.base_optimizer]
    assert as_given(sam) == (["SAM"], [sam.base_optimizer], [sam, sam.base_optimizer], 0)
    assert as_given([ahead, one]) == (["Lookahead", "SGD"], [one], [ahead, one], 0)
    assert as_given(slow) == (["SlowLookahead"], [one], [one], 0)
    assert as_given(iter([AcceleratedOptimizer(one)])).kept == [one]
    assert as_given(torch.optim.LBFGS(model.parameters(), max_eval=7)).evaluations == 7


def test_what_a_wrapper_keeps_goes_back():
    model = net()
    ahead = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    one_step(model, ahead, 0)
    saved = own_state(ahead)
    slow = ahead.state[model[0].weight]["slow_param"].clone()
    for step in range(3):
        one_step(model, ahead, step)
    set_own_state_(ahead, saved)
    assert torch.equal(ahead.state[model[0].weight]["slow_param"], slow)
    assert len(ahead.state) == len(saved) == 4


@pytest.mark.parametrize("key", ["z", "slow_param", "slow_params", "slow_buffer", "lookahead_slow_buff", "old_p"])
def test_other_values_of_the_weights_are_forgotten_too(key):
    weight, alive = nn.Parameter(torch.ones(2)), torch.tensor([True, False])
    optimizer = torch.optim.Adam([weight])
    optimizer.state[weight] = {key: torch.tensor([2.0, 2.0]), "exp_avg_sq": torch.ones(2)}
    assert forget_(optimizer, weight, alive) == []
    assert optimizer.state[weight][key].tolist() == [2.0, 0.0]
    assert optimizer.state[weight]["exp_avg_sq"].tolist() == [1.0, 1.0]


def test_what_is_quantised_is_left_and_named():
    model = net()
    optimizer = AdamBoth8bit(model.parameters())
    one_step(model, optimizer, 0)
    weight, bias = model[0].weight, model[0].bias
    assert forget_(optimizer, weight, torch.zeros(8, 6, dtype=torch.bool)) == ["exp_avg"]
    assert forget_(optimizer, bias, torch.zeros(8, dtype=torch.bool)) == []
    assert optimizer.state[weight]["exp_avg"].dequantize().any()
    assert not optimizer.state[bias]["exp_avg"].any()


def test_an_optimizer_that_never_called_torch_s_init_is_refused():
    with pytest.raises(TypeError, match=r"Unhooked.*apply_\(\)"):
        as_list(Unhooked([nn.Parameter(torch.ones(2))], 0.1))


def test_who_steps_a_parameter_now():
    model = net()
    first, second = (torch.optim.SGD(model[at].parameters()) for at in (0, 2))
    params = {"0.weight": model[0].weight, "2.weight": model[2].weight, "other": nn.Parameter(torch.ones(1))}
    assert stepped_by(params, [first, second]) == {"0.weight": first, "2.weight": second}
    assert stepped_by(params, []) == {}
    first.add_param_group({"params": [params["other"]]})
    assert stepped_by(params, [first, second])["other"] is first


def test_closures_are_wrapped_however_they_are_given():
    def closure():
        return 3

    def wrap(given):
        return lambda: given() + 1

    assert with_closures((), {}, wrap) is None
    assert with_closures((None,), {}, wrap) is None
    (wrapped,), rest = with_closures((closure,), {}, wrap)
    assert (wrapped(), rest) == (4, {})
    args, named = with_closures((), {"closure": closure, "scale": 2}, wrap)
    assert (args, named["closure"](), named["scale"]) == ((), 4, 2)
