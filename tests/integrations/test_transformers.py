"""A Trainer with a PrunerCallback: tiny models of five kinds, trained for real."""

import copy
import json
import re
from shutil import which

import pytest
from torch import nn

import prunewald as pw
from prunewald.integrations import framework
from tests.resuming import same
from tests.training import hooks_on, zeros_hold

pytest.importorskip("transformers", reason="Transformers is not installed")

from prunewald.integrations import transformers as module
from prunewald.integrations.transformers import PrunerCallback
from tests.trainers import KINDS, LENGTH, WORDS, bert, llama, made, mixtral, share_of_zeros, trainer, transformers

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.* output rows have no weight left"),  # these have sixteen weights
]
# ---- five kinds of models --------------------------------------------------------------------------------------------


LEFT_OUT = {  # what looks like weights and is none, or is a router
    "bert": "bert.embeddings.word_embeddings.weight",
    "llama": "model.embed_tokens.weight",
    "vit": "vit.embeddings.position_embeddings",
    "t5": "shared.weight",
    "mixtral": "model.layers.0.mlp.gate.weight",
}


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_hold_in_counts_that_are_exact_and_the_report_tells_of_what(kind, tmp_path):
    model = made(KINDS[kind])
    before = copy.deepcopy(model.state_dict())
    callback = PrunerCallback(0.7, at_step=4)
    trainer(model, tmp_path, callback).train()
    report, pruner = callback.pruner.report, callback.pruner
    assert pruner.steps == 6
    assert report.weights - report.kept == round(0.7 * report.weights)
    pruned = sum(int((~mask).sum()) for mask in pruner.masks.values())
    assert pruned == report.weights - report.kept
    assert zeros_hold(model, pruner)
    assert share_of_zeros(model, pruner) == pytest.approx(0.7, abs=1e-3)
    assert f"{LEFT_OUT[kind]}" in str(report)
    for name, mask in pruner.masks.items():
        moved = model.get_parameter(name) != before[name]
        assert moved[mask].any(), f"what is left of {name} trains"


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_pruned_unless_it_is_tied_to_the_embedding(tied, tmp_path):
    model = made(llama, tie_word_embeddings=tied)
    callback = PrunerCallback(0.6, at_step=2)
    trainer(model, tmp_path, callback, steps=3).train()
    assert ("lm_head.weight" in callback.pruner.masks) is not tied
    assert "only the weights of layers are pruned: model.embed_tokens.weight; targets" in str(callback.pruner.report)
    model.save_pretrained(tmp_path / "saved")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert zeros_hold(again, callback.pruner)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tied
    assert same(dict(again.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_keeps_its_zeros(kind, tmp_path):
    model = made(KINDS[kind])
    callback = PrunerCallback(0.6, at_step=1)
    one = trainer(model, tmp_path, callback, steps=2)
    one.train()
    one.save_model(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    assert zeros_hold(again, callback.pruner)
    assert share_of_zeros(again, callback.pruner) == pytest.approx(0.6, abs=2e-3)


# ---- what a Trainer can do besides -----------------------------------------------------------------------------------

OPTIONS = {
    "accumulation": {"gradient_accumulation_steps": 3},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
    "clipping": {"max_grad_norm": 0.01},
    "sgd": {"optim": "sgd"},
    "adafactor": {"optim": "adafactor"},
    "weight decay": {"weight_decay": 0.1},
}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_zeros_hold_whatever_the_trainer_does(options, tmp_path):
    model = made(llama)
    callback = PrunerCallback(schedule="cubic")
    trainer(model, tmp_path, callback, **options).train()
    pruner = callback.pruner
    assert pruner.steps == 6, "a step of the optimizer, not of a part of its batch"
    assert pruner.sparsity == pytest.approx(0.9, abs=1e-3)
    assert share_of_zeros(model, pruner) == pytest.approx(0.9, abs=1e-3)
    assert [step for step, *_ in pruner.history] == list(range(1, 7))


class Plain(nn.Module):
    """A model of one's own, which a Trainer takes too."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(LENGTH, 64), nn.Linear(64, WORDS)
        self.config = transformers.PretrainedConfig()

    def forward(self, input_ids, labels):
        logits = self.outer(self.inner(input_ids / WORDS).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels[:, 0]), "logits": logits}


@pytest.mark.slow
def test_zeros_hold_in_a_model_that_is_compiled(tmp_path):
    if not (which("c++") or which("g++") or which("clang++")):
        pytest.skip("there is no C++ compiler")
    model = made(Plain)
    callback = PrunerCallback(0.7, at_step=1)
    one = trainer(model, tmp_path, callback, steps=3, torch_compile=True)
    one.train()
    assert type(one.model_wrapped).__name__ == "OptimizedModule"
    assert callback.pruner.steps == 3
    assert list(callback.pruner.masks) == ["inner.weight", "outer.weight"], "names are those of the plain model"
    assert zeros_hold(model, callback.pruner)
    assert share_of_zeros(model, callback.pruner) == pytest.approx(0.7, abs=2e-3)


# ---- one training after another --------------------------------------------------------------------------------------


def test_a_training_is_watched_pruned_after_it_and_gone_on_with(tmp_path):
    model, callback = made(llama), PrunerCallback()
    one = trainer(model, tmp_path, callback)
    with pytest.raises(RuntimeError, match="before a training with it begins"):
        callback.pruner  # noqa: B018
    one.train()
    pruner = callback.pruner
    assert pruner.sparsity == 0
    pruner.prune(0.8)
    one.train()
    assert callback.pruner is pruner
    assert pruner.steps == 12
    assert zeros_hold(model, pruner)
    assert share_of_zeros(model, pruner) == pytest.approx(0.8, abs=1e-3)


def test_another_trainer_of_the_same_model_holds_the_zeros_on(tmp_path):
    model, callback = made(llama), PrunerCallback(0.8, at_step=3)
    trainer(model, tmp_path, callback).train()
    pruner = callback.pruner
    again = trainer(model, tmp_path, callback, optim="sgd")
    again.train()
    assert callback.pruner is not pruner
    assert same(callback.pruner.masks, pruner.masks), "it is not pruned a second time"
    assert callback.pruner.steps == 6
    assert not pruner.zeros.attached
    assert zeros_hold(model, callback.pruner)


def test_a_model_that_came_with_zeros_is_warned_of_or_held(tmp_path):
    model = made(llama)
    pw.Pruner(model).prune(0.5)
    with pytest.warns(UserWarning, match=r"weights to prune are zero, and nothing holds them: PrunerCallback\(hold_z"):
        trainer(copy.deepcopy(model), tmp_path, PrunerCallback()).train()
    free, held = PrunerCallback(hold_zeros=False), PrunerCallback(hold_zeros=True)
    twin = copy.deepcopy(model)
    trainer(twin, tmp_path, free).train()
    assert share_of_zeros(twin, free.pruner) < 0.1
    twin = copy.deepcopy(model)
    trainer(twin, tmp_path, held).train()
    assert share_of_zeros(twin, held.pruner) == held.pruner.sparsity == pytest.approx(0.5, abs=1e-3)


def test_a_model_is_pruned_before_the_first_step(tmp_path):
    model, callback = made(llama), PrunerCallback(0.5, at_step=0)
    one = trainer(model, tmp_path, callback)
    one.train()
    assert [log["sparsity"] for log in one.state.log_history] == [pytest.approx(0.5, abs=1e-3)] * 4
    assert callback.pruner.steps == 6


def test_each_trial_of_a_search_has_a_pruner_of_its_own(tmp_path):
    callback = PrunerCallback(0.5, at_step=1)
    one = trainer(made(llama), tmp_path, callback, steps=2)
    one.model_init = lambda: made(llama)
    pruners = set()
    for rate in (1e-2, 1e-3):
        one.train(trial={"learning_rate": rate})
        pruners.add(callback.pruner)
        assert callback.pruner.steps == 2
        assert zeros_hold(one.model, callback.pruner)
    assert len(pruners) == 2


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_sparsity_is_logged_and_by_layer_where_it_changed(tmp_path, capsys):
    callback = PrunerCallback(0.7, at_step=3)
    one = trainer(made(llama), tmp_path, callback)
    one.train()
    first, second, third, summary = one.state.log_history
    shares = [log["sparsity"] for log in (first, second, third, summary)]
    assert shares == [0, callback.pruner.sparsity, callback.pruner.sparsity, callback.pruner.sparsity]
    by_layer = {row.name: row.sparsity for row in callback.pruner.report.rows}
    assert {name.removeprefix("sparsity/"): share for name, share in second.items() if "/" in name} == by_layer
    assert {name.removeprefix("sparsity/"): share for name, share in first.items() if "/" in name} == dict.fromkeys(
        by_layer, 0.0
    )
    assert not any("/" in name for name in third), "log_history is in every checkpoint, so nothing is said twice"
    shown = capsys.readouterr().out
    assert str(callback.pruner.report) in shown
    assert shown.count(f"'sparsity': '{shares[1]:.4g}'") == 3, "the Trainer prints it"
    json.dumps(one.state.log_history)
    assert one.evaluate()["sparsity"] == callback.pruner.sparsity


def test_experts_are_logged_as_one_layer(tmp_path):
    one = trainer(made(mixtral), tmp_path, PrunerCallback(0.5, at_step=1), steps=2)
    one.train()
    logged = {name for name in one.state.log_history[0] if name.startswith("sparsity/model.layers.0.mlp")}
    assert logged == {f"sparsity/model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")}


@pytest.mark.parametrize("choices", [{"schedule": "cubic", "total_steps": 8}, {"schedule": pw.Cubic(end=8, every=2)}])
def test_a_schedule_that_did_not_come_to_its_end_is_said(choices, tmp_path):
    callback = PrunerCallback(**choices)
    with pytest.warns(UserWarning, match=r"ended with step 6, before Cubic\(final=0.9, begin=0, end=8, .* are pruned"):
        trainer(made(llama), tmp_path, callback).train()


class Stop(transformers.TrainerCallback):  # type: ignore[misc]
    """Stops early."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2


def test_a_pruning_that_did_not_come_is_said(tmp_path):
    with pytest.warns(UserWarning, match="ended with step 2, before at_step=4: nothing was pruned"):
        trainer(made(llama), tmp_path, PrunerCallback(0.5, at_step=4), Stop()).train()


def test_it_is_a_trainer_callback_with_a_name_that_tells(tmp_path):
    callback = PrunerCallback(0.7, at_step=0, ignore="lm_head", pattern="element")
    assert isinstance(callback, PrunerCallback)
    assert isinstance(callback, transformers.TrainerCallback)
    assert repr(callback) == "PrunerCallback(0.7, at_step=0, ignore='lm_head')"
    trainer(made(llama), tmp_path, callback, steps=1).train()
    assert re.fullmatch(
        r"PrunerCallback\(0.7, .*\) with Pruner\(LlamaForCausalLM, .* 7\d\.\d\d% pruned\)", repr(callback)
    )


# ---- what is refused, before any training ----------------------------------------------------------------------------


def test_another_version_is_refused_when_it_is_imported(monkeypatch):
    monkeypatch.setattr(framework, "version", lambda name: "4.57.1")
    monkeypatch.setattr(module, "_derived", module._derived.__wrapped__)
    with pytest.raises(ImportError, match=r"transformers 4\.57\.1 is installed, .* transformers>=5\.0,<6"):
        module.PrunerCallback  # noqa: B018
    with pytest.raises(AttributeError, match="'PrunerCalback': PrunerCallback is there"):
        module.PrunerCalback  # noqa: B018


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0.9, {}), r"sparsity=0\.9: say when, as at_step=100"),
        ((None, {"at_step": 3}), "prune\\(\\) was given nothing"),
        ((1.5, {"at_step": 3}), r"sparsity=1\.5"),
        ((0.9, {"at_step": -1}), "at_step=-1"),
        ((0.9, {"at_step": 3, "schedule": "cubic"}), "at_step=3 and schedule=Cubic"),
        ((0.9, {"at_step": 1, "uncertainty": "pseudo-bootstrap"}), r"at_step=1: PseudoBootstrap.* before step 2"),
        ((None, {"criterion": "size"}), "unknown criterion 'size'"),
        ((None, {"total_steps": 8}), "total_steps=8 is for a schedule"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_there_is_a_trainer(given, said):
    sparsity, choices = given
    with pytest.raises(ValueError, match=said):
        PrunerCallback(sparsity, **choices)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0.9, {"at_step": 7}), "at_step=7: the training has 6 steps"),
        (({"nowhere": 0.5}, {"at_step": 3}), "'nowhere'"),
        ((None, {"targets": "nowhere"}), "'nowhere' matches no parameter"),
    ],
)
def test_what_does_not_fit_the_training_is_refused_before_its_first_step(given, said, tmp_path):
    sparsity, choices = given
    model = made(llama)
    one = trainer(model, tmp_path, PrunerCallback(sparsity, **choices))
    with pytest.raises(ValueError, match=said):
        one.train()
    assert one.state.global_step == 0
    assert hooks_on(model, one.optimizer.optimizer) == 0


