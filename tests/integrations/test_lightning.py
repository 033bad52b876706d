"""Lightning's Trainer prunes, logs, resumes, and refuses what cannot be right, before it trains."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prunewald as pw
from tests.resuming import same
from tests.training import assert_zeros, zeros_hold

pytest.importorskip("lightning", reason="Lightning is not installed: pip install 'prunewald[lightning]'")

import lightning
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger

from prunewald.integrations import framework
from prunewald.integrations import lightning as own
from prunewald.integrations.lightning import PrunerCallback

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.* output rows have no weight left"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
EPOCH = 5  # batches


class Net(lightning.LightningModule):
    """Two matrices, trained as everybody does."""

    def __init__(self, lr=0.02):
        super().__init__()
        torch.manual_seed(0)
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", (self.net(x) - y).square().mean())

    test_step = validation_step

    def predict_step(self, batch):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=0.01)


class Manual(Net):
    """The same steps by hand, clipped."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.net(x) - y).square().mean())
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()


class Gan(lightning.LightningModule):
    """Two players, each with an optimizer; the critic takes two steps for one."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        noise, real = batch
        generator, critic = self.optimizers()
        for _ in range(2):
            self.toggle_optimizer(critic)
            loss = self.critic(self.generator(noise)).mean() - self.critic(real).mean()
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            self.untoggle_optimizer(critic)
        self.toggle_optimizer(generator)
        loss = -self.critic(self.generator(noise)).mean()
        generator.zero_grad()
        self.manual_backward(loss)
        generator.step()
        self.untoggle_optimizer(generator)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.critic)]


def loader(size=16):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(EPOCH * 16, 6, generator=generator)
    return DataLoader(TensorDataset(x, torch.tanh(x[:, :4] - 0.5 * x[:, 2:])), batch_size=size)


def trainer(*callbacks, epochs=4, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    if not any(isinstance(one, ModelCheckpoint) for one in callbacks):
        quiet["enable_checkpointing"] = False
    return lightning.Trainer(max_epochs=epochs, callbacks=list(callbacks), **{"logger": False, **quiet, **options})


def fit(callback, *others, model=None, validate=False, ckpt_path=None, **options):
    model = Net() if model is None else model
    made = trainer(callback, *others, **options)
    made.fit(model, loader(), loader() if validate else None, ckpt_path=ckpt_path)
    return made


def each_epoch(folder):
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)


def sparsity(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


# ---- the class -----------------------------------------------------------------------------------------------------


def test_it_is_a_callback_that_says_what_it_was_given():
    callback = PrunerCallback(0.9, at_epoch=2, criterion="magnitude")
    assert isinstance(callback, Callback)
    assert isinstance(callback, PrunerCallback)
    assert repr(callback) == "PrunerCallback(sparsity=0.9, at_epoch=2, criterion='magnitude')"
    assert repr(PrunerCallback(masks={"a": torch.ones(2) > 0})) == "PrunerCallback(masks=<a>)"
    with pytest.raises(RuntimeError, match="has no Pruner yet.*fit"):
        _ = callback.pruner


def test_another_version_is_an_error_where_the_callback_is_imported(monkeypatch):
    monkeypatch.delitem(vars(own), "PrunerCallback")
    monkeypatch.setattr(framework, "version", lambda name: "2.5.1")
    with pytest.raises(ImportError, match=r"lightning 2\.5\.1 is installed.*lightning>=2\.6"):
        from prunewald.integrations.lightning import PrunerCallback as _  # noqa: F401


def test_a_copy_goes_on_in_a_fit_of_its_own():
    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    fit(callback, model=model, epochs=2)
    for copied in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert "pruner=" not in repr(copied)
        other = copy.deepcopy(model)
        fit(copied, model=other, epochs=2)
        assert same(copied.pruner.masks, callback.pruner.masks)
        assert zeros_hold(other, copied.pruner)


def test_the_trainer_of_pytorch_lightning_takes_it(monkeypatch):
    pl = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    monkeypatch.delitem(vars(own), "PrunerCallback")
    callback = own.PrunerCallback(0.5, at_epoch=1)
    assert isinstance(callback, pl.Callback)
    assert isinstance(callback, Callback)

    class Other(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net().net

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    made = pl.Trainer(max_epochs=2, callbacks=callback, enable_model_summary=False, **options)
    made.fit(Other(), loader())
    assert made.callback_metrics["sparsity"] == 0.5


# ---- training ------------------------------------------------------------------------------------------------------


class Watch(Callback):
    """The sparsity before and after each batch, and the Pruner's steps."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(sparsity(pl_module))


