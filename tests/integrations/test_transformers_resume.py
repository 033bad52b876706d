"""A training that is taken up from a checkpoint, by fresh objects: bit for bit, or an error that says what to do."""

import copy
import shutil
from functools import cache
from io import BytesIO

import pytest
import torch

import prunewald as pw
from tests.resuming import same
from tests.training import zeros_hold

pytest.importorskip("transformers", reason="Transformers is not installed")

from prunewald.integrations.transformers import PrunerCallback
from tests.trainers import KINDS, bert, llama, made, share_of_zeros, trainer, transformers

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.* output rows have no weight left"),  # these have sixteen weights
]
SAVING = {"save_strategy": "steps", "save_steps": 2}
RECIPES = {
    "once": ({"sparsity": 0.7, "at_step": 3}, {}),
    "by-layer": ({"sparsity": {"*query*": 0.8, "*key*": 0.3}, "at_step": 3}, {}),
    "cubic": ({"schedule": "cubic"}, {}),
    "window": ({"schedule": pw.Cubic(0.8, begin=3, every=2), "uncertainty": pw.PseudoBootstrap(last=3)}, {}),
    "own-average": ({"schedule": "cubic", "uncertainty": "second-moment"}, {"optim": "sgd"}),
    "movement": ({"schedule": "cubic", "criterion": "movement"}, {"gradient_accumulation_steps": 2}),
    "n-of-m": ({"pattern": "n-of-m", "at_step": 3}, {}),
}


