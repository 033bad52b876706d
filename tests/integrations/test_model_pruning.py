"""From Lightning's ModelPruning: its checkpoints and its live masks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from tests.resuming import same
from tests.training import assert_zeros

pytest.importorskip("lightning", reason="Lightning is not installed: pip install 'prunewald[lightning]'")

from lightning.pytorch.callbacks import ModelPruning

from prunewald.integrations.lightning import PrunerCallback, from_model_pruning
from tests.integrations.test_lightning import Net, each_epoch, fit, loader, pytestmark, sparsity, trainer  # noqa: F401


def pruned(tmp_path, *, names=("weight",), permanent=False):
    """A model after two epochs with ModelPruning, and its checkpoint."""
    model = Net()
    pruning = ModelPruning(
        "l1_unstructured",
        amount=lambda epoch: 0.6 if epoch == 0 else 0.0,
        parameter_names=list(names),
        make_pruning_permanent=permanent,
        use_lottery_ticket_hypothesis=False,
    )
    fit(pruning, each_epoch(tmp_path), model=model, epochs=2)
    return model, tmp_path / "epoch=1.ckpt"


def test_its_checkpoints_are_resumed(tmp_path):
    before, path = pruned(tmp_path)
    masks = {f"net.{at}.weight": before.net[at].weight_mask != 0 for at in (0, 2)}
    callback, model = PrunerCallback(), Net()
    fit(callback, model=model, ckpt_path=path)
    assert same(callback.pruner.masks, masks)
    assert_zeros(model, masks)
    assert not torch.equal(model.net[0].weight, before.net[0].weight), "and trained on"
    again, model = PrunerCallback(0.8, at_epoch=3, module="net"), Net()
    fit(again, model=model, ckpt_path=path)
    assert sparsity(model) == pytest.approx(0.8)
    assert all(not again.pruner.masks[name.removeprefix("net.")][~mask].any() for name, mask in masks.items())


def test_its_checkpoints_are_tested_as_they_are(tmp_path):
    before, path = pruned(tmp_path)
    model = Net()
    trainer(PrunerCallback()).test(model, loader(), ckpt_path=path, verbose=False)
    assert torch.equal(model.net[0].weight, before.net[0].weight_orig * before.net[0].weight_mask)
    assert not model._load_state_dict_pre_hooks


def test_a_checkpoint_that_it_made_permanent_has_zeros_to_hold(tmp_path):
    before, path = pruned(tmp_path, permanent=True)
    assert sparsity(before) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="48 of the weights to prune are zero.*hold_zeros=True"):
        fit(PrunerCallback(), ckpt_path=path)
    callback = PrunerCallback(hold_zeros=True)
    fit(callback, ckpt_path=path)
    assert callback.pruner.sparsity == pytest.approx(0.6)


def test_what_it_pruned_beside_the_targets_is_an_error_that_names_them(tmp_path):
    _, path = pruned(tmp_path, names=("weight", "bias"))
    with pytest.raises(ValueError, match="are no targets") as error:
        fit(PrunerCallback(), ckpt_path=path)
    targets = eval(str(error.value).partition("targets=")[2].partition(")")[0])
    callback = PrunerCallback(targets=targets)
    fit(callback, ckpt_path=path)
    assert any(name.endswith("bias") for name in callback.pruner.masks)


def test_its_live_masks_are_taken_over(tmp_path):
    model, _ = pruned(tmp_path)
    weight = model.net[0].weight_orig.detach() * model.net[0].weight_mask
    with pytest.raises(ValueError, match=r"net\.0\.weight_orig.*prune\.remove"):
        fit(PrunerCallback(), model=model, epochs=1)
    masks = from_model_pruning(model)
    assert set(dict(model.named_parameters())) == set(dict(Net().named_parameters()))
    assert torch.equal(model.net[0].weight, weight)
    callback = PrunerCallback(masks=masks)
    fit(callback, model=model, epochs=1)
    assert same(callback.pruner.masks, masks)
    assert_zeros(model, masks)


def test_several_prunings_of_one_parameter_are_one_mask():
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 4)
    prune.random_unstructured(layer, "weight", 4)
    expected = layer.weight_mask.clone() != 0
    assert same(from_model_pruning(layer), {"weight": expected})
    assert int((layer.weight == 0).sum()) == 8


def test_a_plain_model_has_nothing_to_take_over():
    model = Net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="Net is a plain model.*hold_zeros=True"):
        from_model_pruning(model)
    assert same(model.state_dict(), before)


def test_both_in_one_trainer_are_an_error():
    with pytest.raises(ValueError, match="leave ModelPruning out"):
        fit(PrunerCallback(), ModelPruning("l1_unstructured"))