@pytest.mark.parametrize(
    ("model", "options", "steps"),
    [
        (Net, {}, 20),
        (Net, {"gradient_clip_val": 0.1}, 20),
        (Net, {"accumulate_grad_batches": 2}, 12),
        (Net, {"precision": "bf16-mixed"}, 20),
        (Net, {"precision": "bf16-true"}, 20),
        (Manual, {}, 20),
    ],
    ids=["plain", "clipped", "accumulated", "bf16-mixed", "bf16-true", "by hand"],
)
def test_it_prunes_at_its_epoch_and_the_zeros_hold(model, options, steps, capsys):
    callback, watch, net = PrunerCallback(0.8, at_epoch=2), Watch(), model()
    fit(callback, watch, model=net, **options)
    assert watch.seen == [0.0] * 2 * EPOCH + [pytest.approx(0.8)] * 2 * EPOCH
    assert callback.pruner.steps == steps
    assert_zeros(net, callback.pruner.masks)
    assert str(callback.pruner.report) in capsys.readouterr().out


def test_training_goes_as_in_a_loop_of_ones_own():
    callback, model = PrunerCallback(0.8, at_epoch=1, uncertainty=pw.PseudoBootstrap(last=4)), Net()
    fit(callback, model=model, epochs=3)
    own = Net()
    optimizer = own.configure_optimizers()
    pruner = pw.Pruner(own, optimizer, uncertainty=pw.PseudoBootstrap(last=4))
    for epoch in range(3):
        if epoch == 1:
            pruner.prune(0.8)
        for x, y in loader():
            optimizer.zero_grad()
            (own.net(x) - y).square().mean().backward()
            optimizer.step()
    assert same(model.state_dict(), own.state_dict())
    assert same(callback.pruner.sigma(), pruner.sigma())


def test_of_several_optimizers_those_of_the_part_are_watched():
    callback, model = PrunerCallback(0.6, at_epoch=1, module="generator"), Gan()
    fit(callback, model=model, epochs=3)
    assert set(callback.pruner.masks) == {"0.weight", "2.weight"}
    assert callback.pruner.steps == 3 * EPOCH
    assert_zeros(model.generator, callback.pruner.masks)
    assert sparsity(model.critic) == 0.0
    whole, model = PrunerCallback(0.6, at_epoch=1, module=lambda gan: gan), Gan()
    fit(whole, model=model, epochs=3)
    assert whole.pruner.steps == 3 * 2 * EPOCH, "of the last, the critic's"
    assert_zeros(model, whole.pruner.masks)


def test_two_parts_of_a_model_have_a_callback_each(tmp_path):
    parts = [PrunerCallback(share, at_epoch=1, module=name) for name, share in (("generator", 0.6), ("critic", 0.3))]
    made = fit(parts[0], parts[1], each_epoch(tmp_path), model=Gan(), epochs=2)
    assert made.callback_metrics["sparsity/generator"] == pytest.approx(0.6, abs=0.01)
    assert made.callback_metrics["sparsity/critic"] == pytest.approx(0.3, abs=0.02)
    assert "sparsity/critic.0.weight" in made.callback_metrics
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["callbacks"]
    assert {"PrunerCallback('generator')", "PrunerCallback('critic')"} <= saved.keys()


def test_early_stopping_needs_no_length():
    callback = PrunerCallback(uncertainty=pw.PseudoBootstrap(last=8))
    stop = EarlyStopping("val", mode="max", patience=2)  # it falls, so this is not to last
    made = fit(callback, stop, validate=True, epochs=1000)
    assert 1 < made.current_epoch < 10
    report = callback.pruner.prune(0.7)
    assert "PseudoBootstrap(last=8)" in report.uncertainty
    assert all(row.correlation < 1 for row in report.rows), "sigma has a say"


