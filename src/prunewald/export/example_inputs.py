"""Example inputs, as a user gives them: sorted into the arguments of a model, and checked."""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from prunewald.model.calibration import Batch, device_of
from prunewald.model.modules import evaluating

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]

_OUTSIDE = (bool, int, float, str, type(None))  # what an export takes as it is


@dataclass(frozen=True)
class Example:
    """One call of a model: its arguments, in the order of its forward."""

    arguments: inspect.BoundArguments

    @property
    def args(self) -> tuple[Any, ...]:
        """Those by position."""
        return self.arguments.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Those that only a keyword can give."""
        return self.arguments.kwargs

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor in it by the name it has in messages, in the order in which exported programs take them."""
        return {name: leaf for name, leaf in _leaves(self.arguments.arguments) if isinstance(leaf, Tensor)}

    def described(self) -> str:
        """Its tensors in words."""
        return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.tensors().items())

    def doubled(self) -> "Example":
        """The same with every tensor twice along its first dimension."""

        def twice(x: Any) -> Any:
            return torch.cat([x, x]) if isinstance(x, Tensor) and x.dim() else x

        arguments = pytree.tree_map(twice, dict(self.arguments.arguments))
        return Example(inspect.BoundArguments(self.arguments.signature, arguments))

    def dynamic_shapes(self, given: Any) -> Any:
        """What torch.export is told of the dimensions: "batch" opens the first of every tensor."""
        if given != "batch":
            return given
        auto = getattr(torch.export.Dim, "AUTO", None)
        if auto is None:
            raise ImportError(f"this export needs torch 2.6 or newer, not {torch.__version__}")
        return pytree.tree_map(
            lambda x: {0: auto} if isinstance(x, Tensor) and x.dim() else None, dict(self.arguments.arguments)
        )


def as_example(inputs: Inputs, model: nn.Module) -> Example:
    """Example inputs as arguments of the model; an error names the one that cannot be any."""
    if not isinstance(inputs, Tensor | tuple | Mapping):
        raise TypeError(
            f"inputs, a {type(inputs).__name__}, are no example: give a tensor, a tuple of what the model is called "
            "with, or a dict by keyword"
        )
    kwargs: Mapping[str, Any] = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    given = f"keywords {', '.join(kwargs) or 'none'}" if isinstance(inputs, Mapping) else f"{len(args)} by position"
    Batch(args, kwargs, given=given).check(model)
    example = Example(inspect.signature(model.forward).bind(*args, **kwargs))
    device = device_of(model)
    for name, leaf in _leaves(example.arguments.arguments):
        if isinstance(leaf, Tensor) and leaf.device != device:
            raise ValueError(f"the input {name!r} is on {leaf.device}, and the model on {device}: move one of them")
        if not isinstance(leaf, (Tensor, *_OUTSIDE)):
            raise TypeError(f"the input {name!r} is a {type(leaf).__name__}: give a torch tensor")
    if not example.tensors():
        raise ValueError("inputs have no tensor: give an example of what the model is called with")
    return example


@contextmanager
def exporting(model: nn.Module) -> Iterator[None]:
    """In eval mode, as it will be run, and without the warnings that torch gives about itself."""
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    found, _ = pytree.tree_flatten_with_path(dict(tree))
    return [(".".join(map(_word, path)), leaf) for path, leaf in found]


def _word(key: Any) -> str:
    """A step into a tree: a key of a dict, or a place in a tuple."""
    return str(key.key if isinstance(key, pytree.MappingKey) else getattr(key, "idx", key))
