"""ONNX files that onnxruntime has run before they are written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.export.comparing import compared
from prunewald.export.example_inputs import Example, Inputs, as_example, exporting
from prunewald.export.flattening import Flat, named_tensors
from prunewald.export.onnx_graph import clean_, fixed_first, sparse_
from prunewald.model.modules import plain
from prunewald.util.arguments import real, whole
from prunewald.util.files import FilePath, replacing
from prunewald.util.notices import warn

_MOST = 2**31 - 2**20  # bytes of weights: a protobuf, and so a file of ONNX in one piece, holds 2 GiB
_LEAST_OPSET, _MOST_OPSET = 18, 23  # those that torch's exporter itself writes, or is turned to without loss


def to_onnx(
    model: nn.Module,
    inputs: Inputs,
    path: FilePath,
    *,
    tolerance: float | None = None,
    dynamic_shapes: Any = "batch",
    opset: int | None = None,
    sparse: bool = False,
) -> float:
    """Write an ONNX file that onnxruntime has run: returns the largest difference to the model's own outputs.

    - `inputs`: an example, as a tensor, a tuple of what the model is called with, or a dict by keyword.
    - `tolerance`: how far an output may be from the model's, as a share of its largest: by default 1e-4 in float32,
      1e-7 in float64, 1e-2 in float16, 5e-2 in bfloat16. Bools and integers have to be equal. Otherwise it is an error,
      and nothing is written.
    - `dynamic_shapes`: "batch" leaves the first dimension of every input open, and a batch twice as large is compared
      too; where that does not hold, as where torch fixes a batch of one, the file fixes it, and a warning says so. None
      fixes all; anything else is torch.export's own.
    - `opset`: the version of ONNX's operators, torch's choice by default.
    - `sparse`: weights that are smaller as values and positions (float32 from two thirds of zeros) are stored so.
      onnxruntime makes them dense as it loads: the file is smaller, and as fast.

    Every output is compared: of tuples, dicts, dataclasses and Hugging Face's outputs, by their names.
    """
    made = written(model, inputs, dynamic_shapes, opset, tolerance)
    if sparse:
        sparse_(made.proto)
    content = made.proto.SerializeToString()
    difference = compared(run(session_of(content), made.example), made.outputs, tolerance, "onnxruntime")
    with replacing(path) as file:
        file.write(content)
    return difference


@dataclass(frozen=True)
class Written:
    """A model as ONNX's own proto, the example that it was written with, and the model's outputs for that."""

    proto: Any
    example: Example
    outputs: dict[str, Tensor]


def written(
    model: nn.Module, inputs: Inputs, dynamic_shapes: Any, opset: int | None, tolerance: float | None = None
) -> Written:
    """A model as ONNX, whose outputs for the example are the model's own."""
    _needed()
    inside = plain(model)
    example = as_example(inputs, inside)
    if opset is not None:
        whole("opset", opset, _LEAST_OPSET, _MOST_OPSET)
    if tolerance is not None:
        real("tolerance", tolerance)
    _check_size(inside)
    with exporting(inside):
        outputs, others = named_tensors(inside(*example.args, **example.kwargs))
        if not outputs:
            raise ValueError(f"the model returned no tensor ({', '.join(others.values()) or 'nothing'})")
        names = _apart(outputs, {*example.tensors(), *inside.state_dict()})
        proto = _exported(inside, example, names, dynamic_shapes, opset)
        session = session_of(proto.SerializeToString())
        wanted = {names[name]: tensor for name, tensor in outputs.items()}
        compared(run(session, example), wanted, tolerance, "onnxruntime")
        if dynamic_shapes == "batch" and not _holds(session, inside, example.doubled(), names, tolerance):
            proto = _exported(inside, example, names, None, opset)
    _say(proto, others, dynamic_shapes)
    return Written(proto, example, wanted)


def _exported(model: nn.Module, example: Example, names: Mapping[str, str], shapes: Any, opset: int | None) -> Any:
    program: Any = torch.onnx.export(
        Flat(model),
        example.args,
        kwargs=example.kwargs,
        dynamo=True,
        verbose=False,
        dynamic_shapes=example.dynamic_shapes(shapes),
        opset_version=opset,
        output_names=list(names.values()),
    )
    proto = program.model_proto
    clean_(proto)
    return proto


def _holds(session: Any, model: nn.Module, example: Example, names: Mapping[str, str], tolerance: float | None) -> bool:
    """Whether the file gives the model's outputs for this example too, if the model itself can be called with it."""
    try:
        wanted, _ = named_tensors(model(*example.args, **example.kwargs))
    except Exception:  # whatever the model makes of inputs of another size: there is nothing to compare with
        return True
    try:
        outputs = {names.get(name, name): tensor for name, tensor in wanted.items()}
        compared(run(session, example), outputs, tolerance, "onnxruntime")
    except Exception:  # onnxruntime's own classes, which are not public
        return False
    return True


def run(session: Any, example: Example) -> dict[str, Tensor]:
    """What onnxruntime gives for the example, by the names of outputs."""
    given = zip(session.get_inputs(), example.tensors().values(), strict=True)
    got = session.run(None, {one.name: x.detach().cpu().numpy() for one, x in given})
    return {one.name: torch.from_numpy(array) for one, array in zip(session.get_outputs(), got, strict=True)}


def session_of(content: bytes, threads: int | None = None) -> Any:
    """A session of onnxruntime on the CPU; an error says what it cannot run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it warns of is its own business, and errors are raised too
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes, which are not public
        raise ValueError(
            f"onnxruntime cannot run this model on a CPU ({str(error).splitlines()[0]}): float32 it always can, so try "
            "model.float(); nothing was written"
        ) from error


def _needed() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 (torch.onnx writes with it)
    except ImportError as error:
        raise ImportError(f"to_onnx() needs {error.name}: pip install 'prunewald[export]'") from error


def _check_size(model: nn.Module) -> None:
    size = sum(t.numel() * t.element_size() for t in {t.data_ptr(): t for t in model.state_dict().values()}.values())
    if size > _MOST:
        raise ValueError(
            f"the model has {size / 2**30:.1f} GiB of weights, and one file of ONNX holds 2: export it in half "
            "precision (model.half()), or with to_torch_export, which has no limit"
        )


def _apart(outputs: Mapping[str, Tensor], taken: set[str]) -> dict[str, str]:
    """The names of outputs in a file, where no other value has the same."""
    names: dict[str, str] = {}
    for name in outputs:
        new = name
        while new in taken:
            new = f"{new}_output"
        taken.add(new)
        names[name] = new
    return names


def _say(proto: Any, others: Mapping[str, str], dynamic_shapes: Any) -> None:
    if others:
        named = ", ".join(f"{name!r} ({kind})" for name, kind in others.items())
        warn(f"ONNX has no such outputs as {named}: left out of the file")
    fixed = fixed_first(proto) if dynamic_shapes == "batch" else {}
    if fixed:
        named = ", ".join(f"{name!r} to {size}" for name, size in fixed.items())
        warn(
            f"the first dimension of inputs is fixed in the file ({named}), since what torch writes of this example is "
            "not right for other batches: give one of two or more, or fix it knowingly with dynamic_shapes=None"
        )