@pytest.mark.filterwarnings("ignore:SWA is currently only supported every epoch")
def test_the_zeros_hold_in_stochastic_weight_averages():
    callback, swa, model = PrunerCallback(0.7, at_epoch=3), StochasticWeightAveraging(0.01, swa_epoch_start=1), Net()
    made = trainer(callback, swa, epochs=5)
    made.fit(model, loader())
    assert_zeros(model, callback.pruner.masks)
    assert_zeros(swa._average_model, callback.pruner.masks)
    assert same(model.state_dict(), swa._average_model.state_dict()), "the average is what the fit ends with"


@pytest.mark.parametrize("module", [None, "net"])
def test_the_zeros_hold_in_moving_averages_too(module):
    callback, average, model = PrunerCallback(0.7, at_epoch=1, module=module), EMAWeightAveraging(decay=0.9), Net()
    fit(callback, average, model=model, epochs=3, validate=True)
    assert_zeros(model if module is None else model.net, callback.pruner.masks)


def test_a_schedule_ends_with_the_training(capsys):
    callback = PrunerCallback(schedule="cubic")
    fit(callback, accumulate_grad_batches=2)
    assert callback.pruner.schedule == pw.Cubic(end=12, every=1)
    assert callback.pruner.sparsity == pytest.approx(0.9)
    assert not callback.pruner.at_work
    assert "the schedule ends with the training, at step 12" in capsys.readouterr().out


def test_a_schedule_ends_where_it_was_told():
    callback = PrunerCallback(schedule=pw.Cubic(0.5, end=8, every=2), total_steps=20)
    fit(callback)
    assert [step for step, *_ in callback.pruner.history] == [2, 4, 6, 8]
    assert PrunerCallback(schedule="cubic", total_steps=7)._choices["total_steps"] == 7


