"""One training after another with one callback: broken off, refused, found too large, and with masked adapters."""

import copy

import pytest
import torch

import prunewald as pw
from tests.resuming import same
from tests.training import zeros_hold

pytest.importorskip("transformers", reason="Transformers is not installed")

from prunewald.integrations.peft import mask_adapters
from prunewald.integrations.transformers import PrunerCallback
from tests.trainers import bert, llama, made, rows, share_of_zeros, trainer, transformers

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.* output rows have no weight left"),  # these have sixteen weights
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft asks transformers
]
SAVING = {"save_strategy": "steps", "save_steps": 2}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "score", "eval_strategy": "steps", "eval_steps": 2}


class Cramped(transformers.Trainer):  # type: ignore[misc]
    """Has no memory for one of its batches."""

    fails_at = 1

    def training_step(self, *args, **kwargs):
        self.fails_at -= 1
        if self.fails_at == 0:
            raise RuntimeError("CUDA out of memory. ")
        return super().training_step(*args, **kwargs)


def cramped(folder, callback, fails_at):
    model = made(bert)
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    args = transformers.TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=8, auto_find_batch_size=True, **quiet
    )
    one = Cramped(model, args, train_dataset=rows(model), callbacks=[callback])
    one.fails_at = fails_at
    return one


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_schedule_ends_with_the_training_that_found_its_batch_size(fails_at, tmp_path):
    callback = PrunerCallback(schedule="cubic")
    one = cramped(tmp_path, callback, fails_at)
    one.train()
    assert one.state.max_steps > 8, "smaller batches, and more of them, than it began with"
    assert callback.pruner.schedule.end == callback.pruner.steps == one.state.max_steps
    assert callback.pruner.sparsity == pytest.approx(0.9, abs=1e-3)
    assert zeros_hold(one.model, callback.pruner)


def test_a_pruning_at_a_step_is_not_done_twice_where_a_training_begins_again(tmp_path):
    callback = PrunerCallback(0.5, at_step=2)
    one = cramped(tmp_path, callback, 4)
    one.train()
    assert callback.pruner.sparsity == pytest.approx(0.5, abs=1e-3)
    assert zeros_hold(one.model, callback.pruner)


def test_a_training_that_is_refused_costs_no_masks(tmp_path):
    other = trainer(made(bert), tmp_path / "other", PrunerCallback(targets="*query*"), steps=2, **SAVING)
    other.train()
    model, callback = made(bert), PrunerCallback(0.5, at_step=3)
    trainer(model, tmp_path, callback).train()
    callback.pruner.prune(0.7)
    masks = callback.pruner.masks
    again = trainer(model, tmp_path, callback)
    with pytest.raises(ValueError, match="cannot go on from"):
        again.train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-2"))
    again.train()
    assert same(callback.pruner.masks, masks), "and it is not pruned at its step again"
    assert zeros_hold(model, callback.pruner)


# ---- adapters --------------------------------------------------------------------------------------------------------


class Masking(transformers.TrainerCallback):  # type: ignore[misc]
    """Masks the adapters when the training begins: then there is a Pruner."""

    def __init__(self, callback):
        self.callback, self.masks = callback, None

    def on_train_begin(self, args, state, control, *, model, **kwargs):
        self.masks = self.masks or mask_adapters(model, self.callback.pruner)


def adapted(seed=0):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    return peft.get_peft_model(made(llama, seed=seed), peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))


def assert_merges(model, pruner):
    """What is pruned stays zero in a merge, and the outputs are the same."""
    words = torch.arange(1, 7)[None]
    masks = pruner.masks
    with torch.no_grad():
        before = model.eval()(input_ids=words).logits
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=words).logits, before, rtol=0, atol=1e-5)
    assert not any(merged.get_parameter(name)[~mask].any() for name, mask in masks.items())


def test_masked_adapters_go_by_the_pruner_of_the_next_training(tmp_path):
    model, callback = adapted(), PrunerCallback(0.3, at_step=2)
    masking = Masking(callback)
    trainer(model, tmp_path, callback, masking, steps=4).train()
    first = callback.pruner
    trainer(model, tmp_path, callback, masking, steps=4, optim="sgd").train()
    assert callback.pruner is not first
    report = callback.pruner.prune(0.6)
    assert any("are masked where these are pruned" in note for note in report.notes)
    assert_merges(model, callback.pruner)


def test_a_resumed_training_masks_adapters_as_it_did(tmp_path):
    found = []
    for folder in (None, str(tmp_path / "checkpoint-4")):
        callback = PrunerCallback(schedule=pw.Cubic(0.5, end=5))
        one = trainer(adapted(), tmp_path if folder is None else tmp_path / "b", callback, Masking(callback), **SAVING)
        one.train(resume_from_checkpoint=folder)
        found.append(copy.deepcopy((dict(one.model.state_dict()), callback.pruner.state_dict())))
    assert same(*found)
    assert_merges(one.model, callback.pruner)


def test_a_base_that_was_pruned_since_is_no_base_to_resume_with(tmp_path):
    callback = PrunerCallback(0.5, at_step=5)
    one = trainer(adapted(), tmp_path, callback, **SAVING)
    one.train()
    with pytest.raises(ValueError, match=r"'model.*further since '.*-2', .*frozen.* make the model anew"):
        one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert one.state.global_step == 2


def test_another_base_than_the_adapters_were_trained_on_is_told(tmp_path):
    trainer(adapted(), tmp_path, PrunerCallback(0.5, at_step=3), **SAVING).train()
    one = trainer(adapted(seed=1), tmp_path / "b", PrunerCallback(0.5, at_step=3))
    with pytest.warns(
        UserWarning, match=r"q_proj.* are not those that '.*checkpoint-4' was saved with: .* on the base"
    ):
        one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_the_best_adapters_come_with_the_base_as_it_is(tmp_path):
    scores = iter([5.0, 1.0, 1.0])
    callback = PrunerCallback(0.5, at_step=5)
    one = trainer(adapted(), tmp_path, callback, Masking(callback), **SAVING, **BEST)
    one.compute_metrics = lambda prediction: {"score": next(scores)}
    with pytest.warns(UserWarning, match=r"'model.*further since '.*-2', .*frozen.*: it stays"):
        one.train()
    assert callback.pruner.sparsity == 0.5
    assert_merges(one.model, callback.pruner)


def test_a_frozen_layer_that_is_in_the_checkpoint_comes_back(tmp_path):
    model, callback = made(bert), PrunerCallback(0.5, at_step=3)
    model.bert.requires_grad_(False)
    one = trainer(model, tmp_path, callback, **SAVING)
    one.train()
    wanted = copy.deepcopy(dict(model.state_dict()))
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(dict(model.state_dict()), wanted)
    assert share_of_zeros(model, callback.pruner) == pytest.approx(0.5, abs=1e-3)
