"""What is saved comes back bit for bit: every dtype, shape, mask, stride, name and tie."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

from prunewald.storage import inspect, load, save

from .helpers import ALL_DTYPES, READABLE, holding, identical, net, noise, pruned, pruner, raw


def stored(path: Path) -> dict[str, str]:
    """How each tensor is stored, by name."""
    return {row.name: row.stored for row in inspect(path).tensors}


def test_pruner_into_fresh_model(tmp_path: Path) -> None:
    source, fresh = pruned(), net(seed=1)
    save(source, tmp_path / "model.pw")
    assert load(tmp_path / "model.pw", into=fresh) is fresh
    assert identical(fresh.state_dict(), source.model.state_dict())
    assert all((fresh.get_parameter(name)[~mask] == 0).all() for name, mask in source.masks.items())


def test_state_dict_keeps_its_order(tmp_path: Path) -> None:
    source = pruned()
    save(source, str(tmp_path / "model.pw"))
    state = load(str(tmp_path / "model.pw"))
    assert identical(state, source.model.state_dict())
    assert list(state) == list(source.model.state_dict())


def test_ten_percent_left_is_far_smaller_than_dense(tmp_path: Path) -> None:
    source = pruned(0.9, inputs=2000)
    save(source, tmp_path / "sparse.pw")
    dense = sum(t.nbytes for t in source.model.state_dict().values())
    # A tenth of the values, three quarters of their bits, and half a bit a place.
    assert (tmp_path / "sparse.pw").stat().st_size < 0.11 * dense


def test_same_model_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(pruned(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (7,), (40, 50), (2, 3, 4, 5)], ids=str)
def test_every_dtype_and_shape(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    dense, sparse = noise(dtype, *shape), noise(dtype, *shape)
    mask = torch.rand(shape) < 0.1
    view = sparse.reshape(-1).view(torch.uint8).view(-1, dtype.itemsize)
    view[~mask.reshape(-1)] = 0
    model = holding(dense=dense, sparse=sparse, plain=sparse.clone())
    save(pruner(model, {"sparse": mask}), tmp_path / "f")
    assert identical(load(tmp_path / "f"), model.state_dict())
    fresh = holding(**{name: torch.empty_like(t) for name, t in model.state_dict().items()})
    load(tmp_path / "f", into=fresh)
    assert identical(fresh.state_dict(), model.state_dict())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(0, 9), columns=st.integers(0, 9))
def test_any_mask(tmp_path: Path, data: st.DataObject, rows: int, columns: int) -> None:
    size = rows * columns
    bits = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    mask = torch.tensor(bits, dtype=torch.bool).view(rows, columns)
    weight = noise(torch.float32, rows, columns)
    weight[~mask] = 0
    save(pruner(holding(w=weight), {"w": mask}), tmp_path / "f")
    assert identical(load(tmp_path / "f"), {"w": weight})
    (row,) = inspect(tmp_path / "f").tensors
    assert row.kept == sum(bits)


def test_a_mask_is_stored_as_it_is(tmp_path: Path) -> None:
    """A surviving weight that happens to be zero still survives."""
    mask = torch.tensor([True, True, False, False])
    save(pruner(holding(w=torch.tensor([1.0, 0.0, 0.0, 0.0])), {"w": mask}), tmp_path / "f")
    (row,) = inspect(tmp_path / "f").tensors
    assert (row.kept, row.positions) == (2, 3)


def test_plain_model_is_sparse_where_that_is_smaller(tmp_path: Path) -> None:
    zeros, few, small = torch.zeros(1000), torch.ones(1000), torch.zeros(10)
    few[:20] = 0
    noisy = noise(torch.float32, 1000)
    save(holding(zeros=zeros, few=few, small=small, noisy=noisy), tmp_path / "f")
    assert stored(tmp_path / "f") == {"zeros": "F32", "few": "codebook", "small": "dense", "noisy": "dense"}
    # Sparse or dense, the rule never makes the file larger.
    zeros[::2] = 1
    save(holding(x=zeros), tmp_path / "sparse")
    save(holding(x=zeros + 1), tmp_path / "dense")
    assert (tmp_path / "sparse").stat().st_size < (tmp_path / "dense").stat().st_size


def test_negative_zeros_and_nan_payloads_survive(tmp_path: Path) -> None:
    weight = torch.zeros(1000)
    weight[3] = -0.0
    weight[5:8] = torch.tensor([0x7FC12345, 0x7F800001, 0x00000001], dtype=torch.int32).view(torch.float32)
    save(holding(w=weight), tmp_path / "f")
    assert inspect(tmp_path / "f").tensors[0].kept == 4
    assert identical(load(tmp_path / "f"), {"w": weight})


def test_any_strides(tmp_path: Path) -> None:
    base = noise(torch.float32, 2, 3, 4, 5)
    model = holding(
        last=base.to(memory_format=torch.channels_last),
        turned=base.transpose(0, 3),
        sliced=base[:, 1:, ::2],
        expanded=torch.ones(1).expand(6),
        conjugate=torch.randn(3, dtype=torch.complex64).conj().imag,
    )
    save(model, tmp_path / "f")
    assert identical(load(tmp_path / "f"), model.state_dict())
    fresh = holding(last=torch.empty_like(base, memory_format=torch.channels_last))
    save(holding(last=base), tmp_path / "f")
    assert raw(load(tmp_path / "f", into=fresh).last) == raw(base)  # type: ignore[arg-type]
    assert fresh.last.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]


def test_bools_with_other_bytes_than_0_and_1(tmp_path: Path) -> None:
    save(holding(x=torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)), tmp_path / "f")
    assert raw(load(tmp_path / "f")["x"]) == bytes([0, 1, 1, 1])


def test_awkward_names(tmp_path: Path) -> None:
    names = ["mask/w", "w", "values/w", 'größe "x"\n\\', "日本", "\x00"]
    model = holding(**{name: noise(torch.float32, 2) for name in names})
    save(model, tmp_path / "f")
    assert identical(load(tmp_path / "f"), model.state_dict())


def test_no_tensors_at_all(tmp_path: Path) -> None:
    save(nn.ReLU(), tmp_path / "f")
    assert load(tmp_path / "f") == {}


class Tied(nn.Module):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 30)
        self.out = nn.Linear(30, 40)
        if tie:
            self.out.weight = self.embed.weight


@pytest.mark.parametrize("masked", ["embed.weight", "out.weight", None])
@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights_are_stored_once_and_load_tied_or_not(tmp_path: Path, masked: Any, tie: bool) -> None:
    model, fresh = Tied(tie=True), Tied(tie)
    mask = torch.rand(40, 30) < 0.1
    model.embed.weight.data *= mask
    model.embed.weight.data.abs_()  # no -0.0
    save(pruner(model, {masked: mask} if masked else {}), tmp_path / "f")
    assert list(stored(tmp_path / "f")) == ["embed.weight = out.weight", "out.bias"]
    load(tmp_path / "f", into=fresh)
    assert identical(fresh.state_dict(), model.state_dict())
    assert (fresh.out.weight is fresh.embed.weight) == tie


def test_views_that_overlap_are_not_tied(tmp_path: Path) -> None:
    base = noise(torch.float32, 6, 6)
    model = holding(whole=base, turned=base.T, part=base[:2], ints=base.view(torch.int32))
    save(model, tmp_path / "f")
    assert len(stored(tmp_path / "f")) == 4
    assert identical(load(tmp_path / "f"), model.state_dict())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu(tmp_path: Path) -> None:
    source = pruned()
    source.model.cuda()
    source.masks = {name: mask.cuda() for name, mask in source.masks.items()}
    save(source, tmp_path / "f")
    fresh = load(tmp_path / "f", into=net(seed=1).cuda())
    assert identical(fresh.state_dict(), source.model.state_dict())
    assert all(not tensor.is_cuda for tensor in load(tmp_path / "f").values())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(READABLE),
    shape=st.lists(st.integers(0, 12), max_size=4),
    keep=st.sampled_from([0.0, 0.02, 0.3, 0.7, 1.0]),
    few=st.booleans(),
    codec=st.sampled_from(["auto", "huffman", "ans", "raw"]),
    positions=st.sampled_from(["auto", "gaps", "ans", "bits"]),
    seed=st.integers(0, 2**31),
)
def test_bit_for_bit_whatever_the_codec(
    tmp_path: Path, dtype: Any, shape: Any, keep: float, few: bool, codec: Any, positions: Any, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, mask = noise(dtype, *shape), torch.rand(shape) < keep
    if few and weight.numel():
        weight = noise(dtype, 5)[torch.randint(5, shape)]
    view = weight.reshape(-1).view(torch.uint8).view(-1, dtype.itemsize)
    view[~mask.reshape(-1)] = 0
    model = holding(w=weight, plain=weight.clone())
    save(pruner(model, {"w": mask}), tmp_path / "f", codec=codec, positions=positions)
    assert identical(load(tmp_path / "f"), model.state_dict())
