"""Nested dicts, lists and tuples with tensors in them: states of optimizers, estimators and trainings."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def mapped(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same tree with every tensor in it changed; numpy's numbers become Python's, which files can hold."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(value, change) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree.item() if type(tree).__module__ == "numpy" and tree.shape == () else tree


def copied(tree: Any) -> Any:
    """A copy that shares no tensor with the first."""
    return mapped(tree, lambda tensor: tensor.detach().clone())
