"""MKL's inspector-executor for sparse matrices, where a library that is here already has it: never a dependency."""

import ctypes
import ctypes.util
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunewald.sparse.compressed import Compressed

_PLAIN, _ZERO_BASED, _ROW_MAJOR, _CALLS = 10, 0, 101, 1000
_NONE = "no library with MKL's sparse functions was found (torch's own, libmkl_rt)"
_Int, _Pointer, _Code = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int  # an int32 is read from the same register


class _Description(ctypes.Structure):
    _fields_ = (("type", _Code), ("mode", _Code), ("diagonal", _Code))


_GENERAL = _Description(20, 40, 50)
_INSPECTION = {  # torch's own library goes without: then weights are not looked at beforehand
    "MKL_Set_Num_Threads_Local": [_Code],
    "mkl_sparse_set_mv_hint": [_Pointer, _Code, _Description, _Int],
    "mkl_sparse_set_mm_hint": [_Pointer, _Code, _Description, _Code, _Int, _Int],
    "mkl_sparse_optimize": [_Pointer],
}
_SIGNATURES = {
    "mkl_sparse_s_create_csr": [_Pointer, _Code, _Int, _Int, _Pointer, _Pointer, _Pointer, _Pointer],
    "mkl_sparse_destroy": [_Pointer],
    "mkl_sparse_s_mv": [_Code, ctypes.c_float, _Pointer, _Description, _Pointer, ctypes.c_float, _Pointer],
    "mkl_sparse_s_mm": [
        *(_Code, ctypes.c_float, _Pointer, _Description, _Code, _Pointer, _Int, _Int, ctypes.c_float, _Pointer, _Int)
    ],
}


class Inspected:
    """A layer as MKL keeps it after it has looked at the weights; x (samples, inputs) to y (samples, outputs)."""

    def __init__(self, weight: Compressed, samples: int, found: Any) -> None:
        self._weight, self._mkl, self._inspects = weight, found, inspects(found)
        self._handle = _Pointer()
        starts, at = weight.starts.data_ptr(), ctypes.addressof(self._handle)
        shape = (weight.outputs, weight.inputs)
        self._entries = [_some(weight.places), _some(weight.values)]  # kept: MKL has addresses only
        arrays = (starts, starts + 4, *(one.data_ptr() for one in self._entries))
        _must(found.mkl_sparse_s_create_csr(at, _ZERO_BASED, *shape, *arrays))
        weakref.finalize(self, found.mkl_sparse_destroy, self._handle)
        if self._inspects:  # hints may be refused: then it is only slower
            if samples == 1:
                found.mkl_sparse_set_mv_hint(self._handle, _PLAIN, _GENERAL, _CALLS)
            else:
                found.mkl_sparse_set_mm_hint(self._handle, _PLAIN, _GENERAL, _ROW_MAJOR, samples, _CALLS)
            found.mkl_sparse_optimize(self._handle)

    def __call__(self, x: Tensor) -> Tensor:
        """W x + b for every sample."""
        weight, samples = self._weight, x.shape[0]
        if self._inspects:  # not torch's own library, which knows
            self._mkl.MKL_Set_Num_Threads_Local(torch.get_num_threads())
        if samples == 1:
            y = x.new_zeros(1, weight.outputs) if weight.bias is None else weight.bias[None].clone()
            pointers = (x.data_ptr(), 1.0, y.data_ptr())
            _must(self._mkl.mkl_sparse_s_mv(_PLAIN, 1.0, self._handle, _GENERAL, *pointers))
            return y
        if not samples:
            return x.new_empty(0, weight.outputs)
        across, out = x.t().contiguous(), torch.empty(weight.outputs, samples)
        given, into = (across.data_ptr(), samples, samples), (0.0, out.data_ptr(), samples)
        _must(self._mkl.mkl_sparse_s_mm(_PLAIN, 1.0, self._handle, _GENERAL, _ROW_MAJOR, *given, *into))
        return biased(out, weight.bias)


def biased(across: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs feature by feature (outputs, samples) as samples, contiguous, with the bias."""
    if bias is None:
        return across.t().contiguous()
    return torch.add(across.t(), bias, out=across.new_empty(across.shape[::-1]))


def _some(entries: Tensor) -> Tensor:
    """An address, even of nothing."""
    return entries if entries.numel() else entries.new_zeros(1)


def _must(status: int) -> None:
    if status:
        raise RuntimeError(f"MKL's sparse functions gave status {status}")


@cache
def mkl() -> Any:
    """The loaded library, or in words why there is none; decided once in a process."""
    for path in _paths():
        with suppress(OSError, AttributeError):
            found: Any = ctypes.CDLL(path)
            for name, arguments in [*_SIGNATURES.items(), *(_INSPECTION.items() if inspects(found) else ())]:
                getattr(found, name).argtypes = arguments
            if _counts_in_int32(found):
                return found
    return _NONE


def inspects(found: Any) -> bool:
    """Whether a library can look at the weights beforehand, and is not only told of them."""
    return all(hasattr(found, name) for name in _INSPECTION)


def _paths() -> Iterator[str]:
    for folder in (Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin"):  # where pip puts the package mkl
        yield from map(str, sorted(folder.glob("*mkl_rt*")))
    if named := ctypes.util.find_library("mkl_rt"):
        yield named
    folder = Path(torch.__file__).parent / "lib"  # which cannot look at the weights beforehand
    yield from map(str, sorted(folder.glob("*torch_cpu.*")))


def _counts_in_int32(found: Any) -> bool:
    """Whether the library reads int32: positions that both readings find inside the arrays give it away."""
    starts, places = torch.tensor([0, 0, 2, 0], dtype=torch.int32), torch.tensor([1, 0, 2, 0], dtype=torch.int32)
    values, x, y = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 10.0, 100.0]), torch.zeros(1)
    handle = _Pointer()
    arrays = (starts.data_ptr(), starts[2:].data_ptr(), places.data_ptr(), values.data_ptr())
    if found.mkl_sparse_s_create_csr(ctypes.addressof(handle), _ZERO_BASED, 1, 3, *arrays):
        return False
    failed = found.mkl_sparse_s_mv(_PLAIN, 1.0, handle, _GENERAL, x.data_ptr(), 0.0, y.data_ptr())
    found.mkl_sparse_destroy(handle)
    return not failed and y.item() == 11.0
