"""Who holds a parameter: two Pruners that hold different zeros in one tensor would undo each other."""

from collections.abc import Mapping
from typing import Any, Protocol
from weakref import ref

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from prunewald.util.notices import warn


class Owner(Protocol):
    """What is asked of a Pruner here."""

    @property
    def at_work(self) -> str:
        """What it is in the middle of, in a word; empty where nothing is under way."""

    @property
    def holding(self) -> bool:
        """Whether it holds any zeros."""

    def detach(self) -> None:
        """Let go."""


_owners: Any = WeakIdKeyDictionary()  # by parameter: weak references to the Pruners that were attached to it


def claim(owner: Owner, params: Mapping[str, Tensor]) -> None:
    """Enter a Pruner as attached to these parameters. Pruners that only watch may share them.

    An earlier one that holds zeros there is let go, with a warning; one that is in the middle of a schedule or of a
    surgery is an error.
    """
    known = [(name, kept()) for name, param in params.items() for kept in _owners.get(param, ())]
    others = {id(other): (name, other) for name, other in reversed(known) if other is not None and other is not owner}
    for name, other in others.values():
        if other.at_work:
            raise ValueError(
                f"{name!r} belongs to a {type(other).__name__} in the middle of its {other.at_work}: "
                "call detach() of that one first"
            )
    for name, other in others.values():
        if other.holding:
            warn(
                f"{name!r} was held by an earlier {type(other).__name__}, which is detached now, so that its zeros "
                "train again; set_masks(earlier.masks) holds them on"
            )
            other.detach()
    for param in params.values():
        attached = [kept for kept in _owners.get(param, ()) if kept() not in (None, owner)]
        _owners[param] = [*attached, ref(owner)]


def hand_over(param: Tensor, present: Tensor) -> None:
    """Another tensor has taken the place of a parameter, and belongs to those that it belonged to."""
    _owners[present] = _owners.get(param, [])


def leave(owner: Owner, params: Mapping[str, Tensor]) -> None:
    """Forget one."""
    for param in params.values():
        _owners[param] = [kept for kept in _owners.get(param, []) if kept() not in (None, owner)]
