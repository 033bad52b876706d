"""What units cost: which share of weights, parameters or multiplications is gone where some units are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from prunewald.model.groups import Group
from prunewald.pruning.grouped import Coupled, places
from prunewald.pruning.plan import Of

Chosen: TypeAlias = Mapping[str, Tensor]  # by group, True for each unit that stays


@dataclass(frozen=True)
class _Axis:
    """The length of one axis of a tensor, and which units have places along it."""

    length: int
    places: list[tuple[str, Tensor]]  # a group, and of each of its units the places

    def alive(self, chosen: Chosen) -> Tensor:
        """1 for each place of which no unit is gone."""
        alive = torch.ones(self.length, dtype=torch.float64, device="cpu")
        for name, at in self.places:
            alive[at[~chosen[name]].flatten()] = 0
        return alive


@dataclass(frozen=True)
class _Part:
    """A tensor of which places go with units: the price of each entry, and how many there are."""

    price: float
    axes: dict[int, _Axis]
    rest: float  # entries at each place of these axes; of a tensor that has holes the tensor `entries` says it
    entries: Tensor | None

    def left(self, chosen: Chosen) -> float:
        """What the entries cost that stay."""
        alive = [self.axes[axis].alive(chosen) for axis in sorted(self.axes)]
        if self.entries is None:
            count = self.rest
            for one in alive:
                count *= float(one.sum())
            return self.price * count
        left = self.entries
        for one in alive:
            left = torch.tensordot(left, one, dims=([0], [0]))
        return self.price * float(left)


class Ledger:
    """Counts what is left when some units of some groups stay, in one currency."""

    def __init__(self, coupled: Coupled, of: Of, params: Mapping[str, Tensor], alive: Mapping[str, Tensor]) -> None:
        """`params` are all of the model, `alive` the masks of the targets."""
        self._filters = of == "filters"
        prices: Mapping[str, float] = coupled.uses
        if of == "weights":
            prices = dict.fromkeys(alive, 1.0)
        elif of == "parameters":
            prices = dict.fromkeys(params, 1.0)
        axes: dict[str, dict[int, _Axis]] = {}
        for group in coupled.groups:
            for member in group.members:
                if member.name in params:
                    length = params[member.name].shape[member.axis]
                    axis = axes.setdefault(member.name, {}).setdefault(member.axis, _Axis(length, []))
                    axis.places.append((group.name, member.at.cpu()))
        masks = alive if of == "weights" else {}
        self._parts = [_part(prices[n], params[n], axes[n], masks.get(n)) for n in axes if prices.get(n)]
        others = [n for n in prices if n not in axes]
        self._fixed = sum(prices[n] * float(masks[n].sum() if n in masks else params[n].numel()) for n in others)
        self.total = sum(price * params[name].numel() for name, price in prices.items())
        if self._filters:
            self.total = float(sum(group.units for group in coupled.groups))

        if not self.total and coupled.groups:
            raise ValueError(
                f"of={of!r}: no layer whose multiplications are known is called by this model, so choose another"
            )

    def gone(self, chosen: Chosen) -> float:
        """The share that is gone where these units stay."""
        if self._filters:
            return 1 - sum(int(one.sum()) for one in chosen.values()) / self.total
        return 1 - (self._fixed + sum(part.left(chosen) for part in self._parts)) / self.total


def _part(price: float, param: Tensor, axes: dict[int, _Axis], mask: Tensor | None) -> _Part:
    rest = float(param.numel())
    for axis in axes.values():
        rest /= axis.length
    if mask is None or bool(mask.all()):
        return _Part(price, axes, rest, None)
    others = [axis for axis in range(mask.dim()) if axis not in axes]
    entries = mask.sum(others) if others else mask
    return _Part(price, axes, rest, entries.double().cpu())


def without(groups: Sequence[Group], chosen: Chosen, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks of some tensors less all that goes with the units that do not stay."""
    found = {name: mask.clone() for name, mask in masks.items()}
    for group in groups:
        for member in group.members:
            if member.name in found:
                mask = found[member.name]
                mask.index_fill_(member.axis, places(member, ~chosen[group.name]).to(mask.device), False)
    return found
