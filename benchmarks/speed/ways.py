"""The ways to run one pruned network. Each is a file, which is read again before it is run."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from benchmarks.speed.networks import Network
from prunewald.quantisation import run_int8, to_onnx

DENSE, AGAIN = "dense", "dense, again"
Run = Callable[[], Any]


class LeftOut(Exception):
    """A way that this network has not, and why."""


@dataclass
class Subject:
    """A pruned network, and one batch that it is to be run with. What does not depend on the batch is made once."""

    network: Network
    level: float
    folder: Path
    batch: int = 1
    known: dict[str, Any] = field(default_factory=dict)  # what several ways need
    said: dict[str, str] = field(default_factory=dict)  # by way, what was chosen
    sparse: set[str] = field(default_factory=set)  # the weights that run_sparse runs without their zeros

    @property
    def x(self) -> Tensor:
        """The batch."""
        return self.network.example(self.batch)

    def file(self, way: str) -> Path:
        """Where a way is saved."""
        return self.folder / way.replace(", ", "-").replace(" ", "-")

    @property
    def model(self) -> nn.Module:
        """The pruned network, as wide as it was."""
        return self._pruned()[0]

    @property
    def small(self) -> nn.Module:
        """What is left where whole channels were pruned."""
        found = self._pruned()[1]
        if found is None:
            raise LeftOut("single weights were pruned")
        return found

    def _pruned(self) -> tuple[nn.Module, nn.Module | None]:
        if "pruned" not in self.known:
            pruner, small = self.network.pruned(self.level), None
            if self.network.whole:
                small = pw.shrink(pruner, self.network.example(2))[0].eval()
            pruner.detach()
            self.known["pruned"] = pruner.model.eval(), small
        return self.known["pruned"]  # type: ignore[no-any-return]


def _plain(subject: Subject, file: Path) -> None:
    torch.save(subject.model, file)


def _shrunk(subject: Subject, file: Path) -> None:
    torch.save(subject.small, file)


def _sparse(subject: Subject, file: Path) -> None:
    fast = pw.run_sparse(subject.model, subject.x)
    report: Any = fast.report
    subject.said["run_sparse"] = str(report)
    own = [f"{layer.name}.weight" for layer in report.layers if layer.way]
    subject.sparse = set(own if report.replaced else ())
    torch.save(fast, file)


def _int8(subject: Subject, file: Path) -> None:
    _run_int8("int8", subject.model, subject, file)


def _both(subject: Subject, file: Path) -> None:
    """Layers that do not run sparse as int8."""
    fast = pw.run_sparse(subject.model, subject.x)
    if not any(type(module) is nn.Linear for module in fast.modules()):
        raise LeftOut("run_sparse runs all linear layers")
    _run_int8("run_sparse, int8", fast, subject, file)


def _shrunk_int8(subject: Subject, file: Path) -> None:
    _run_int8("shrunk, int8", subject.small, subject, file)


def _run_int8(way: str, model: nn.Module, subject: Subject, file: Path) -> None:
    fast = run_int8(model, subject.x)
    subject.said[way] = str(fast.report)
    torch.save(fast, file)


def _onnx(model: nn.Module, subject: Subject, file: Path) -> None:
    pw.export.to_onnx(model, subject.network.example(2), file)


def _onnx_dense(subject: Subject, file: Path) -> None:
    _onnx(subject.model, subject, file)


def _onnx_shrunk(subject: Subject, file: Path) -> None:
    _onnx(subject.small, subject, file)


def _onnx_int8(subject: Subject, file: Path) -> None:
    _as_int8(subject.model, subject, file)


def _onnx_shrunk_int8(subject: Subject, file: Path) -> None:
    _as_int8(subject.small, subject, file)


def _as_int8(model: nn.Module, subject: Subject, file: Path) -> None:
    """Inputs of layers in ranges found on data where there are convolutions, which stay float otherwise."""
    convolutions = any(isinstance(module, nn.Conv2d) for module in model.modules())
    data = [subject.network.example(64)] if convolutions else None
    to_onnx(model, subject.network.example(2), file, data=data, tolerance=0.5)


def _dynamic(subject: Subject, file: Path) -> None:
    """As onnxruntime's own tool makes it of our file: int8 weights, and inputs of layers rounded as they come."""
    from onnxruntime.quantization import quantize_dynamic

    whole = file.with_suffix(".float")
    _onnx(subject.model, subject, whole)
    logging.disable(logging.WARNING)
    quantize_dynamic(whole, file)
    logging.disable(logging.NOTSET)


TORCH: Mapping[str, Callable[[Subject, Path], None]] = {
    DENSE: _plain,
    AGAIN: _plain,
    "shrunk": _shrunk,
    "run_sparse": _sparse,
    "int8": _int8,
    "run_sparse, int8": _both,
    "shrunk, int8": _shrunk_int8,
}
ONNX: Mapping[str, Callable[[Subject, Path], None]] = {
    "onnxruntime": _onnx_dense,
    "onnxruntime, shrunk": _onnx_shrunk,
    "onnxruntime, int8": _onnx_int8,
    "onnxruntime, shrunk, int8": _onnx_shrunk_int8,
    "onnxruntime's own int8": _dynamic,
}
CHOSEN = (
    "run_sparse",
    "int8",
    "run_sparse, int8",
    "shrunk, int8",
)  # by measurement, for a number of threads and a size of batch


def files(subject: Subject) -> Iterator[tuple[str, Path | str]]:
    """Each way with its file, or with why there is none."""
    for way, make in {**TORCH, **ONNX}.items():
        file = subject.file(way)
        try:
            if way in CHOSEN or not file.exists():
                make(subject, file)
        except LeftOut as why:
            yield way, str(why)
        else:
            yield way, file


def loaded(way: str, file: Path | str, threads: int, x: Tensor) -> Run:
    """A way read from its file, as a function that runs it with a batch."""
    if way in ONNX:
        return _session(str(file), threads, x)
    model = torch.load(file, weights_only=False)  # a file of our own

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return run


def _session(file: str, threads: int, x: Tensor) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


def logits(output: Any) -> Tensor:
    """The first output, whoever gave it."""
    first = output if isinstance(output, Tensor) else output[0]
    return torch.as_tensor(first)
