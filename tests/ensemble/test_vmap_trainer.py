"""Many replicas in one step, against separate plain loops."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from prunewald.ensemble import SGD, AdamW, race, train_many
from prunewald.model.optimizers import mean_square_gradient
from tests.ensemble.helpers import RECIPES, SEEDS, close, data, dropping, many, plain, same, sequences

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_agrees_with_separate_loops(recipe):
    result = many(recipe)
    assert result.how == "vmap"
    for r, seed in enumerate(SEEDS):
        model, optimizer, _, losses = plain(seed, recipe)
        for name, param in model.named_parameters():
            close(result.params[name][r], param.detach())
            v = mean_square_gradient(optimizer, param)
            assert (v is None) == (name not in result.second_moment)
            if v is not None:
                close(result.second_moment[name][r], v)
        close(result.losses[r], torch.tensor(losses, dtype=torch.float64))
        close(result.module(r)(data()[0]), model(data()[0]))


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("recipe", [SGD(lr=0.05, momentum=0.9, weight_decay=0.1), AdamW()], ids=str)
def test_masks_hold_and_agree(recipe, how):
    g = torch.Generator().manual_seed(1)
    masks = {"fc.weight": torch.rand(3, 8, 27, generator=g) > 0.7, "out.weight": torch.rand(4, 8, generator=g) > 0.5}
    result = many(recipe, how, masks=masks)
    for r, seed in enumerate(SEEDS):
        own = {"fc.weight": masks["fc.weight"][r], "out.weight": masks["out.weight"]}
        model = plain(seed, recipe, masks=own)[0]
        for name, param in model.named_parameters():
            close(result.params[name][r], param.detach())
            if name in own:
                assert (result.params[name][r][~own[name]] == 0).all()


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_a_convolution_with_bias_and_batch_norm_is_vectorised(dtype, rtol, monkeypatch):
    def make():
        norm = nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3)
        return nn.Sequential(*norm, nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).to(dtype)

    monkeypatch.setattr(race, "loop_is_faster", lambda job, chunk: "")
    x, y = sequences()
    common = {"seeds": [1, 2, 3], "epochs": 5, "batch_size": 20, "optimizer": SGD(lr=0.1), "progress": False}
    result, alone = (train_many(make, x.to(dtype), y, how=how, **common) for how in ("auto", "loop"))
    assert result.how == "vmap"
    for name, tensor in result.state.items():
        torch.testing.assert_close(tensor, alone.state[name], rtol=rtol, atol=rtol / 100)
    for r in range(3):
        outputs = [each.module(r).eval()(x.to(dtype)) for each in (result, alone)]
        torch.testing.assert_close(*outputs, rtol=rtol, atol=rtol / 10)
    assert (result.buffers["1.num_batches_tracked"] == 15).all()


def test_batch_norm_is_vectorised_with_its_statistics():
    def make():
        return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 3)).double()

    result = dropping(make)
    same(result, dropping(make, how="loop"))
    assert (result.buffers["1.num_batches_tracked"] == 9).all()


def test_squared_error_and_frozen_parameters():
    def make():
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Linear(3, 1)).double()
        model[1].weight.requires_grad_(False)
        return model

    x, y = sequences()
    common = {"loss": F.mse_loss, "epochs": 2, "seeds": [1, 2], "progress": False, "optimizer": SGD(lr=0.1)}
    result = train_many(make, x, y[:, None].double(), how="vmap", **common)
    same(result, train_many(make, x, y[:, None].double(), how="loop", **common))
    torch.manual_seed(2)
    assert torch.equal(result.params["1.weight"][1], make()[1].weight)
