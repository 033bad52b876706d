"""On a CUDA device: models that move there, fused steps that are skipped."""

import pytest
import torch
from torch.amp import GradScaler

import prunewald as pw
from tests.resuming import same
from tests.strategies.surgery_helpers import LEVELS, full, make, on_cpu
from tests.training import assert_zeros, fused, loss_of, net, one_step

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("levels", [pytest.param(name, marks=on_gpu) for name in LEVELS if name != "one-threshold"])
def test_a_model_that_moves_to_the_device_in_between(levels):
    runs = []
    for device in ("cpu", "cuda"):
        model = net().double()
        optimizer = make("sgd", model.parameters())
        surgery = pw.Surgery(model, optimizer, criterion="magnitude", gamma=0.0, **LEVELS[levels])
        for step in range(20):
            if step == 10:
                model.to(device)
                assert_zeros(model, surgery.masks)
                assert all(mask.device.type == device for mask in surgery.masks.values())
            one_step(model, optimizer, step)
        fresh = net(1).double().to(device)
        again = pw.Surgery(fresh, make("sgd", fresh.parameters()), criterion="magnitude", gamma=0.0, **LEVELS[levels])
        fresh.load_state_dict(model.state_dict())
        again.load_state_dict(on_cpu(surgery.state_dict()))
        one_step(fresh, again.optimizers[0], 20)
        one_step(model, optimizer, 20)
        assert same(full(surgery), full(again))
        chosen = surgery.choose(0.5)[0]
        runs.append(on_cpu((full(surgery), surgery.masks, chosen)))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [pytest.param(factor, marks=on_gpu) for factor in (1.0, torch.inf)])
def test_a_fused_step_under_a_scaler_on_the_device(bad):
    model = net().cuda()
    optimizer = fused("Adam", model.parameters(), lr=0.01)
    surgery = pw.Surgery(model, optimizer, sparsity=0.6, uncertainty=pw.PseudoBootstrap(last=4), gamma=0.0)
    scaler = GradScaler("cuda", init_scale=1024.0)
    for step in range(12):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step) * (bad if step % 3 == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert surgery.steps == (12 if bad == 1.0 else 8)
    assert_zeros(model, surgery.masks)
    surgery.prune(0.5)
    assert surgery.sparsity == 0.5
