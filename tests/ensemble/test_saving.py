"""A training with a folder: stopped after any epoch, the same call goes on, to the same result."""

import io
import shutil
import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import prunewald as pw
from prunewald.ensemble import saving, train_many
from prunewald.ensemble.trainer import Trainer
from prunewald.ensemble.vmap_trainer import VmapTrainer
from tests.ensemble.helpers import BATCH, RECIPES, SEEDS, data

pytestmark = pytest.mark.usefixtures("one_thread")
EPOCHS = 4


class Net(nn.Module):
    """With all that a snapshot has to hold: buffers, dropout, a frozen part."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(8, 4)
        self.out.bias.requires_grad_(False)
        self.double()

    def forward(self, x):
        return self.out(self.body(x))


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def each_epoch(monkeypatch):
    monkeypatch.setattr(saving, "_SECONDS", -1.0)
    monkeypatch.setattr(saving, "_SHARE", 0)


def many(folder, **options):
    collect = [pw.PseudoBootstrap(last=5), pw.PseudoBootstrap(every=2), pw.SecondMoment(decay=0.9)]
    masks = {"out.weight": torch.arange(32).reshape(4, 8) % 3 > 0}
    common = {"seeds": SEEDS, "batch_size": BATCH, "keep_optimizer": True, "progress": False, "epochs": EPOCHS}
    common |= {"make_model": Net, "collect": collect, "masks": masks, "folder": folder}
    return train_many(x=data()[0], y=data()[1], **common | options)


def flat(value):
    """Every tensor in a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value) for tensor in flat(value[key])]
    return [tensor for part in value for tensor in flat(part)] if isinstance(value, list | tuple) else []


def same(a, b):
    one, other = (
        flat([r.params, r.buffers, r.losses, r.second_moment, list(r.estimates), r.optimizer_state]) for r in (a, b)
    )
    return len(one) == len(other) > 20 and all(map(torch.equal, one, other))


def killed_after(count, monkeypatch, folder, **options):
    """As a kill after so many epochs: nothing runs after it."""
    left, step = [count], saving.SavedFile.save

    def save(self, state):
        step(self, state)
        left[0] -= 1
        if not left[0]:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(saving.SavedFile, "save", save)
        with pytest.raises(Killed):
            many(folder, **options)


