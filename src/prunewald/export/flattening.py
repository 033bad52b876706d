"""What a model returns as tensors with names, and a model that returns no more than these."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree


def named_tensors(returned: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor in what a model returned by its name, and what else is in it, by name, in words; None is nothing.

    A tensor alone is "output", an entry of a dict or of an object its key, those of a tuple "output_0", "output_1".
    """
    tensors: dict[str, Tensor] = {}
    others: dict[str, str] = {}
    for path, one in _entries(returned, ""):
        name = path or "output"
        if isinstance(one, Tensor):
            while name in tensors:  # {"a": (x, y), "a_0": z}
                name += "_"
            tensors[name] = one
        elif one is not None:
            others[name] = f"a {type(one).__name__}"
    return tensors, others


def _entries(returned: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(returned, Mapping):
        inside = [(str(key), value) for key, value in returned.items()]
    elif isinstance(returned, tuple) and hasattr(returned, "_fields"):
        inside = list(zip(returned._fields, returned, strict=True))
    elif isinstance(returned, list | tuple):
        inside = [(str(at) if path else f"output_{at}", value) for at, value in enumerate(returned)]
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        inside = [(field.name, getattr(returned, field.name)) for field in dataclasses.fields(returned)]
    else:
        yield path, returned
        return
    for key, value in inside:
        yield from _entries(value, f"{path}_{key}" if path else key)


class Flat(nn.Module):
    """A model that returns its tensors as a tuple, and shares all else with the one it is made of, names included."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        # The dicts themselves, so that parameters keep their names and what a tracer puts there reaches the model.
        vars(self).update({name: vars(inside)[name] for name in ("_parameters", "_buffers", "_modules")})
        vars(self).update(training=inside.training, forward=_flat(inside))


def _flat(inside: nn.Module) -> Any:
    @functools.wraps(inside.forward)
    def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        found, _ = named_tensors(inside(*args, **kwargs))
        seen = {id(one) for one in pytree.tree_leaves((args, kwargs))}
        every = []
        for tensor in found.values():  # of an input that is an output, or an output that comes twice, a copy
            every.append(tensor.clone() if id(tensor) in seen else tensor)
            seen.add(id(tensor))
        return tuple(every)

    return forward