def test_where_the_length_is_not_known_a_schedule_says_what_it_assumes(caplog):
    class Stop(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step >= 7

    with pytest.warns(UserWarning, match="training ended, and Cubic.* stands at 0.00%, step 7"):
        fit(PrunerCallback(schedule="cubic"), Stop(), epochs=-1)
    assert "ends at step 10,000, since nobody told where" in caplog.text


def test_what_the_training_ended_before_is_said():
    stop = EarlyStopping("val", mode="max", patience=1)
    with pytest.warns(UserWarning, match=r"ended before at_epoch=50.*callback\.pruner\.prune"):
        fit(PrunerCallback(0.9, at_epoch=50), stop, validate=True, epochs=100)
    with pytest.warns(UserWarning, match="the training ended, and Cubic.*next fit"):
        fit(PrunerCallback(schedule=pw.Cubic(0.9, end=40, every=10)))


def test_validate_test_and_predict_need_nothing(tmp_path):
    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    made = fit(callback, each_epoch(tmp_path), model=model, epochs=2)
    after = copy.deepcopy(model.state_dict())
    for run in (made.validate, made.test, made.predict):
        run(model, loader(), verbose=False) if run != made.predict else run(model, loader())
    assert same(model.state_dict(), after)
    assert zeros_hold(model, callback.pruner)
    fresh = trainer(PrunerCallback(0.8, at_epoch=1))
    fresh.validate(Net(), loader(), verbose=False)
    fresh.predict(Net(), loader(), ckpt_path=tmp_path / "epoch=1.ckpt")


def test_a_checkpoint_from_before_the_pruning_is_tested_whole(tmp_path):
    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    made = fit(callback, each_epoch(tmp_path), model=model, epochs=2)
    made.test(model, loader(), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert sparsity(model) == callback.pruner.sparsity == 0.0
    made.test(model, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert sparsity(model) == callback.pruner.sparsity == pytest.approx(0.8)


def test_a_learning_rate_is_found_first(tmp_path):
    callback, model = PrunerCallback(0.5, at_epoch=1), Net()
    finder = LearningRateFinder(num_training_steps=5, max_lr=0.1)
    fit(callback, finder, model=model, epochs=2, default_root_dir=tmp_path)
    assert callback.pruner.steps == 2 * EPOCH
    assert_zeros(model, callback.pruner.masks)


# ---- one fit after another -----------------------------------------------------------------------------------------


def test_a_second_fit_keeps_zeros_and_goes_on():
    callback, model = PrunerCallback(), Net()
    made = fit(callback, model=model, epochs=2)
    report = callback.pruner.prune(0.8)
    masks, weights = callback.pruner.masks, model.net[0].weight.clone()
    made.fit_loop.max_epochs = 4
    made.fit(model, loader())
    assert same(callback.pruner.masks, masks)
    assert_zeros(model, masks)
    assert not torch.equal(model.net[0].weight, weights)
    assert callback.pruner.steps == 4 * EPOCH
    assert callback.pruner.report == report
    trainer(callback, epochs=2).fit(model, loader())
    assert_zeros(model, masks)
    callback.pruner.prune(0.9)
    assert sparsity(model) == pytest.approx(0.9)


def test_a_second_fit_does_not_prune_again():
    callback, model = PrunerCallback(0.5, at_epoch=1), Net()
    fit(callback, model=model, epochs=2)
    report = callback.pruner.report
    fit(callback, model=model, epochs=2)
    assert callback.pruner.report is report


# ---- resume --------------------------------------------------------------------------------------------------------

RECIPES = {
    "by default": {},
    "window": {"uncertainty": pw.PseudoBootstrap(last=8)},
    "platon": {"criterion": "platon"},
}
WHEN = {
    "before": {"sparsity": 0.8, "at_epoch": 1},
    "just then": {"sparsity": 0.8, "at_epoch": 2},
    "after": {"sparsity": 0.8, "at_epoch": 3},
    "schedule": {"schedule": pw.Cubic(0.8, begin=4, every=3)},
}


@pytest.mark.parametrize(
    ("recipe", "when"),
    [("by default", "before"), ("by default", "after"), ("window", "just then"), ("platon", "schedule")],
)
def test_a_resumed_training_is_the_same_bit_for_bit(recipe, when, tmp_path):
    whole, model = PrunerCallback(**RECIPES[recipe], **WHEN[when]), Net()
    fit(whole, each_epoch(tmp_path), model=model)
    resumed, again = PrunerCallback(**RECIPES[recipe], **WHEN[when]), Net(lr=0.02)
    nn.init.normal_(again.net[0].weight)
    fit(resumed, model=again, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert same(again.state_dict(), model.state_dict())
    assert same(resumed.pruner.state_dict(), whole.pruner.state_dict())
    assert resumed.pruner.sparsity == pytest.approx(0.8)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_training_that_stopped_within_an_epoch_goes_on_there(tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=7, save_top_k=-1)
    fit(PrunerCallback(schedule=pw.Stairs((0.5,), begin=6)), saving, epochs=3)
    callback, model = PrunerCallback(schedule=pw.Stairs((0.5,), begin=6)), Net()
    fit(callback, model=model, epochs=3, ckpt_path=tmp_path / "step=7.ckpt")
    assert callback.pruner.history == [(6, 0.5, 0.5)]
    assert_zeros(model, callback.pruner.masks)
    late = PrunerCallback(0.8, at_epoch=1, hold_zeros=True)
    fit(late, epochs=3, ckpt_path=tmp_path / "step=7.ckpt")
    assert late.pruner.report.sparsity == pytest.approx(0.8), "in the middle of its epoch, the first chance it had"


def test_a_checkpoint_is_safe_to_load_and_small(tmp_path):
    callback = PrunerCallback(0.8, at_epoch=1)
    fit(callback, each_epoch(tmp_path), epochs=2)
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    assert same(saved["callbacks"]["PrunerCallback"]["pruner"], callback.pruner.state_dict())
    assert set(saved["state_dict"]) == set(Net().state_dict())


def test_averaging_is_resumed_with_its_zeros(tmp_path):
    for path in (None, tmp_path / "epoch=2.ckpt"):
        callback, average, model = PrunerCallback(0.7, at_epoch=1), EMAWeightAveraging(decay=0.9), Net()
        fit(callback, average, each_epoch(tmp_path), model=model, ckpt_path=path)
        assert_zeros(model, callback.pruner.masks)
        assert_zeros(average._average_model.module, callback.pruner.masks)


# ---- logs ----------------------------------------------------------------------------------------------------------


def test_the_logger_has_the_sparsity_by_layer_and_the_bar_the_total(tmp_path):
    callback, model = PrunerCallback(schedule=pw.Stairs((0.5, 0.75), begin=3, every=9)), Net()
    made = fit(callback, model=model, logger=CSVLogger(tmp_path), log_every_n_steps=100)
    made.logger.save()
    lines = (Path(made.logger.log_dir) / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    rows = [row for row in rows if row["sparsity"]]
    levels = {int(row["step"]): float(row["sparsity"]) for row in rows}
    assert levels == {
        n: pytest.approx(share)
        for n, share in [(0, 0), (2, 0.5), (4, 0.5), (9, 0.5), (11, 0.75), (14, 0.75), (19, 0.75)]
    }
    shares = {name: float(rows[-1][f"sparsity/{name}"]) for name in callback.pruner.masks}
    assert shares == {
        name: pytest.approx(1 - mask.float().mean().item(), abs=1e-6) for name, mask in callback.pruner.masks.items()
    }
    assert made.progress_bar_metrics["sparsity"] == pytest.approx(0.75)
    assert "sparsity/net.0.weight" not in made.progress_bar_metrics
    assert made.callback_metrics["sparsity"] == pytest.approx(0.75)


def test_a_checkpoint_is_named_by_the_sparsity(tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{sparsity:.1f}", monitor="sparsity", mode="max")
    fit(PrunerCallback(0.8, at_epoch=1), saving, epochs=2)
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["sparsity=0.8.ckpt"]


def test_a_bare_trainer_logs_nothing():
    model = Net()
    callback = PrunerCallback(0.8, at_epoch=1)
    made = lightning.Trainer(max_epochs=2, callbacks=[callback], barebones=True, accelerator="cpu")
    model.log = lambda *_: None
    made.fit(model, loader())
    assert_zeros(model, callback.pruner.masks)


# ---- refused before the training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"sparsity": 0.9}, r"sparsity=0\.9: say when.*at_epoch"),
        ({"sparsity": 1.5, "at_epoch": 2}, r"sparsity=1\.5"),
        ({"sparsity": 0.9, "at_epoch": 1.5}, r"at_epoch=1\.5: give a whole number"),
        ({"at_epoch": 2}, "was given nothing: give one of sparsity"),
        ({"criterion": "magic"}, "unknown criterion 'magic'"),
        ({"total_steps": 100}, "total_steps=100 is for a schedule"),
        ({"schedule": "cubic", "uncertainty": pw.PseudoBootstrap(last=5, total_steps=9)}, "leave that out"),
        ({"masks": {"a": 1}}, "'a' is int"),
        ({"masks": {"a": torch.ones(2) > 0}, "hold_zeros": True}, "masks=a and hold_zeros=True: give one"),
    ],
)
def test_a_choice_that_cannot_be_is_an_error_at_once(choice, words):
    with pytest.raises((ValueError, TypeError), match=words):
        PrunerCallback(**choice)


def test_a_part_is_given_by_name():
    with pytest.raises(TypeError, match=r"module=Linear.*give the name"):
        PrunerCallback(module=nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"sparsity": 0.9, "at_epoch": 4}, r"at_epoch=4 never comes.*max_epochs=4.*pruner\.prune"),
        ({"targets": "head"}, "'head'"),
        ({"module": "head"}, "module='head': Net has no such part, but net"),
        ({"sparsity": {"head": 0.5}, "at_epoch": 1}, "sparsity for 'head': no target"),
        ({"masks": {"net.0.bias": torch.zeros(8) > 0}}, r"prune net\.0\.bias, which are no targets.*targets=\["),
    ],
)
def test_what_does_not_fit_the_model_is_an_error_before_it_trains(choice, words):
    model = Net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words):
        fit(PrunerCallback(**choice), model=model)
    assert same(model.state_dict(), before)
    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
    assert not model._load_state_dict_pre_hooks


