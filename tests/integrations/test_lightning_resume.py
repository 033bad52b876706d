"""Lightning: a training that stopped within an epoch goes on bit for bit; what one fit leaves to the next."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.resuming import same
from tests.training import assert_zeros, hooks_on

pytest.importorskip("lightning", reason="Lightning is not installed: pip install 'prunewald[lightning]'")

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from prunewald.integrations.lightning import PrunerCallback
from prunewald.integrations.peft import mask_adapters
from tests.integrations.test_lightning import Manual, Net, each_epoch, fit, loader, sparsity, trainer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.* output rows have no weight left"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft asks transformers
]


class Stateful:
    """A loader that tells where it is, so that Lightning can go on in the middle of an epoch."""

    def __init__(self):
        self.batches, self.at, self.skip = list(loader()), 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.at, self.skip = self.skip, 0
        for batch in self.batches[self.at :]:
            self.at += 1
            yield batch
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.skip = state["at"]


CUBIC = {"schedule": pw.Cubic(0.8, begin=2, every=2)}


@pytest.mark.parametrize(
    ("model", "options", "choices"),
    [
        (Net, {}, CUBIC),
        (Net, {}, {"sparsity": 0.8, "at_epoch": 2}),
        (Net, {"precision": "bf16-mixed"}, CUBIC | {"uncertainty": pw.PseudoBootstrap(last=2)}),
        (Net, {"precision": "bf16-mixed", "accumulate_grad_batches": 2}, CUBIC),
        (Net, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}, {"sparsity": 0.8, "at_epoch": 1}),
        (Manual, {}, CUBIC),
    ],
    ids=["plain", "at its epoch", "bf16-mixed", "bf16-mixed, accumulated", "clipped, accumulated", "by hand"],
)
def test_within_an_epoch_it_goes_on_bit_for_bit(model, options, choices, tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    whole, net = PrunerCallback(**choices), model()
    trainer(whole, saving, **options).fit(net, Stateful())
    resumed, again = PrunerCallback(**choices), model()
    nn.init.normal_(again.net[0].weight)
    trainer(resumed, **options).fit(again, Stateful(), ckpt_path=tmp_path / "step=4.ckpt")
    assert same(again.state_dict(), net.state_dict())
    assert same(resumed.pruner.state_dict(), whole.pruner.state_dict())
    assert resumed.pruner.sparsity == pytest.approx(0.8)


def test_a_dry_run_needs_no_epoch_to_prune_in():
    callback, model = PrunerCallback(0.8, at_epoch=3), Net()
    with pytest.warns(UserWarning, match=r"ended before at_epoch=3"):
        fit(callback, model=model, fast_dev_run=True)
    assert sparsity(model) == 0.0


def pruned(share):
    model = Net()
    with pw.Pruner(model) as pruner:
        pruner.prune(share)
    return model


def test_zeros_that_a_fit_begins_with_are_warned_of():
    model = pruned(0.8)
    with pytest.warns(UserWarning, match=r"64 of the weights to prune are zero, and nothing holds them: Pruner.*True"):
        fit(PrunerCallback(), model=model, epochs=1)
    assert sparsity(model) == 0.0
    model = pruned(0.5)
    fit(PrunerCallback(0.8, at_epoch=0), model=model, epochs=1)
    assert sparsity(model) == pytest.approx(0.8), "zeros go first"


@pytest.mark.parametrize("part", [3, nn.Linear(2, 2)], ids=["a number", "a module of its own"])
def test_a_function_that_gives_no_part_of_the_model_is_refused(part):
    with pytest.raises(ValueError, match=r"which is no part of the Net"):
        fit(PrunerCallback(0.5, at_epoch=1, module=lambda net: part))


@pytest.mark.parametrize("kind", [FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy])
def test_strategies_that_shard_the_weights_are_refused(kind):
    sharded = SimpleNamespace(strategy=object.__new__(kind), callbacks=[])
    with pytest.raises(ValueError, match=f"{kind.__name__} shards weights.*strategy='ddp'"):
        PrunerCallback().setup(sharded, Net(), "fit")


class LetGo(Callback):
    """Detaches the Pruner in the middle of a fit."""

    def __init__(self, callback):
        self.callback = callback

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 8:
            self.callback.pruner.detach()


def test_what_was_detached_stays_let_go(tmp_path):
    callback, model = PrunerCallback(0.8, at_epoch=1), Net()
    made = fit(callback, LetGo(callback), each_epoch(tmp_path), model=model, epochs=3)
    assert sparsity(model) == 0.0, "it trained on, and checkpoints wrote no zeros"
    assert torch.load(tmp_path / "epoch=2.ckpt")["callbacks"].get("PrunerCallback") is None
    made.test(model, loader(), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert hooks_on(model, made.optimizers[0]) == 0
    fit(callback, model=model, epochs=2)
    assert callback.pruner.sparsity == sparsity(model) == pytest.approx(0.8), "a new Pruner, at its epoch"


def test_masked_adapters_go_by_the_pruner_of_the_next_fit():
    peft = pytest.importorskip("peft", reason="PEFT is not installed")

    class Adapted(Net):
        def __init__(self):
            super().__init__()
            self.net = peft.get_peft_model(self.net, peft.LoraConfig(r=2, target_modules=["0", "2"]))

        def configure_optimizers(self):
            return torch.optim.Adam([param for param in self.parameters() if param.requires_grad], lr=0.02)

    callback, model = PrunerCallback(module="net"), Adapted()
    fit(callback, model=model, epochs=1)
    mask_adapters(model, callback.pruner)
    callback.pruner.prune(0.3)
    fit(callback, model=model, epochs=1)
    callback.pruner.prune(0.6)
    fit(callback, model=model, epochs=1)
    masks = callback.pruner.masks
    merged = model.net.merge_and_unload()
    assert_zeros(merged, masks)
    assert sparsity(merged) == pytest.approx(0.6)
