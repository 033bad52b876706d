"""Hard zeros: what is pruned stays at zero, after every step and in every gradient."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.modules import averaged, plain
from prunewald.pruning.holding.holding import Holding
from prunewald.util.notices import warn
from prunewald.util.tensors import capturing, zero_

_CAPTURED = "a step was captured in a CUDA graph before {}, and a replay goes on as if nothing changed: capture it anew"


class Zeros(Holding):
    """The masks of some parameters, and what keeps pruned weights and their gradients at zero.

    Every other way of holding weights stands on this one: it asks here which weights are alive. Beside the targets it
    may hold entries of biases and norms, which go with pruned filters, and are counted nowhere.
    """

    def __init__(self, params: dict[str, Tensor]) -> None:
        self.params = params
        self.beside: dict[str, Tensor] = {}
        self.held: ChainMap[str, Tensor] = ChainMap(params, self.beside)  # all of them
        self.beside_owners: list[list[str]] = []  # what is beside, by the optimizer that steps it
        self.alive: dict[str, Tensor] = {}  # the masks of the parameters where anything was pruned
        self.changes = 0  # how often masks were set: they are written in place, so that it cannot be seen from them
        self.copies: dict[nn.Module, dict[str, Tensor]] = {}  # each with its parameters that are held here
        self.attached = True
        self.hard = True  # False: pruned weights learn on in the dark, so neither steps nor gradients are masked
        self.captured: frozenset[str] | None = None  # what was held in a step that a CUDA graph captured; None: no step
        self._hooks: dict[str, Any] = {}
        self._seen: dict[
            str, tuple[int, int]
        ] = {}  # where a tensor was when it was last found to be zero, and its count of writes

    def mask(self, name: str) -> Tensor:
        """True where a weight is alive, on the device where the parameter is now."""
        param = self.held[name]
        if name not in self.alive:
            return torch.ones((), dtype=torch.bool, device=param.device).expand(param.shape)
        if self.alive[name].device != param.device:
            self.alive[name] = self.alive[name].to(param.device)
        return self.alive[name]

    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return {name: self.mask(name).clone() for name in self.params}

    def ready_(self, names: Collection[str]) -> None:
        """Nothing has to be done before a step: gradients are masked as they come."""

    def settle_(self, names: Collection[str]) -> None:
        """Set the pruned weights of these parameters to zero again; a graph may still need the others as they are."""
        if capturing():
            self.captured = frozenset(self.alive)
        for name in self.alive if self.hard else ():
            if name in names:
                param = self.held[name]
                zero_(param, self.mask(name))
                self.hook_(name)
                self._seen[name] = param.data_ptr(), param._version

    def hold_(self, name: str) -> None:
        """Zero the pruned weights of a parameter, here and in the copies, and their gradients from now on."""
        self.hook_(name)
        param, alive = self.held[name], self.mask(name)
        zero_(param, alive)
        for copy in self.copies.values():
            zero_(copy[name], alive.to(copy[name].device))
        if self.hard and param.grad is not None and not param.grad.is_sparse:
            zero_(param.grad, alive)
        self._seen[name] = param.data_ptr(), param._version

    def looked_(self, name: str) -> None:
        """Count writes to a parameter from now on: as it is, its pruned weights are zero."""
        self._seen[name] = self.held[name].data_ptr(), self.held[name]._version

    def touched(self, names: Iterable[str]) -> list[str]:
        """Which of these were written to since they were last zeroed or looked at, as far as torch counts writes."""
        now = ((name, self.held[name]) for name in names if name in self.alive)
        return [name for name, param in now if self._seen.get(name) != (param.data_ptr(), param._version)]

    def revived(self, name: str, present: Tensor | None = None) -> int:
        """How many pruned weights of a parameter are not zero, or of what stands in its place at present."""
        if name not in self.alive:
            return 0
        param = self.held[name] if present is None else present
        return int(torch.count_nonzero(param.detach().masked_fill(self.mask(name), 0.0)))

    def rebind_(self, name: str, param: Tensor) -> None:
        """Hold another tensor under a name, as after load_state_dict(assign=True)."""
        if hook := self._hooks.pop(name, None):
            hook.remove()
        (self.params if name in self.params else self.beside)[name] = param
        if name in self.alive:
            self.hook_(name)

    def clear_(self) -> None:
        """Prune nothing any more: the weights keep their values, zeros included, and all of them train."""
        self.changes += 1
        if self.captured:
            warn(_CAPTURED.format("its masks were dropped"))
        self.captured = None
        for hook in self._hooks.values():
            hook.remove()
        self._hooks, self._seen, self.alive, self.hard = {}, {}, {}, True
        self.beside.clear()

    def hook_(self, name: str) -> None:
        """Mask the gradient after every backward pass, from when the parameter takes one."""
        param = self.held[name]
        if self.attached and param.requires_grad and name not in self._hooks:
            self._hooks[name] = param.register_post_accumulate_grad_hook(partial(self._mask_grad, name))

    def _mask_grad(self, name: str, param: Tensor) -> None:
        # A sparse gradient has no place to mask; its weight is zeroed after the step all the same.
        if self.hard and param.grad is not None and not param.grad.is_sparse:
            zero_(param.grad, self.mask(name))

    def follow(self, copy: nn.Module) -> None:
        """Zero the pruned weights in a copy of the model too, now and whenever masks change."""
        inside = averaged(copy)
        found = dict(inside.named_parameters(remove_duplicate=False))
        for name, param in self.held.items():
            if name not in found or found[name].shape != param.shape:
                held = f"of shape {tuple(found[name].shape)}" if name in found else "missing"
                raise ValueError(
                    f"{type(inside).__name__} is no copy of the model: its {name!r} is {held}, "
                    f"and should have shape {tuple(param.shape)}"
                )
            if found[name] is param:
                raise ValueError(
                    f"{name!r} is the model's own parameter: follow() is for copies, such as AveragedModel"
                )
        self.copies[plain(copy)] = {name: found[name] for name in self.held}
        for name in self.alive:
            zero_(found[name], self.mask(name).to(found[name].device))

    def join_(self, params: Mapping[str, Tensor], owners: list[list[str]]) -> None:
        """Hold entries of these parameters too, beside the targets, here and in the copies."""
        self.beside.update(params)
        self.beside_owners = owners
        for copy, own in self.copies.items():
            found = dict(averaged(copy).named_parameters(remove_duplicate=False))
            own.update({name: found[name] for name in params})

    def set_(self, masks: Mapping[str, Tensor]) -> None:
        """Hold by these masks from now on."""
        self.put_(masks)
        for name in masks:
            self.hold_(name)

    def put_(self, masks: Mapping[str, Tensor]) -> None:
        """Take these masks, and leave the weights as they are.

        A mask is written over the one before: a captured CUDA graph goes on reading from that memory.
        """
        self.changes += 1
        if self.captured is not None and not masks.keys() <= self.captured:
            self.captured = None
            warn(_CAPTURED.format("this pruning"))
        for name, mask in masks.items():
            held = self.alive.get(name)
            if held is None or held.device != self.held[name].device:
                self.alive[name] = mask
            else:
                held.copy_(mask)

    def end_(self) -> None:
        """Let go: the zeros stay, nothing holds them any more."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks, self.attached = {}, False
        self.copies.clear()
