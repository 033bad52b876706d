"""What users of other pruning libraries complain of, thread by thread: it cannot happen here, or says what it needs."""

import copy
import gc
import pickle
import re

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.storage import inspect
from tests.training import cases, net, one_step, train, wide

pytestmark = pytest.mark.usefixtures("one_thread")

WAITING = {
    1: "models that really run faster: structured removal and sparse execution",
    11: "a GPU: benchmarks/select.py runs there; the search counts digits, and sorts nothing",
    15: "structured removal, which carries the optimizer's state over",
    16: "sharded parameters (FSDP2), which are refused in one sentence until then: tests/test_distributed.py",
    17: "the Trainer of transformers; a plain DDP loop works",
    18: "nothing: every criterion prunes alike on every rank, in tests/test_distributed.py, over real processes",
    19: "the integration with Lightning",
    20: "sparse execution outside of torch",
    23: "structured removal",
}


def pruned(level: float = 0.9, **choices):
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(16, model.get_parameter("0.weight").shape[1])
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    pruner = pw.Pruner(model, optimizer, **choices)
    pruner.prune(level)
    return model, optimizer, pruner, x


def test_02_the_file_of_a_pruned_model_is_smaller_and_has_no_mask_beside_it(tmp_path):
    """microsoft/nni#2225, #3094."""
    big = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 100))
    pruner = pw.Pruner(big, criterion="magnitude")
    torch.save(big.state_dict(), tmp_path / "dense.pt")
    pruner.prune(0.9)
    assert list(big.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    pw.save(pruner, tmp_path / "model.pw")
    assert (tmp_path / "model.pw").stat().st_size < 0.15 * (tmp_path / "dense.pt").stat().st_size


def test_03_no_gzip_is_needed(tmp_path):
    """tensorflow/model-optimization#760: another compressor finds next to nothing in the file."""
    zlib = pytest.importorskip("zlib")
    pruner = pw.Pruner(nn.Linear(400, 300), criterion="magnitude")
    pruner.prune(0.9)
    pw.save(pruner, tmp_path / "model.pw")
    content = (tmp_path / "model.pw").read_bytes()
    assert len(zlib.compress(content, 9)) > 0.95 * len(content)


def test_04_what_is_coded_is_decoded(tmp_path):
    """mightydeveloper/Deep-Compression-PyTorch#1."""
    model, _, pruner, x = pruned()
    pw.save(pruner, tmp_path / "model.pw", codec="huffman")
    assert torch.equal(pw.load(tmp_path / "model.pw", into=wide())(x), model(x))


def test_05_the_size_counts_the_places_of_the_zeros(tmp_path):
    """haochen-rye/NeRV#16."""
    _, _, pruner, _ = pruned()
    pw.save(pruner, tmp_path / "model.pw")
    found = inspect(tmp_path / "model.pw")
    assert (
        found.size
        == (tmp_path / "model.pw").stat().st_size
        == found.total.payload + found.total.overhead + found.header
    )
    assert found.total.positions > 0


@pytest.mark.parametrize(
    "case", [c for c in cases() if c.id in ("SGD-momentum=0.9", "Adam", "AdamW", "RMSprop-momentum=0.9")]
)
def test_06_momentum_revives_nothing(case):
    """he-y/filter-pruning-geometric-median#47, IntelLabs/distiller#53."""
    model = case.model()
    optimizer = case.optimizer(model)
    train(model, optimizer, 4)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    masks = pruner.masks
    train(model, optimizer, 4)
    assert all((model.get_parameter(name)[~mask] == 0).all() for name, mask in masks.items())


def test_07_a_pruned_model_is_copied():
    """pytorch#37322, Lightning PR#21717."""
    model, _, _, x = pruned()
    model(x)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def test_08_a_recurrent_network_trains_on_after_pruning():
    """pytorch#33618, VainF/Torch-Pruning#44, #276, #404 (21): LSTMs are pruned, and train on."""
    model = nn.LSTM(6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(5, 3, 6)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.7)
    pruner.detach()
    again = pw.Pruner(model, optimizer, criterion="magnitude")
    again.hold_zeros()
    for _ in range(3):
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()
    assert again.sparsity == pytest.approx(0.7, abs=0.01)


def test_09_rounds_leak_nothing():
    """pytorch#49332, Lightning#8542."""
    model, optimizer, pruner, x = pruned(0.1)

    def tensors():
        gc.collect()
        return sum(type(one) in (torch.Tensor, nn.Parameter) for one in gc.get_objects())

    counts = []
    for level in (0.2, 0.3, 0.4, 0.5, 0.6):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        pruner.prune(level)  # begins anew to watch what gradients reach
        counts.append(tensors())
    assert counts[-1] <= counts[1]


@pytest.mark.slow
def test_10_more_weights_than_a_quantile_of_torch_takes():
    """pytorch#64947: torch.quantile ends at 2^24 values."""
    layer = nn.Linear(4200, 4000, bias=False)
    assert layer.weight.numel() > 2**24
    report = pw.Pruner(layer, criterion="magnitude").prune(0.9)
    assert report.kept == layer.weight.numel() - round(0.9 * layer.weight.numel())


def test_12_ties_do_not_miss_the_count():
    """sparseml PR#678."""
    layer = nn.Linear(100, 100)
    nn.init.constant_(layer.weight, 0.5)
    assert pw.Pruner(layer, criterion="magnitude").prune(0.37, dry_run=True).kept == 6300


def test_13_a_sparse_model_is_pruned_on_from_its_checkpoint(tmp_path):
    """IntelLabs/distiller PR#76, sparseml#145."""
    model, _, pruner, _ = pruned(0.5)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    fresh = wide()
    fresh.load_state_dict(torch.load(tmp_path / "model.pt"))
    again = pw.Pruner(fresh, criterion="magnitude")
    again.hold_zeros()
    assert again.sparsity == pytest.approx(pruner.sparsity)
    again.prune(0.8)
    assert all((again.masks[name] <= mask).all() for name, mask in pruner.masks.items())


def test_14_masks_are_saved_and_loaded(tmp_path):
    """VainF/Torch-Pruning#428, nni#4422."""
    _, _, pruner, _ = pruned()
    pw.masks.save(pruner.masks, tmp_path / "masks.pw")
    found = pw.masks.load(tmp_path / "masks.pw")
    assert all(torch.equal(found[name], mask) for name, mask in pruner.masks.items())


def test_21_a_share_is_a_share_of_the_weights():
    """VainF/Torch-Pruning#199: a ratio of 0.1 removed 20 % of the parameters."""
    _, _, pruner, _ = pruned(0.1)
    assert pruner.sparsity == pytest.approx(0.1, abs=0.005)


def test_22_a_criterion_of_ones_own_is_a_function():
    """pytorch PR#48378: `importance_scores=` was added for that."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    one_step(model, optimizer, 0)
    pruner = pw.Pruner(model, optimizer, criterion=lambda stats: stats.weight.abs() * stats.require_gradient().abs())
    assert pruner.prune(0.5).sparsity == pytest.approx(0.5, abs=0.02)


def test_every_thread_is_here_or_says_what_it_waits_for():
    tested = {int(found[1]) for name in globals() if (found := re.match(r"test_(\d\d)_", name))}
    assert tested | WAITING.keys() == set(range(1, 24))
    assert not tested & WAITING.keys()
    assert all(WAITING.values())
