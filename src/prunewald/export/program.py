"""Programs of torch.export."""

import io
from typing import Any

import torch
from torch import nn

from prunewald.export.example_inputs import Inputs, as_example, exporting
from prunewald.model.modules import plain
from prunewald.util.files import FilePath, replacing


def to_torch_export(model: nn.Module, inputs: Inputs, path: FilePath, *, dynamic_shapes: Any = "batch") -> None:
    """Write a program of torch.export, which `torch.export.load` reads back without the model's code.

    `inputs` and `dynamic_shapes` are those of `to_onnx`.
    """
    inside = plain(model)
    example = as_example(inputs, inside)
    with exporting(inside):
        program = torch.export.export(
            inside, example.args, example.kwargs, dynamic_shapes=example.dynamic_shapes(dynamic_shapes)
        )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with replacing(path) as file:
        file.write(buffer.getvalue())
