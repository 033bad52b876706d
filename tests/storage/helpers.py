"""Small models, stand-in pruners, drawn symbols, and what many tests ask of a file."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunewald.storage import PackedFileError, load
from prunewald.storage.index import DTYPES

OLD = tuple(map(int, safetensors.__version__.split(".")[:2])) < (0, 7)
READABLE = [dtype for name, dtype in DTYPES.items() if not (OLD and name == "C64")]
ALL_DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(dtype not in READABLE, reason="safetensors before 0.7"))
    for dtype in DTYPES.values()
]


def holding(**tensors: Tensor) -> nn.Module:
    """A model that has just these buffers."""
    model = nn.Module()
    for name, tensor in tensors.items():
        model.register_buffer(name, tensor)
    return model


def pruner(model: nn.Module, masks: dict[str, Tensor]) -> Any:
    """What storage knows of a pruner."""
    return SimpleNamespace(model=model, masks=masks, report=None)


def net(seed: int = 0, inputs: int = 20) -> nn.Sequential:
    """A small model with weights, biases, float and integer buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))


def pruned(sparsity: float = 0.9, seed: int = 0, inputs: int = 20) -> Any:
    """A pruner whose model has the smallest weights of every matrix at zero."""
    model = net(seed, inputs)
    masks = {}
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            order = weight.detach().abs().flatten().argsort()
            mask = torch.ones(weight.numel(), dtype=torch.bool)
            mask[order[: round(sparsity * weight.numel())]] = False
            masks[name] = mask.view_as(weight)
            weight.data[~masks[name]] = 0
    return pruner(model, masks)


def noise(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bits as a tensor: NaN payloads, infinities, negative zeros, all of them."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype).view(shape)


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor, row-major."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Same names, dtypes, shapes and bits."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and raw(a[name]) == raw(b[name]) for name in a
    )


def refused(path: Path, reason: str) -> None:
    """The file is, with its name and a reason."""
    with pytest.raises(PackedFileError, match=f"{path.name}: .*({reason})"):
        load(path)


@contextmanager
def allocating(limit: float) -> Iterator[None]:
    """No more memory than so many bytes, as far as Python and numpy know."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit


def skewed(count: int, alphabet: int, seed: int = 0) -> NDArray[np.uint8]:
    """Symbols of which the small ones come most often."""
    drawn = np.random.default_rng(seed).geometric(0.3, count) - 1
    return np.minimum(drawn, alphabet - 1).astype(np.uint8)
