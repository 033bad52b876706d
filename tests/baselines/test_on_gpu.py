"""The statistics on a CUDA device."""

import copy

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from tests.baselines.helpers import (
    LITERAL,
    STEPS,
    Inputs,
    Watch,
    assert_same,
    assert_scores,
    each_statistic,
    matrices,
    score,
)
from tests.pruning.holding.test_zeros_scaler import BAD, optimizer_of, scaled_step
from tests.test_pruner_on_gpu import nothing_waits
from tests.training import net, one_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@each_statistic
def test_a_model_that_moves_between_steps(statistic):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(statistic, model, optimizer)
    for step in range(STEPS):
        if step in (2, 4):
            model.to("cuda" if step == 2 else "cpu")
        one_step(model, optimizer, step)
        assert watch.value("0.weight").device == model[0].weight.device
    watch.log = {n: [(w.cpu(), g.cpu()) for w, g in log] for n, log in watch.log.items()}
    criterion = next(c for c in LITERAL if c.statistic == statistic)
    expected = [LITERAL[criterion](*one) for one in watch.history("0.weight")]
    assert_scores(score(criterion, model[0].weight, statistic=watch.value("0.weight")), expected, rtol=1e-3)


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Conv1d(3, 4, 3)], ids=str)
def test_the_inputs_of_a_model_that_moves(layer):
    layer = copy.deepcopy(layer)
    inputs = Inputs(layer)
    xs = torch.randn(3, 5, 3, 6)
    for x, device in zip(xs, ("cpu", "cuda", "cpu"), strict=True):
        layer.to(device)(x.to(device))
        assert inputs.value("weight").device == layer.weight.device
    moved, inputs.state = inputs.value("weight"), inputs.statistic.init({})
    for x in xs:
        layer(x)
    torch.testing.assert_close(moved, inputs.value("weight"))


@each_statistic
def test_a_skipped_step_is_seen_without_waiting(statistic):
    model = net().cuda()
    optimizer = optimizer_of("SGD", "fused", model)
    weights, states = matrices(model), []
    for batches in ([0, 1, 2], [BAD, 0, 1, BAD, 2]):
        scaler = GradScaler("cuda", init_scale=1024.0)
        model.load_state_dict(net().state_dict())
        states.append(statistic.init(weights))
        handle = optimizer.register_step_post_hook(quiet(statistic, states[-1], weights))
        for batch in batches:
            scaled_step(model, optimizer, scaler, batch)
        handle.remove()
    clean, skipped = ({n: statistic.value(state, n) for n in weights} for state in states)
    assert_same(clean, skipped)


def quiet(statistic, state, weights):
    def hook(optimizer, *_):
        with nothing_waits():
            statistic.update_(state, weights, optimizer)

    return hook


def test_inputs_are_read_without_waiting():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 4)).cuda()
    inputs = Inputs(model)
    x = torch.randn(5, 3, 5, 5, device="cuda")
    with nothing_waits(), torch.autocast("cuda", dtype=torch.float16):
        model(x)
    assert inputs.value("2.weight").dtype == torch.float32
