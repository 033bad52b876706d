"""Where a gradient of the data arrives: what none reaches is dead."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakMethod, finalize

import torch
from torch import Tensor

from prunewald.core.base import State
from prunewald.distributed import in_any
from prunewald.model.penalties import tracing, without_penalties
from prunewald.pruning.resuming import check_states, packed, unpacked
from prunewald.util.tensors import accumulator, capturing
from prunewald.util.trees import copied

_MARKS = {"current": 1, "previous": 2, "observed": 4}  # the bits of a mark, by their names in a checkpoint
_NOW, _BEFORE, _OBSERVED = _MARKS.values()
_FEW = 0.5  # where no more than this share of rows by columns is left to look at, only these are


@dataclass(eq=False)
class _Ear:
    """A hook on a parameter, to be told from those of others; it keeps nobody alive."""

    hear: WeakMethod[Callable[[str, Tensor], None]]
    name: str

    def __call__(self, grad: Tensor) -> None:
        if hear := self.hear():
            hear(self.name, grad)


class Reach:
    """Marks, a byte a weight, where a gradient of the data arrived in each of two blocks of `length` steps.

    A weight is dead where none arrived in this block and the one before: in no step of the last `length`, or more. A
    hook looks at the gradient as backward adds it, before it is clipped, unscaled or decayed, and takes from it what
    penalties added; where the user adds a hook, from the pass after on it comes behind that. A gradient that no
    backward pass brought, since it was written to `.grad`, is taken as it is.
    What `observing()` marks holds as long: then the steps after it tell by themselves.
    """

    def __init__(self, params: Mapping[str, Tensor], owners: Sequence[Sequence[str]], length: int, on: bool) -> None:
        self._params, self._owners, self.length, self._on = params, owners, length, on
        self._hooks: dict[str, tuple[Tensor, Any]] = {}
        self._end = finalize(self, _unhook_, self._hooks)  # also where nobody lets go of it
        self._bit = _NOW
        self.restart()
        if on:
            for own in owners:
                self._hook_(own)

    def restart(self) -> None:
        """Forget everything, as after a pruning: it was of a model with other weights."""
        self._marks: dict[str, Tensor] = {}
        self._steps: dict[str, int] = {}  # watched, by parameter
        self._left: dict[str, int] = {}  # steps for which what was observed still holds
        self._heard: set[str] = set()  # whose gradient came by a backward pass since the last step
        self._full: set[str] = set()  # what is marked everywhere in this block
        self._open: dict[str, tuple[Tensor, Tensor]] = {}  # of what nearly is: the rows and columns that are not

    # ---- marking ---------------------------------------------------------------------------------------------------

    def _hook_(self, names: Sequence[str]) -> None:
        """Listen to gradients, from when a parameter takes them on, and to those of one that took its place."""
        for name in names:
            param, (hooked, handle) = self._params[name], self._hooks.get(name, (None, None))
            if param.requires_grad and (hooked is not param or not self._is_last(name)):
                if handle is not None:
                    handle.remove()
                self._hooks[name] = param, param.register_hook(_Ear(WeakMethod(self._hear), name))

    def _hear(self, name: str, grad: Tensor) -> None:
        """A gradient arrives."""
        if tracing():
            return
        param = self._params[name]
        with torch.no_grad():
            data = without_penalties(param, grad.detach())
            self._heard.add(name)
            if self._is_last(name):
                self._mark_(name, data)
            else:
                self._hook_([name])

    def _is_last(self, name: str) -> bool:
        """Whether no hook of the user's own, which may cut the gradient, comes after the one here."""
        param, handle = self._hooks[name]
        hooks: Any = param._backward_hooks
        # Of a list, since a Pruner that is collected meanwhile takes its own hook away.
        after = takewhile(lambda key: key != handle.id, reversed(list(hooks)))
        return all(isinstance(hooks.get(key), _Ear | None) for key in after)

    def _mark_(self, name: str, grad: Tensor) -> None:
        """Remember where a gradient is not zero."""
        if self._bit == _NOW and name in self._full:
            return
        marks = self._marks.get(name)
        if marks is None or marks.device != grad.device:
            blank = torch.zeros(grad.shape, dtype=torch.uint8, device=grad.device)
            marks = self._marks[name] = blank if marks is None else marks.to(grad.device)
        if grad.is_sparse:
            grad = grad.coalesce()
            at = tuple(grad.indices())
            marks[at] = marks[at] | self._bits(grad.values())
        elif self._bit == _NOW and name in self._open:
            rows, columns = (place.to(grad.device) for place in self._open[name])
            some = grad.index_select(0, rows).reshape(len(rows), -1).index_select(1, columns)
            table, place = marks.view(len(marks), -1), (rows[:, None], columns)
            table[place] = table[place] | self._bits(some)
        else:
            marks.bitwise_or_(self._bits(grad))

    def _bits(self, values: Tensor) -> Tensor:
        """The mark where a value is not zero; nothing of a gradient with inf or NaN, whose step is skipped."""
        some = values.bool()  # several times faster than a comparison
        total = values.sum(dtype=accumulator(values))
        if not values.is_cpu:
            some.logical_and_(total.isfinite())  # nothing waits for the device
        elif not math.isfinite(total):
            some.zero_()
        bits = some.view(torch.uint8)  # of the marks' own type, or they would be widened
        return bits if self._bit == _NOW else bits.mul_(self._bit)

    @torch.no_grad()
    def update_(self, at: int) -> None:
        """One optimizer has stepped."""
        own = [name for name in self._owners[at] if self._params[name].requires_grad]
        for name in own:
            self._pass_(name)
        if self._on:
            self._hook_(own)
            self._look_full_(own)

    def _pass_(self, name: str) -> None:
        """A step of one parameter: a new block begins where one is full, and what was observed holds for one less."""
        if self._on:
            grad = self._params[name].grad
            if name not in self._heard and grad is not None:
                self._mark_(name, grad.detach())
            self._heard.discard(name)
            self._steps[name] = self._steps.get(name, 0) + 1
        marks = self._marks.get(name)
        if self._on and self._steps[name] % self.length == 0:
            self._full.discard(name)
            self._open.pop(name, None)
            if marks is not None:
                marks.copy_((marks & _NOW) * _BEFORE | marks & _OBSERVED)
        if name in self._left:
            self._left[name] -= 1
            if not self._left[name]:
                del self._left[name]
                if marks is not None:
                    marks.bitwise_and_(_NOW | _BEFORE)

    def _look_full_(self, names: Sequence[str]) -> None:
        """Find where marks are missing yet, so that no more is looked at; seldom, since devices are waited for."""
        if capturing():
            return
        for name in names:
            if name in self._marks and name not in self._full and _power_of_two(self._steps[name], self.length):
                marks = self._marks[name]
                missing = (marks.view(len(marks), -1) & _NOW) == 0
                rows, columns = (missing.any(axis).nonzero()[:, 0] for axis in (1, 0))
                if not len(rows):
                    self._full.add(name)
                elif len(rows) * len(columns) <= _FEW * marks.numel():
                    self._open[name] = rows, columns

    @contextmanager
    def observing(self) -> Iterator[list[str]]:
        """Inside a with block gradients come from a pass over data, and not from training; yields whose."""
        names = [name for name, param in self._params.items() if param.requires_grad]
        heard, own = self._heard.copy(), dict(self._hooks)
        for name in names:
            self._left.pop(name, None)
            if name in self._marks:
                self._marks[name].bitwise_and_(_NOW | _BEFORE)
        self._hook_(names)
        self._bit = _OBSERVED
        try:
            yield names
            self._left |= dict.fromkeys(names, self.length)
        finally:
            self._bit, self._heard = _NOW, heard
            for name in self._hooks.keys() - own.keys():
                self._hooks.pop(name)[1].remove()

    # ---- what it tells ---------------------------------------------------------------------------------------------

    def dead(self, name: str, patience: int = 0) -> Tensor | None:
        """True where no gradient of the data arrived, in any of the processes that train together; None: unknown.

        With `patience` it is unknown before so many steps too.
        """
        enough = name in self._left or self._steps.get(name, 0) >= max(self.length, patience)
        return self._unreached(name) if enough and self._params[name].requires_grad else None

    def idle(self, name: str) -> bool:
        """Whether a parameter was watched, and got no gradient at all."""
        return self._on and self._steps.get(name, 0) > 0 and bool(self._unreached(name).all())

    def why_not(self, name: str) -> str:
        """Why it is not known which weights of a parameter are dead."""
        steps = self._steps.get(name, 0)
        return f"{steps:,} of {self.length:,} steps were watched" if steps else "nothing was watched"

    def _unreached(self, name: str) -> Tensor:
        param, marks = self._params[name], self._marks.get(name)
        if marks is None:
            marks = torch.zeros(param.shape, dtype=torch.uint8, device=param.device)
        return ~in_any(marks.to(param.device).bool())

    # ---- resume ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[State, ...]:
        """What a checkpoint needs: marks at a bit each, and counts; one piece, as the states of estimators are."""
        marks = {key: {n: (m & bit).bool() for n, m in self._marks.items()} for key, bit in _MARKS.items()}
        tables = {key: found if any(map(torch.any, found.values())) else {} for key, found in marks.items()}
        return (packed({**tables, "steps": dict(self._steps), "left": dict(self._left)}),)

    def check_state(self, saved: Any) -> None:
        """Refuse a saved state of other parameters."""
        if saved:
            own = [{**_MARKS, "steps": {}, "left": {}}]
            check_states("dead weights", unpacked(saved), own, [list(self._params)], self._params)

    def load_state_dict(self, saved: Sequence[State]) -> None:
        """Go on from a checked state; without one, anew."""
        self.restart()
        if not saved:
            return
        found = copied(unpacked(saved[0]))
        self._steps, self._left = found["steps"], found["left"]
        for key, bit in _MARKS.items():
            for name, marks in found[key].items():
                own = self._marks.setdefault(name, torch.zeros(marks.shape, dtype=torch.uint8, device=marks.device))
                own.bitwise_or_(marks * bit)

    def release(self) -> None:
        """Listen no more."""
        self._end()
        self._on = False


def _unhook_(hooks: dict[str, tuple[Tensor, Any]]) -> None:
    for _, handle in hooks.values():
        handle.remove()
    hooks.clear()


def _power_of_two(steps: int, length: int) -> bool:
    """Whether so many steps of a block are over: 1, 2, 4, 8 ..."""
    inside = steps % length
    return inside > 0 and inside & (inside - 1) == 0