def counting(kind, name, monkeypatch):
    """One entry for each call of a method."""
    calls, method = [], getattr(kind, name)

    def counted(*given):
        calls.append(None)
        return method(*given)

    monkeypatch.setattr(kind, name, counted)
    return calls


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize(
    "recipe", [RECIPES[0], *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in RECIPES[1:])], ids=str
)
def test_killed_after_any_epoch(recipe, how, tmp_path, monkeypatch):
    options = {"optimizer": recipe, "how": how, "chunk": 2}
    whole = many(None, **options)
    parts = len(SEEDS) if how == "loop" else -(-len(SEEDS) // 2)
    for epochs in range(1, parts * EPOCHS, 3):
        killed_after(epochs, monkeypatch, tmp_path, **options)
        with monkeypatch.context() as patch:
            ran = counting(Trainer, "_snapshot", patch)
            assert same(many(tmp_path, **options), whole)
        assert len(ran) == parts * EPOCHS - 1 - min(epochs, parts * EPOCHS - 1)  # what was done is not done again
        assert same(many(tmp_path, **options), whole)  # nor when all is
        shutil.rmtree(tmp_path)


def test_a_second_training_goes_on_within_itself(tmp_path, monkeypatch):
    first = many(None)
    options = {
        "start": first,
        "first_epoch": EPOCHS,
        "epochs": 3,
        "how": "vmap",
    }  # which of the two is no matter of speed
    whole = many(None, **options)
    killed_after(2, monkeypatch, tmp_path, **options)
    assert same(many(tmp_path, **options), whole)


def wider():
    net = Net()
    net.body[1], net.body[2], net.out = nn.Linear(36, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)
    return net.double()


def noisier():
    net = Net()
    net.body[4] = nn.Dropout(0.8)
    return net


def squared(out, y):
    return F.mse_loss(out, F.one_hot(y, 4).to(out))


@pytest.mark.parametrize(
    "other",
    [
        {"make_model": wider, "masks": {}},
        {"make_model": noisier},
        {"loss": squared},
        {"loss": partial(F.cross_entropy, label_smoothing=0.5)},
        {"epochs": EPOCHS + 1},
        {"batch_size": BATCH - 1},
        {"optimizer": RECIPES[0]},
        {"collect": ()},
        {"masks": {"out.weight": torch.arange(32).reshape(4, 8) % 3 > 1}},
        {"seeds": [seed + 1 for seed in SEEDS]},
        {"resample": "bootstrap"},
        {"start": "same"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_training_begins_anew_and_leaves_the_first_alone(other, tmp_path, monkeypatch):
    killed_after(2, monkeypatch, tmp_path, how="vmap")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert same(many(tmp_path, how="vmap", **other), many(None, how="vmap", **other))
    assert {path: path.read_bytes() for path in before} == before


def test_memory_may_be_less_when_it_goes_on(tmp_path, monkeypatch):
    killed_after(5, monkeypatch, tmp_path, how="vmap", chunk=2)
    monkeypatch.setattr("prunewald.ensemble.local.memory", lambda device: 0)
    ran = counting(Trainer, "_snapshot", monkeypatch)
    assert same(many(tmp_path, how="vmap"), many(None, how="vmap", chunk=2))
    assert len(ran) == 2 * EPOCHS - 1 - 5


def test_the_folder_may_go_at_any_time(tmp_path, monkeypatch):
    """As when another run of the same training has finished."""
    folder, whole = tmp_path / "running", many(None)

    def dropping(*given, old=torch.save):
        shutil.rmtree(folder)
        old(*given)

    monkeypatch.setattr(torch, "save", dropping)
    assert same(many(folder), whole)


class Odd:
    """A recipe that cannot be told from others."""

    def build(self, params, fast=False):
        return torch.optim.SGD(params, lr=0.1)


def test_what_cannot_be_told_from_others_is_refused(tmp_path):
    with pytest.raises(ValueError, match="folder=.*Odd object at.*__repr__"):
        many(tmp_path, optimizer=Odd())


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_it_goes_on_in_the_way_it_was_begun(how, tmp_path, monkeypatch):
    killed_after(2, monkeypatch, tmp_path, how=how)
    for name in ("trial_step.cannot_vmap", "race.loop_is_faster"):
        monkeypatch.setattr(f"prunewald.ensemble.{name}", lambda *given: "as a clock may say" * (how == "vmap"))
    assert same(many(tmp_path), many(None, how=how))


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    killed_after(2, monkeypatch, tmp_path)
    (file,) = tmp_path.iterdir()
    another = io.BytesIO()
    torch.save([1, 2], another)
    for content in (b"", file.read_bytes()[:1000], b"not a training", another.getvalue()):
        file.write_bytes(content)
        with pytest.raises(saving.SavedError, match=f"'{file}'.*delete it"):
            many(tmp_path)


def test_a_folder_is_of_one_machine(tmp_path):
    with pytest.raises(ValueError, match=f"folder='{tmp_path}'.*executor='ray'"):
        many(tmp_path, executor="ray")


def test_each_minute_and_seldom_where_it_takes_long(tmp_path, monkeypatch):
    clock, saved = [time.monotonic()], []
    monkeypatch.setattr(saving, "_SECONDS", 60.0)
    monkeypatch.setattr(saving, "_SHARE", 20)
    monkeypatch.setattr(saving.time, "monotonic", lambda: clock[0])

    def slow(state, file):
        saved.append(len(state["losses"]))
        clock[0] += 5  # 20 of these are more than a minute

    def epoch(self, number):
        clock[0] += 35

    monkeypatch.setattr(torch, "save", slow)
    monkeypatch.setattr(VmapTrainer, "begin", epoch)
    many(tmp_path, how="vmap", epochs=9)
    assert saved == [2, 5, 8]
