"""Noticing what is written to pruned weights behind the Pruner's back."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from prunewald.distributed import in_group, refuse_sharded
from prunewald.model.modules import plain
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.owning import hand_over
from prunewald.pruning.waiting import Waiting
from prunewald.util.notices import warn
from prunewald.util.text import some

_SHOWN = 3  # so many parameters are named in a warning
_LOADED = (
    "the state_dict that was loaded has weights where {} is pruned: they were set to zero again; "
    "pruner.reset() before loading gives them back"
)
_WRITTEN = (
    "pruned weights of {} were written to outside of the steps that this Pruner sees ({}): "
    "they were set to zero again, and will be without a further word"
)
_BY = (
    "by {} outside of step(), an averaged copy, an adapter that was merged, `.data`, a parameter that was replaced, "
    "or an optimizer that Pruner(model, optimizer) was not given"
)
_LOST = (
    "{!r} was taken from the model, or has another shape now: this Pruner holds none of its zeros any more; attach a "
    "new one"
)
_NO_OPTIMIZER = (
    "it was given no optimizer: give the one that steps, as Pruner(model, optimizer), or call apply_() after each step"
)


@dataclass(eq=False)
class ModelHook:
    """A hook on a module that leaves no trace in copies: pickled or copied it is a function that does nothing.

    That function is the standard library's, so a model that was saved whole loads without prunewald.
    """

    call: Callable[..., None]

    def __call__(self, *args: Any) -> None:
        """Look, except in a graph."""
        # In a graph that is compiled, exported or traced there is nothing to look at, and where each operation is
        # followed, as when coupled groups are found, a look would be taken for a part of the model.
        traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        if not traced and not is_in_torch_dispatch_mode():
            self.call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


@dataclass(eq=False)
class Guard:
    """Looks after the zeros of a model where no optimizer step does: in forward passes and in state dicts.

    Before the first forward pass in eval mode, before a state_dict and after load_state_dict every pruned weight is
    looked at. Between, a forward pass looks only where torch has counted a write to the tensor since the last look.
    A part of the model that is used by itself, such as an encoder, looks at its own weights.
    What a load_state_dict wrote to pruned weights is kept until the model is used: a checkpoint is loaded in parts.
    """

    model: nn.Module
    zeros: Zeros
    optimizers: Sequence[str] = ()  # the names of their kinds, as the caller gave them
    waiting: Waiting = field(default_factory=Waiting)
    given: nn.Module | None = None  # the model as it was given
    said: bool = False  # whether it was said that something else writes to pruned weights
    stale: set[str] = field(default_factory=set)  # what may have been written to since the last look in eval mode
    handles: list[Any] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # parameters that are gone, of which it was said
    loaded: dict[str, Tensor] = field(default_factory=dict)  # what load_state_dict wrote to pruned weights, until a use

    def watch(self) -> None:
        """Begin to look, from the first pruning on."""
        if not self.handles:
            self.stale = set(self.zeros.held)
            for module, names in self._users().items():
                forward, saving, loading = (
                    ModelHook(partial(call, names))
                    for call in (self._before_forward, self._before_saving, self._after_load)
                )
                self.handles += [
                    module.register_forward_pre_hook(forward),
                    module.register_state_dict_pre_hook(saving),
                    module.register_load_state_dict_post_hook(loading),
                ]
            if self.given is not None and type(self.given).__name__ == "OptimizedModule":  # what it calls skips hooks
                hook = ModelHook(partial(self._before_forward, self.zeros.held))
                self.handles.append(self.given.register_forward_pre_hook(hook))

    def _users(self) -> dict[nn.Module, Collection[str]]:
        """By module, the parameters that its forward pass may use: of the whole model, and of the parts with weights.

        Some modules use the weights of their children and never call these, as attention does its output projection.
        """
        inside, parts = plain(self.model), dict[nn.Module, list[str]]()
        for name in self.zeros.held:
            owner = name.rpartition(".")[0]
            for place in {owner, owner.rpartition(".")[0]} - {""}:
                parts.setdefault(inside.get_submodule(place), []).append(name)
        return {**parts, self.model: self.zeros.held}

    def wait(self) -> None:
        """Begin at once, since a schedule waits for steps."""
        self.waiting.scheduled = True
        self.watch()

    def look(self, names: Iterable[str] | None = None) -> None:
        """Look at the pruned weights of these parameters, or of all; set to zero what is not, and say so once."""
        if not self.zeros.attached:
            return
        revived = []
        for name in self.zeros.alive if names is None else names:
            if self.zeros.revived(name):
                revived.append(name)
            else:
                self.zeros.looked_(name)
        if revived:
            with torch.no_grad():
                for name in revived:
                    self.zeros.hold_(name)
            if not self.said:
                self.said = True
                kinds = some(dict.fromkeys(self.optimizers), _SHOWN)
                warn(_WRITTEN.format(some(map(repr, revived), _SHOWN), _BY.format(kinds) if kinds else _NO_OPTIMIZER))

    @torch.no_grad()
    def put_back_(self) -> None:
        """Give the pruned weights back what was loaded and not used yet: other masks come next, or none.

        What was written to the tensor since then stays as it is.
        """
        for name, values in self.loaded.items():
            param = self.zeros.held[name]
            if param.shape == values.shape and not param.is_meta:
                param.copy_(torch.where(self.zeros.mask(name) | (param != 0), param, values.to(param)))
        self.loaded = {}

    def settle(self) -> None:
        """The model is used with what was loaded: where that was denser than the masks, say so."""
        if self.loaded:
            names, self.loaded = list(self.loaded), {}
            warn(_LOADED.format(some(map(repr, names), _SHOWN)))

    def stepped(self) -> None:
        """There was a step of an optimizer that is watched."""
        self.settle()
        self.waiting.stepped()

    def release(self) -> None:
        """Look no more, and leave the model what was loaded into it last."""
        self.put_back_()
        self.said = False
        self.unwatch()

    def unwatch(self) -> None:
        """Take the hooks away; where more is held from now on, `watch` sets them anew."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _before_forward(self, names: Collection[str], module: nn.Module, args: Any) -> None:
        whole = names is self.zeros.held
        if whole and in_group():
            refuse_sharded(self.model, self.zeros.params)
        self.settle()
        if module.training:
            self.stale.update(names)
            self.look(self.zeros.touched(names))
            if whole and torch.is_grad_enabled():
                self.waiting.passed(self.zeros.params, self.optimizers)
        else:
            due = self.stale.union(self.zeros.touched(names))
            self.look([name for name in names if name in due])
            self.stale.difference_update(names)

    def _before_saving(self, names: Collection[str], module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if prefix and module is not self.model:
            return  # a part of what is saved, which was looked at as a whole
        self.settle()
        self.find()
        self.look(names)

    def _after_load(self, names: Collection[str], module: nn.Module, keys: Any) -> None:
        self.find()
        with torch.no_grad():
            for name in names:
                if self.zeros.touched([name]):  # what an earlier load brought was loaded over
                    self.loaded.pop(name, None)
                if self.zeros.revived(name):
                    self.loaded[name] = self.zeros.held[name].detach().clone()
                    self.zeros.hold_(name)

    def find(self) -> None:
        """Go over to the tensors that stand in the parameters' places now, as after load_state_dict(assign=True).

        Not in a forward pass: that of functional_call puts others there for a while.
        """
        if in_group():
            refuse_sharded(self.model, self.zeros.params)
        present: Mapping[str, Tensor] = dict(plain(self.model).named_parameters(remove_duplicate=False))
        for name, param in list(self.zeros.held.items()):
            now = present.get(name)
            if now is not None and now is not param and now.shape == param.shape:
                hand_over(param, now)
                self.zeros.rebind_(name, now)
            elif (now is None or now is not param) and name in self.zeros.alive and name not in self.lost:
                self.lost.add(name)
                warn(_LOST.format(name))
