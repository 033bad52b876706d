"""What a part of a model is given, batch by batch: kept from a pass of the whole, so that the part can run alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Given(Protocol):
    """Some examples, all of them held back or none; `keep` are the positions that count, None where all do."""

    @property
    def held(self) -> bool:
        """Whether they are not fitted to."""

    @property
    def keep(self) -> Tensor | None:
        """Which positions count."""

    def call(self, module: nn.Module, *, dense: bool) -> Any:
        """What a module returns for them, in the dense model or in the pruned one."""


@dataclass(frozen=True)
class Call:
    """The arguments of a call; the first is what the part before has given."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def first(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    @property
    def rest(self) -> list[Any]:
        """The other arguments."""
        return [*self.args[1:], *list(self.kwargs.values())[0 if self.args else 1 :]]

    def having(self, first: Any) -> "Call":
        """The same with another first argument."""
        return self.of(first, self.rest)

    def of(self, first: Any, rest: Sequence[Any]) -> "Call":
        """The same with other arguments."""
        every = [first, *rest]
        count = len(self.args)
        return Call(tuple(every[:count]), dict(zip(self.kwargs, every[count:], strict=True)))


@dataclass
class Part:
    """Examples as a part of a model is given them: in the pruned model, and in the dense one."""

    held: bool
    keep: Tensor | None
    own: Call
    dense: Call
    device: torch.device

    def call(self, module: nn.Module, *, dense: bool) -> Any:
        """What the part returns; it gets a copy of the first, since some write into what they are given."""
        given = self.dense if dense else self.own
        again = given.having(self.first(dense=dense))
        return module(*again.args, **again.kwargs)

    def first(self, *, dense: bool) -> Tensor:
        """A copy of its first argument."""
        found: Tensor = (self.dense if dense else self.own).first.to(self.device, copy=True)
        return found

    def went_on(self, found: Any, *, dense: bool) -> None:
        """What the part returned is what the next one is given."""
        given = (self.dense if dense else self.own).having(first_of(found).to("cpu"))
        if dense:
            self.dense = given
        else:
            self.own = given


SIMPLE = (type(None), bool, int, float, str, torch.dtype, torch.device)


def keepable(found: Any) -> bool:
    """Whether what a module has returned can be returned again: a tensor, or one with plain values beside it."""
    rest = found[1:] if isinstance(found, tuple) else ()
    return isinstance(first_of(found), Tensor) and all(isinstance(one, SIMPLE) for one in rest)


def first_of(found: Any) -> Any:
    """What a part has given to the next one: all that it returned, or the first of a tuple."""
    return found[0] if isinstance(found, tuple) and found else found
