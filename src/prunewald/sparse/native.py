"""One call of our kernel for a layer, or for several in a row."""

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.sparse.compiler import Library, library
from prunewald.sparse.compressed import Compressed
from prunewald.sparse.formats import KINDS, Stored, stored


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "inputs", "outputs", "relu")),
        *((name, ctypes.c_void_p) for name in ("starts", "places", "counts", "values", "bias")),
    )


class _Program(ctypes.Structure):
    _fields_ = (("layers", ctypes.c_void_p), ("count", ctypes.c_int32), ("width", ctypes.c_int32))


class Step(NamedTuple):
    """A layer of a program: its weight, how it is stored, and whether a ReLU follows."""

    weight: Compressed
    kind: str
    relu: bool


class Program:
    """Layers in a row, run by one call: x (samples, inputs), float32 and contiguous, to y (samples, outputs).

    `width` samples stand side by side, 16, 32 or 64; 0 is one at a time. A layer may run with up to `threads` threads,
    but never with more than torch does.
    """

    def __init__(self, steps: Sequence[Step], width: int, threads: int, built: Library) -> None:
        self.outputs = steps[-1].weight.outputs
        self._threads = threads if built.threads else 1
        self._arrays = [stored(one.weight, one.kind) for one in steps]
        biases = [torch.zeros(one.weight.outputs) if one.weight.bias is None else one.weight.bias for one in steps]
        self._biases: list[Tensor] = biases  # kept, as the arrays are: the program has addresses only
        self._layers = (_Layer * len(steps))(*map(_entry, steps, self._arrays, biases))
        self._program = _Program(ctypes.addressof(self._layers), len(steps), width)
        self._at = ctypes.addressof(self._program)
        self._run = built.run

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of the last layer for every sample."""
        samples = x.shape[0]
        y = torch.empty(samples, self.outputs)
        threads = 1 if self._threads == 1 else min(self._threads, torch.get_num_threads(), _most[0])
        if self._run(self._at, x.data_ptr(), y.data_ptr(), samples, threads):
            raise MemoryError(f"no memory for the buffers of {samples} samples: give smaller batches")
        return y


_most = [2**15]  # threads; a process that was forked has none of those that its parent had
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _most.__setitem__(0, 1))


def _entry(step: Step, arrays: Stored, bias: Tensor) -> _Layer:
    weight, addresses = step.weight, [one.ctypes.data for one in arrays]
    return _Layer(KINDS[step.kind], weight.inputs, weight.outputs, step.relu, *addresses, bias.data_ptr())


def kinds() -> list[str]:
    """The ways in which a layer can be stored here; none where there is no kernel."""
    built = library()
    if isinstance(built, str):
        return []
    return [kind for kind in KINDS if built.tiles or kind != "tiles"]
