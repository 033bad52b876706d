"""A pruned model for others to run: plain safetensors, ONNX, torch.export, and torch.nn.utils.prune's own form.

In all of them the zeros are in the weights; nothing of prunewald is needed to load them.
"""

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.masking import check_masks
from prunewald.model.modules import evaluating, plain
from prunewald.storage.state_dict import check_names
from prunewald.util.files import FilePath, replacing

Inputs = Tensor | tuple[Any, ...]


def to_safetensors(model: nn.Module, path: FilePath) -> None:
    """Write all parameters and buffers, dense, zeros included; `safetensors.torch.load_model` reads it back.

    Of tied tensors only the first is written, as safetensors' own `save_model` does, and the metadata has their other
    names.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError("to_safetensors() needs safetensors: pip install safetensors") from error
    first: dict[Any, str] = {}
    others: dict[str, str] = {}
    kept: dict[str, Tensor] = {}
    state = plain(model).state_dict()
    check_names(state)
    for name, tensor in state.items():
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else name
        if first.setdefault(same, name) == name:
            kept[name] = tensor.detach().cpu().contiguous()
        else:
            others[name] = first[same]
    with replacing(path) as file:
        file.write(save(kept, metadata={"format": "pt", **others}))


def to_onnx(model: nn.Module, inputs: Inputs, path: FilePath, *, tolerance: float = 1e-4) -> float:
    """Write an ONNX file that onnxruntime has run: returns the largest difference to the model's own outputs.

    `inputs` are an example; a batch of two or more leaves the size of batches open. Differences are relative to the
    largest output; one above `tolerance` is an error, and nothing is written.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch.onnx writes with it)
    except ImportError as error:
        raise ImportError(f"to_onnx() needs {error.name}: pip install 'prunewald[export]'") from error
    example = inputs if isinstance(inputs, tuple) else (inputs,)
    inside = plain(model)
    with _exporting(inside):
        wanted = _first(inside(*example))
        program: Any = torch.onnx.export(
            inside, example, dynamo=True, verbose=False, dynamic_shapes=_open_batches(example)
        )
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    given = {one.name: x.cpu().numpy() for one, x in zip(session.get_inputs(), example, strict=True)}
    got = torch.from_numpy(session.run(None, given)[0])
    difference = float((got - wanted.cpu()).abs().max() / wanted.abs().max().clamp(min=1e-12))
    if not difference <= tolerance:
        raise ValueError(
            f"onnxruntime's outputs differ from the model's by {difference:.2g} of the largest, above "
            f"tolerance={tolerance!r}: nothing was written"
        )
    with replacing(path) as file:
        file.write(content)
    return difference


def to_torch_export(model: nn.Module, inputs: Inputs, path: FilePath) -> None:
    """Write a program of torch.export, which `torch.export.load` reads back without the model's code."""
    example = inputs if isinstance(inputs, tuple) else (inputs,)
    inside = plain(model)
    with _exporting(inside):
        program = torch.export.export(inside, example, dynamic_shapes=_open_batches(example))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with replacing(path) as file:
        file.write(buffer.getvalue())


def to_torch_prune(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict as torch.nn.utils.prune has it: a `_orig` and a `_mask` for each masked parameter.

    It loads into a model on which `torch.nn.utils.prune.identity` was called for these parameters.
    """
    state: dict[str, Tensor] = dict(plain(model).state_dict())
    check_masks(masks, state)
    for name, mask in masks.items():
        weight = state.pop(name)
        state |= {f"{name}_orig": weight, f"{name}_mask": mask.to(weight)}
    return state


def from_torch_prune(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A plain state dict, and the masks, from one of a model that torch.nn.utils.prune has pruned."""
    masked = [name.removesuffix("_orig") for name in state if name.endswith("_orig")]
    masks = {}
    paired = {f"{name}{end}" for name in masked for end in ("_orig", "_mask")}
    weights = {name: t for name, t in state.items() if name not in paired}
    for name in masked:
        if f"{name}_mask" not in state:
            raise ValueError(
                f"{name + '_orig'!r} has no {name + '_mask'!r} beside it: not a state dict of a pruned model"
            )
        mask, weight = state[f"{name}_mask"], state[f"{name}_orig"]
        masks[name] = mask != 0
        weights[name] = (weight * mask.to(weight.dtype)).masked_fill(~masks[name], 0.0)  # also where it was NaN
    return weights, masks


@contextmanager
def _exporting(model: nn.Module) -> Iterator[None]:
    """In eval mode, as it will be run, and without the warnings that torch gives about itself."""
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open_batches(example: tuple[Any, ...]) -> tuple[Any, ...]:
    auto = getattr(torch.export.Dim, "AUTO", None)
    if auto is None:
        raise ImportError(f"this export needs torch 2.6 or newer, not {torch.__version__}")
    return tuple({0: auto} if isinstance(x, Tensor) and x.dim() else None for x in example)


def _first(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else next(iter(output))
    return found