def everything(one, callback):
    """What has to be the same to the last bit."""
    found = {
        "weights": dict(one.model.state_dict()),
        "optimizer": one.optimizer.state_dict(),
        "pruner": callback.pruner.state_dict(),
        "losses": [log["loss"] for log in one.state.log_history if "loss" in log],
        "shares": [log["sparsity"] for log in one.state.log_history],
        "history": callback.pruner.history,
    }
    return copy.deepcopy(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a training by a recipe comes to that is not stopped, and where its checkpoints are; each is made once."""

    @cache
    def train(recipe):
        folder = tmp_path_factory.mktemp(recipe)
        callback = PrunerCallback(**RECIPES[recipe][0])
        one = trainer(made(bert), folder, callback, **SAVING, **RECIPES[recipe][1])
        one.train()
        return folder, everything(one, callback)

    return train


@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_training_is_the_same_to_the_last_bit(recipe, at, whole, tmp_path):
    folder, wanted = whole(recipe)
    callback = PrunerCallback(**RECIPES[recipe][0])
    resumed = trainer(made(bert, seed=1), tmp_path, callback, **RECIPES[recipe][1])
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    assert callback.pruner.holding
    found = everything(resumed, callback)
    assert {key for key in wanted if not same(found[key], wanted[key])} == set()


OPTIONS = {
    "llama": {"bf16": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True},
    "bert": {"optim": "adamw_torch_fused", "label_smoothing_factor": 0.1},
    "t5": {"bf16": True, "max_grad_norm": 0.01},
}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", OPTIONS)
def test_other_models_with_other_options_resume_bit_for_bit_too(kind, tmp_path):
    found = []
    for seed, folder in enumerate((None, tmp_path / "checkpoint-4")):
        callback = PrunerCallback(schedule=pw.Cubic(0.8, begin=1, every=2))
        where = tmp_path if folder is None else tmp_path / "again"
        one = trainer(made(KINDS[kind], seed=seed), where, callback, **SAVING, **OPTIONS[kind])
        one.train(resume_from_checkpoint=folder)
        found.append(everything(one, callback))
    assert {key for key in found[0] if not same(found[0][key], found[1][key])} == set()


def test_the_last_checkpoint_of_the_folder_is_found_by_itself(tmp_path):
    trainer(made(bert), tmp_path, PrunerCallback(0.7, at_step=3), **SAVING).train()
    shutil.rmtree(tmp_path / "checkpoint-6")
    again = PrunerCallback(0.7, at_step=3)
    resumed = trainer(made(bert, seed=1), tmp_path, again, **SAVING)
    resumed.train(resume_from_checkpoint=True)
    assert again.pruner.steps == 6
    assert zeros_hold(resumed.model, again.pruner)
    assert again.pruner.sparsity == pytest.approx(0.7, abs=1e-3)


def test_the_same_trainer_goes_back_to_a_checkpoint(tmp_path):
    callback = PrunerCallback(schedule="cubic")
    one = trainer(made(bert), tmp_path, callback, **SAVING)
    one.train()
    wanted = everything(one, callback)
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same(everything(one, callback), wanted)


def test_the_state_is_written_before_a_checkpoint_is_uploaded(tmp_path):
    callback = PrunerCallback(0.7, at_step=1)
    one = trainer(made(bert), tmp_path, callback, steps=2, **SAVING)
    one.train()
    path = tmp_path / "checkpoint-2" / "pruner.pt"
    written = path.read_bytes()
    path.unlink()
    for saving in (False, True):  # the Trainer uploads within a save, and when a user asks for it
        one.control.should_save = saving
        one.callback_handler.on_push_begin(one.args, one.state, one.control)
        assert path.exists() is saving
    assert same(*(torch.load(io, weights_only=True) for io in (BytesIO(written), path)))


def test_a_checkpoint_that_is_elsewhere_is_said_to_lack_the_pruner(tmp_path):
    callback = PrunerCallback()
    one = trainer(made(bert), tmp_path, callback, steps=1)
    one.train()
    with pytest.warns(UserWarning, match="no folder '.*checkpoint-1', so the Pruner is in no checkpoint of step 1"):
        one.callback_handler.on_save(one.args, one.state, one.control)


def unknown(tmp_path, sparsity=0.7):
    """The checkpoint of a pruned model, without the state of its Pruner."""
    trainer(made(bert), tmp_path, PrunerCallback(sparsity, at_step=3), steps=4, **SAVING).train()
    (tmp_path / "checkpoint-4" / "pruner.pt").unlink()
    return str(tmp_path / "checkpoint-4")


def test_zeros_without_the_state_of_a_pruner_are_an_error_before_any_step(tmp_path):
    folder = unknown(tmp_path)
    callback = PrunerCallback(schedule=pw.Cubic(0.9))
    one = trainer(made(bert, seed=1), tmp_path, callback)
    with pytest.raises(ValueError, match=r"checkpoint-4', which has no pruner\.pt .* PrunerCallback\(hold_zeros=True"):
        one.train(resume_from_checkpoint=folder)
    assert one.state.global_step == 4
    assert not one.optimizer.optimizer._optimizer_step_post_hooks, "nothing is attached"
    assert share_of_zeros(one.model, pw.Pruner(one.model)) == pytest.approx(0.7, abs=1e-3), "the model is as it was"


def test_zeros_without_the_state_of_a_pruner_are_held_where_that_was_asked(tmp_path):
    folder = unknown(tmp_path)
    callback = PrunerCallback(hold_zeros=True)
    with pytest.warns(UserWarning, match=r"has no pruner\.pt: its Pruner begins anew, .* from step 4 on"):
        trainer(made(bert, seed=1), tmp_path, callback).train(resume_from_checkpoint=folder)
    assert callback.pruner.steps == 2
    assert callback.pruner.sparsity == pytest.approx(0.7, abs=1e-3)


def test_zeros_train_where_that_was_asked(tmp_path):
    folder = unknown(tmp_path)
    callback = PrunerCallback(hold_zeros=False)
    one = trainer(made(bert, seed=1), tmp_path, callback)
    with pytest.warns(UserWarning, match=r"has no pruner\.pt"):
        one.train(resume_from_checkpoint=folder)
    assert share_of_zeros(one.model, callback.pruner) < 0.1


def test_a_dense_checkpoint_of_before_gets_a_schedule_that_ends_with_the_training(tmp_path):
    trainer(made(bert), tmp_path, steps=4, **SAVING).train()
    callback = PrunerCallback(schedule="cubic")
    one = trainer(made(bert), tmp_path, callback)
    with pytest.warns(UserWarning, match=r"has no pruner\.pt: its Pruner begins anew"):
        one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert [step for step, *_ in callback.pruner.history] == [1, 2]
    assert callback.pruner.sparsity == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"targets": "*query*"}, "key.weight' is no parameter here"),
        ({"ignore": "bert.pooler", "targets": ["*attention*", "classifier"]}, "'classifier.weight' has no mask|is no"),
        ({"uncertainty": pw.PseudoBootstrap(last=3)}, "same uncertainty"),
    ],
)
def test_a_checkpoint_of_other_targets_is_an_error_before_any_step(choices, said, tmp_path):
    trainer(made(bert), tmp_path, PrunerCallback(0.7, at_step=3), steps=4, **SAVING).train()
    one = trainer(made(bert, seed=1), tmp_path, PrunerCallback(0.7, at_step=3, **choices))
    folder = str(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=f"cannot go on from '{folder}': .*({said})"):
        one.train(resume_from_checkpoint=folder)
    assert one.state.global_step == 4
    assert not one.optimizer.optimizer._optimizer_step_post_hooks


def test_a_file_that_is_broken_is_an_error_that_names_it(tmp_path):
    folder = unknown(tmp_path)
    (tmp_path / "checkpoint-4" / "pruner.pt").write_bytes(b"no state")
    with pytest.raises(ValueError, match=r"pruner\.pt' is no state of a Pruner .*hold_zeros=True"):
        trainer(made(bert, seed=1), tmp_path, PrunerCallback()).train(resume_from_checkpoint=folder)


def test_a_pruning_whose_step_is_over_is_an_error(tmp_path):
    trainer(made(bert), tmp_path, PrunerCallback(), steps=4, **SAVING).train()
    with pytest.raises(ValueError, match="at_step=2: the training goes on from step 4"):
        trainer(made(bert), tmp_path, PrunerCallback(0.5, at_step=2)).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-4")
        )


# ---- experts and ViT, whose weights have other names in files: the Trainer does not load them ------------------------


OTHERWISE = {"mixtral": "experts", "vit": "q_proj"}


@pytest.mark.parametrize("kind", OTHERWISE)
def test_weights_that_the_trainer_did_not_load_are_an_error_where_they_were_pruned(kind, tmp_path):
    trainer(made(KINDS[kind]), tmp_path, PrunerCallback(0.7, at_step=3), steps=4, **SAVING).train()
    folder, said = str(tmp_path / "checkpoint-4"), rf"{OTHERWISE[kind]}.* the Trainer did not load .*from_pretrained"
    one = trainer(made(KINDS[kind], seed=1), tmp_path, PrunerCallback(0.7, at_step=3))
    with pytest.raises(ValueError, match=rf"{said}\('{folder}'\)"):
        one.train(resume_from_checkpoint=folder)


@pytest.mark.parametrize("kind", OTHERWISE)
def test_weights_that_the_trainer_did_not_load_are_warned_of_where_they_were_not(kind, tmp_path):
    trainer(made(KINDS[kind]), tmp_path, PrunerCallback(0.7, at_step=3), steps=4, **SAVING).train()
    folder, said = str(tmp_path / "checkpoint-2"), rf"{OTHERWISE[kind]}.* are not those that .*from_pretrained"
    one = trainer(made(KINDS[kind], seed=1), tmp_path, PrunerCallback(0.7, at_step=3))
    with pytest.warns(UserWarning, match=rf"{said}\('{folder}'\)"):
        one.train(resume_from_checkpoint=folder)


@pytest.mark.parametrize("kind", OTHERWISE)
def test_they_resume_from_a_model_that_was_loaded_before(kind, tmp_path):
    callback, again = PrunerCallback(schedule="cubic"), PrunerCallback(schedule="cubic")
    whole = trainer(made(KINDS[kind]), tmp_path, callback, **SAVING)
    whole.train()
    folder = str(tmp_path / "checkpoint-4")
    resumed = trainer(type(whole.model).from_pretrained(folder), tmp_path / "b", again)
    resumed.train(resume_from_checkpoint=folder)
    assert same(everything(resumed, again), everything(whole, callback))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_frozen_base_that_is_in_no_checkpoint_is_pruned_as_it_was(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")

    def adapted():
        return peft.get_peft_model(made(llama), peft.LoraConfig(r=2, target_modules=["q_proj"]))

    callback, again = PrunerCallback(0.5, at_step=3), PrunerCallback(0.5, at_step=3)
    whole = trainer(adapted(), tmp_path, callback, **SAVING)
    whole.train()
    resumed = trainer(adapted(), tmp_path / "b", again)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.pruner.sparsity == 0.5
    assert same(everything(resumed, again), everything(whole, callback))


# ---- the best model --------------------------------------------------------------------------------------------------


def best_at(step):
    """Scores by which the model of one step is the best."""
    seen = iter(range(2, 100, 2))
    return lambda prediction: {"score": float(next(seen) == step)}


def test_a_best_model_of_which_the_pruner_is_no_more_is_said(tmp_path):
    callback = PrunerCallback(schedule="cubic")
    choices = {"load_best_model_at_end": True, "metric_for_best_model": "score", "eval_strategy": "steps"}
    other = trainer(made(bert), tmp_path / "other", PrunerCallback(targets="*query*"), steps=2, **SAVING)
    other.train()

    class Swap(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 2:
                shutil.copy(tmp_path / "other" / "checkpoint-2" / "pruner.pt", tmp_path / "checkpoint-2")

    one = trainer(made(bert), tmp_path, callback, Swap(), eval_steps=2, **SAVING, **choices)
    one.compute_metrics = best_at(2)
    with pytest.warns(UserWarning, match="cannot go on from '.*checkpoint-2'"):
        one.train()
    with pytest.warns(UserWarning, match="the state_dict that was loaded has weights where"):
        one.evaluate()
    assert zeros_hold(one.model, callback.pruner)


@pytest.mark.parametrize("step", [2, 4, 6])
def test_the_masks_of_the_best_model_are_held_with_its_weights(step, tmp_path, recwarn):
    callback = PrunerCallback(schedule="cubic")
    choices = {"load_best_model_at_end": True, "metric_for_best_model": "score", "eval_strategy": "steps"}
    one = trainer(made(llama), tmp_path, callback, eval_steps=2, **SAVING, **choices)
    one.compute_metrics = best_at(step)
    one.train()
    saved = torch.load(tmp_path / f"checkpoint-{step}" / "pruner.pt", weights_only=True)
    best = type(one.model).from_pretrained(tmp_path / f"checkpoint-{step}")
    assert same(dict(one.model.state_dict()), dict(best.state_dict()))
    assert callback.pruner.steps == saved["steps"] == step
    assert share_of_zeros(one.model, callback.pruner) == pytest.approx(callback.pruner.sparsity)
    said = [str(one.message) for one in recwarn if "load_best_model_at_end" in str(one.message)]
    assert len(said) == (step != 6)
    assert all("and not 9" in one for one in said)
    one.evaluate()
    assert same(dict(one.model.state_dict()), dict(best.state_dict()))
