"""The ways to run a layer with few weights, each for the number of samples and threads it was made for."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunewald.sparse.compiler import library
from prunewald.sparse.compressed import Compressed
from prunewald.sparse.inspector import Inspected, biased, mkl
from prunewald.sparse.native import Program, Step, kinds

BACKENDS = ("torch", "mkl", "c")
_WIDTHS = (16, 32, 64)
MANY = 64  # samples, above which one at a time is not tried: the weights would be read as often

Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Way:
    """How a layer is run: by a backend; for "c" with how the weights are stored, samples side by side, and threads."""

    backend: str
    kind: str = ""
    width: int = 0
    threads: int = 1

    def __str__(self) -> str:
        if self.backend != "c":
            return {"torch": "torch CSR", "mkl": "MKL"}[self.backend]
        how = f"{self.width} side by side" if self.width else self.kind
        return f"C, {how}" + (f", {self.threads} threads" if self.threads > 1 else "")


class MissingBackend(RuntimeError):
    """A backend is not to be had here, and the message says why."""


class _Csr:
    """Torch's own: CSR times X^T, feature-major."""

    def __init__(self, weight: Compressed) -> None:
        self._bias = weight.bias
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that CSR is in beta
            self._matrix = torch.sparse_csr_tensor(
                weight.starts, weight.places, weight.values, (weight.outputs, weight.inputs)
            )

    def __call__(self, x: Tensor) -> Tensor:
        return biased(self._matrix @ x.t().contiguous(), self._bias)


def kernel(weight: Compressed, way: Way, samples: int) -> Kernel:
    """A layer as a function of x (samples, inputs), float32 and contiguous; any number of samples is right."""
    if way.backend == "torch":
        return _Csr(weight)
    if way.backend == "mkl":
        return Inspected(weight, samples, _there(mkl()))
    return program([Step(weight, way.kind, False)], way)


def program(steps: list[Step], way: Way) -> Program:
    """Layers in a row as one call of our kernel, of which `way` says the width and the threads."""
    built = _there(library())
    if not all(step.kind in kinds() for step in steps):
        raise MissingBackend("tiles need AVX-512, which this machine does not have")
    return Program(steps, way.width, way.threads, built)


def ways(backends: tuple[str, ...], samples: int, most: int) -> Iterator[Way]:
    """All that is worth a trial here at so many samples, and with that number of threads or one."""
    if "torch" in backends:
        yield Way("torch")
    if "mkl" in backends and not isinstance(mkl(), str):
        yield Way("mkl")
    if "c" in backends and kinds():
        for count in threads(most):
            if samples <= MANY:
                for kind in kinds():
                    if kind != "cols" or count == 1 or samples >= count:  # one sample's columns are one thread's
                        yield Way("c", kind, 0, count)
            for width in widths(samples):
                yield Way("c", "rows", width, count)


def widths(samples: int) -> list[int]:
    """How many samples may stand side by side: none for a single one, and no more than twice what there is."""
    return [width for width in _WIDTHS if samples > 1 and width < 2 * max(samples, 16)]


def threads(most: int) -> list[int]:
    """With how many threads our kernel may be tried: one, and all there are."""
    built = library()
    return [1] if isinstance(built, str) or not built.threads else sorted({1, most})


def missing(backends: tuple[str, ...]) -> list[str]:
    """Why backends that were asked for are not tried here."""
    why = {"c": library, "mkl": mkl}
    found = [why[name]() for name in backends if name in why]
    return [f"{said}: not tried" for said in found if isinstance(said, str)]


def _there(found: Any) -> Any:
    if isinstance(found, str):
        raise MissingBackend(found)
    return found