def test_a_callback_that_is_given_twice_is_refused(tmp_path):
    callback = PrunerCallback()
    for others in ([callback], [PrunerCallback(0.5, at_step=2)]):
        with pytest.raises(ValueError, match="has a PrunerCallback twice"):
            trainer(made(llama), tmp_path, callback, *others)
    one = trainer(made(llama), tmp_path, callback)
    one.add_callback(PrunerCallback(0.5, at_step=2))
    with pytest.raises(ValueError, match="has a PrunerCallback twice"):
        one.train()
    assert one.state.global_step == 0


def test_a_callback_whose_pruner_is_of_another_model_is_refused(tmp_path):
    callback = PrunerCallback()
    trainer(made(llama), tmp_path, callback, steps=1).train()
    with pytest.raises(ValueError, match=r"of another LlamaForCausalLM than the BertForSequence.*detach\(\) first"):
        trainer(made(bert), tmp_path, callback)
    callback.pruner.detach()
    trainer(made(bert), tmp_path, callback, steps=1).train()
    assert callback.pruner.steps == 1


def test_sharded_training_is_refused():
    class Sharded:
        fsdp, deepspeed = True, None

    with pytest.raises(ValueError, match="fsdp=True shards the weights"):
        PrunerCallback().on_init_end(Sharded, transformers.TrainerState(), None, model=made(llama))