def test_twice_in_a_trainer_is_an_error():
    callback = PrunerCallback()
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `PrunerCallback`"):
        trainer(callback, PrunerCallback())
    for again in (callback, PrunerCallback()):
        made = trainer(callback)
        made.callbacks.append(again)
        with pytest.raises(ValueError, match="is twice|are in one Trainer"):
            made.fit(Net(), loader())


def test_two_that_share_a_weight_are_an_error():
    with pytest.raises(ValueError, match=r"2\.weight of PrunerCallback\('net'\) are targets of PrunerCallback too"):
        fit(PrunerCallback(), PrunerCallback(module="net"))


def test_another_model_is_an_error():
    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    fit(callback, model=model, epochs=2)
    with pytest.raises(ValueError, match=r"another model, the Net of an earlier fit.*masks=other\.pruner\.masks"):
        fit(callback, model=Net(), epochs=2)
    assert zeros_hold(model, callback.pruner)
    fit(callback, model=model, epochs=2)
    assert_zeros(model, callback.pruner.masks)


def test_testing_another_model_leaves_the_first_alone(tmp_path):
    callback, model, other = PrunerCallback(0.8, at_epoch=1), Net(), Net()
    made = fit(callback, each_epoch(tmp_path), model=model, epochs=2)
    masks = callback.pruner.masks
    made.test(other, loader(), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert sparsity(other) == 0.0
    assert same(callback.pruner.masks, masks)
    assert_zeros(model, masks)


def test_masks_of_another_callback_are_taken_along():
    first = PrunerCallback(0.8, at_epoch=1)
    fit(first, epochs=2)
    second, model = PrunerCallback(masks=first.pruner.masks), Net()
    fit(second, model=model, epochs=2)
    assert same(second.pruner.masks, first.pruner.masks)
    assert_zeros(model, first.pruner.masks)


@pytest.mark.parametrize("other", [{"targets": "net.0"}, {"uncertainty": pw.PseudoBootstrap(last=5)}])
def test_a_checkpoint_of_other_targets_is_an_error(other, tmp_path):
    fit(PrunerCallback(0.8, at_epoch=1), each_epoch(tmp_path), epochs=2)
    callback, model = PrunerCallback(**other), Net()
    with pytest.raises(ValueError, match="other targets or choices.*Give it the same"):
        fit(callback, model=model, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert sparsity(model) == pytest.approx(0.8), "as the checkpoint has it"
    fit(callback, epochs=1)  # without one, nothing of it is left
    assert callback.pruner.sparsity == 0.0


def test_zeros_without_a_state_are_an_error_that_says_what_to_do(tmp_path):
    fit(PrunerCallback(0.8, at_epoch=1), each_epoch(tmp_path), epochs=2)
    path = tmp_path / "epoch=1.ckpt"
    saved = torch.load(path, weights_only=True)
    del saved["callbacks"]["PrunerCallback"]
    torch.save(saved, path)
    with pytest.raises(
        ValueError, match=r"64 of the weights.*epoch=1\.ckpt', which has no state.*hold_zeros=True.*=False"
    ):
        fit(PrunerCallback(), ckpt_path=path)
    callback, model = PrunerCallback(hold_zeros=True), Net()
    fit(callback, model=model, ckpt_path=path)
    assert callback.pruner.sparsity == sparsity(model) == pytest.approx(0.8)
    model = Net()
    fit(PrunerCallback(hold_zeros=False), model=model, ckpt_path=path)
    assert sparsity(model) == 0.0


def test_a_checkpoint_without_pruning_is_gone_on_from(tmp_path):
    made = trainer(each_epoch(tmp_path), epochs=2)
    made.fit(Net(), loader())
    callback = PrunerCallback(schedule="cubic")
    fit(callback, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert callback.pruner.schedule == pw.Cubic(end=10, every=1), "the steps that were left"
    assert callback.pruner.sparsity == pytest.approx(0.9)
    pruned = PrunerCallback()
    model = Net()
    fit(pruned, model=model, epochs=1)
    pruned.pruner.prune(0.5)
    fit(pruned, model=model, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert pruned.pruner.sparsity == sparsity(model) == 0.0, "the checkpoint counts, not the fit before"


# ---- several processes ---------------------------------------------------------------------------------------------


def test_two_processes_prune_alike_and_one_logs(tmp_path):
    class Alike(Callback):
        def on_train_end(self, trainer, pl_module):
            for param in pl_module.parameters():
                every = [torch.empty_like(param) for _ in range(2)]
                torch.distributed.all_gather(every, param.detach())
                assert torch.equal(*every)
            assert zeros_hold(pl_module, callback.pruner)

    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    logger = CSVLogger(tmp_path)
    made = fit(callback, Alike(), model=model, epochs=2, devices=2, strategy="ddp_fork", logger=logger)
    assert sparsity(model) == pytest.approx(0.8)
    assert made.callback_metrics["sparsity"] == pytest.approx(0.8)
    assert len(list(tmp_path.rglob("metrics.csv"))) == 1
