"""Where the units of a model go in one forward pass: every operation of torch, seen from below.

Each position along an axis of a parameter has a number of its own. Operations carry the numbers on and join them:
those of a layer's rows become those of its outputs; a sum joins what it adds; what a layer reads is joined with its
columns. An operation that is not known fixes all that comes to it, so that nothing is taken for free that is not.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from prunewald.model.coupling import Ids, Units

Axis: TypeAlias = Ids | None  # None: no position of it can go
Put: TypeAlias = Callable[[Any], None]
Turns: TypeAlias = dict[tuple[int, int], int]  # by view, and the axis it cuts: which of its new axes has the units
_TORCH = Path(torch.__file__).parent
_LIBRARIES = (str(_TORCH), str(_TORCH.parent / "transformers"))  # they look at masks, and do the same in several ways
_DISPATCH = (str(_TORCH / "_dynamo"), str(_TORCH / "_compile.py"))  # between an operation and who asked for it


class UntraceableError(ValueError):
    """What a model does with these inputs cannot be followed."""


@dataclass(frozen=True)
class Meeting:
    """A layer that reads units: the axis of its weight which meets an axis of its input."""

    weight: str
    axis: int
    x: Tensor
    x_axis: int
    bias: str | None  # what a constant input can be added to: the bias, where it is the same at all places


@dataclass(frozen=True)
class Cut:
    """An axis cut into several by a view, one of which has its units; or into pieces one after the other."""

    places: tuple[str, ...]  # the modules that ran, the innermost last
    whole: Ids
    part: Ids


class Listener(Protocol):
    """What looks on."""

    def start(self, inputs: Sequence[Tensor]) -> None:
        """Told at the beginning of a pass."""

    def meets(self, meeting: Meeting) -> None:
        """Told before a layer reads."""

    def before(self, kind: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put | None:
        """Told before every operation; what it returns is told of the result."""


class Flow(TorchDispatchMode):
    """Follows the units of named tensors through whatever runs inside it."""

    def __init__(
        self, named: Mapping[str, Tensor], units: Units, turns: Turns, listener: Listener | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.units, self.turns, self.listener = units, turns, listener
        self.places: list[str] = []  # the modules that run now, the innermost last
        self.cuts: list[Cut] = []
        self.roles: dict[tuple[str, int], str] = {}
        self.again = False
        self.axes: dict[str, list[Axis]] = {}
        self._labels = WeakTensorKeyDictionary()
        self._owners: list[tuple[int, str, int]] = []
        self._own = WeakTensorKeyDictionary()  # views of parameters
        self._computed = WeakTensorKeyDictionary()  # what depends on parameters
        self._made: list[tuple[Ids, tuple[int, int], int, int]] = []  # axes that a view has made, with their numbers
        self._count = 0
        for name, tensor in named.items():
            own: list[Axis] = []
            for axis, size in enumerate(tensor.shape):
                own.append(units.fresh(size))
                self._owners += [(int(own[-1][0]), name, axis)] if size else []  # type: ignore[index]
            self.axes[name] = self._labels[tensor] = own
            self._own[tensor] = name
            self._computed[tensor] = True

    @property
    def place(self) -> str:
        """The module that runs now, by name."""
        return self.places[-1] if self.places else ""

    def enter(self, inputs: Sequence[Tensor]) -> None:
        """Inputs of the model: what is computed from them is followed."""
        for x in inputs:
            if x.is_floating_point():
                self._labels[x] = [None] * x.dim()
        if self.listener is not None:
            self.listener.start(inputs)

    def leave(self, outputs: Sequence[Tensor]) -> None:
        """Outputs of the model: they keep their shape."""
        for x in outputs:
            self.fix(x, "the model returns it")

    def labels(self, x: Tensor) -> list[Axis]:
        """The numbers along each axis of a tensor."""
        found: list[Axis] | None = self._labels.get(x)
        return [None] * x.dim() if found is None else found

    def follows(self, x: Any) -> bool:
        """Whether a tensor depends on parameters or inputs."""
        return isinstance(x, Tensor) and x in self._labels

    def parameter(self, x: Tensor) -> str | None:
        """The parameter that a tensor is a view of."""
        found: str | None = self._own.get(x)
        return found

    def owner(self, axis: Ids) -> tuple[str, int]:
        """The parameter, and the axis of it, that has made numbers."""
        low, high = 0, len(self._owners)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self._owners[middle][0] <= axis[0] else (low, middle)
        return self._owners[low][1:]

    def fix(self, x: Tensor, why: str, axes: Sequence[int] | None = None) -> None:
        """No position along these axes of a tensor can go."""
        labels = self.labels(x)
        for axis in range(x.dim()) if axes is None else axes:
            if (ids := labels[axis]) is not None and x.shape[axis] > 1:
                self.units.fix(ids, why)

    def join(self, a: Axis, b: Axis, why: str) -> Axis:
        """Two axes of one length that meet; what meets an axis that cannot go cannot go either."""
        if a is None or b is None:
            for one in (a, b):
                if one is not None:
                    self.units.fix(one, why)
            return None
        self.units.join(a, b)
        return a

    def put(self, out: Any, labels: list[Axis]) -> None:
        """Give a tensor its numbers."""
        self._labels[out] = labels

    def own(self, out: Any, name: str | None) -> None:
        """Note a view of a parameter."""
        if name is not None:
            self._own[out] = name

    def role(self, ids: Axis, role: str) -> None:
        """Note what a parameter is to the units along an axis; what makes them once, makes them."""
        if ids is not None:
            at = self.owner(ids)
            self.roles[at] = "makes" if "makes" in (role, self.roles.get(at)) else role

    def turn(self, axis: int, options: int) -> int:
        """Which of several axes, into which one is cut, has the units: the first, until that is known not to work."""
        return min(self.turns.get((self._count, axis), 0), options - 1)

    def viewed(self, ids: Ids, axis: int, options: int) -> None:
        """Note the numbers of the axis that was chosen."""
        self._made.append((ids, (self._count, axis), self.turn(axis, options), options))

    def pick(self, ids: Ids) -> None:
        """Single positions of an axis are taken, as of queries, keys and values that are packed into one.

        If a view has made the axis, its units are in another of its axes: the pass is done again so.
        """
        roots = self.units.roots(ids)
        for own, view, turn, options in reversed(self._made):
            if np.array_equal(self.units.roots(own), roots):
                if turn + 1 < options:
                    self.turns[view], self.again = turn + 1, True
                break
        self.units.fix(ids, f"single positions of it are taken{self.at()}")

    def cut(self, whole: Ids, part: Ids) -> None:
        """Note an axis that was cut: code around it may have its sizes in attributes."""
        self.cuts.append(Cut(tuple(self.places), whole, part))

    def at(self) -> str:
        """Where it is now, in words."""
        return f" in {self.place!r}" if self.place else ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and carry the numbers on."""
        self._count += 1
        given = dict(kwargs or {})
        followed = [x for x in tensors((args, given)) if self.follows(x)]
        kind = kind_of(func)
        if kind in ("_local_scalar_dense", "equal", "is_nonzero") and any(map(self._decides, followed)):
            raise UntraceableError(
                f"what the model computes decides what it does next (a number is read from a tensor{self.at()}), so it "
                "cannot be followed: leave such a branch out of forward(), or shrink the part before or after it"
            )
        puts: list[Put | None] = [] if self.listener is None else [self.listener.before(kind, func, args, given)]
        if followed:
            puts.append(self._rule(kind, func, args, given) or unknown(self, kind, followed))
        out = func(*args, **given)
        for put in puts:
            if put is not None:
                put(out)
        if any(x in self._computed for x in followed):
            for x in tensors(out):
                self._computed[x] = True
        return out

    def _rule(self, kind: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put | None:
        """What gives results their numbers; None where the operation, or this form of it, is not known."""
        from prunewald.model.rules import rule

        own: Callable[..., Put] | None = rule(kind, func)
        try:
            return None if own is None else own(self, func, args, kwargs)
        except (IndexError, TypeError, ValueError):  # arguments in a form that the rule has not
            return None

    def _decides(self, x: Tensor) -> bool:
        """Whether the code may go another way for another value: torch itself looks at masks that are inputs."""
        if x in self._computed:
            return True
        asking = sys._getframe(2)
        while asking.f_back is not None and asking.f_code.co_filename.startswith(_DISPATCH):
            asking = asking.f_back
        return not asking.f_code.co_filename.startswith(_LIBRARIES)


def kind_of(func: Any) -> str:
    """The name of an operation, the same in place or not."""
    name: str = func._overloadpacket.__name__
    return name.rstrip("_") if not name.startswith("__") else name


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in arguments or results, also of Hugging Face models."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [x for one in tree.values() for x in tensors(one)]
    return [x for one in tree for x in tensors(one)] if isinstance(tree, list | tuple) else []


def unknown(flow: Flow, kind: str, followed: Sequence[Tensor]) -> Put:
    """An operation that is not known: nothing that comes to it can go."""
    for x in followed:
        flow.fix(x, f"torch's {kind}, which is not known here, takes it{flow.at()}")

    def put(out: Any) -> None:
        for x in tensors(out):
            flow.put(x, [None] * x.dim())

    return put
