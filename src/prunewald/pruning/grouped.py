"""What goes with a unit: the coupled groups of a model, as far as they are known, and the biases and norms beside."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.graph import Graph, follow
from prunewald.model.groups import Group, Member
from prunewald.model.inputs import unread
from prunewald.model.slices import Slice
from prunewald.model.uses import uses

_BESIDE = {"weight": "bias", "in_proj_weight": "in_proj_bias"}  # by the weight, the bias that its rows have
_OTHERS = "{!r} makes them too, and is no target"
_FOREIGN = "the saved coupled groups have {!r}, which this model has not, or not of that size: it is of another one"


@dataclass(frozen=True)
class Coupled:
    """The groups of a model of which units may go, and what each weight multiplies."""

    groups: tuple[Group, ...]
    whole: Mapping[str, str]  # the targets of which no unit can go, and why
    uses: Mapping[str, float]  # by parameter, how often each weight is used for one example

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        slices: Sequence[Slice],
        used: Mapping[str, float],
        fixed: Mapping[str, str] = MappingProxyType({}),
    ) -> "Coupled":
        """Those of these groups whose makers are all targets; `fixed` are names, and why no group has their rows."""
        targets = {part.param for part in slices if part.index is None}
        free: dict[str, Group] = {}
        why = dict(fixed)
        for group in groups:
            makers = list(dict.fromkeys(member.name for member in group.members if member.role == "makes"))
            others = [name for name in makers if name not in targets]
            if others or group.units < 2:
                why |= dict.fromkeys(makers, _OTHERS.format(others[0]) if others else "it is one unit")
            elif makers:
                name, number = group.name, 1
                while name in free:  # a layer may make several
                    name, number = f"{group.name} #{number + 1}", number + 1
                free[name] = replace(group, name=name)
        made = {member.name for group in free.values() for member in group.members if member.role == "makes"}
        whole = {part.name: why.get(part.param, "no group has it") for part in slices if part.param not in made}
        return cls(tuple(free.values()), whole, used)

    def to_plain(self) -> dict[str, Any]:
        """Tensors, names and numbers."""
        return {"groups": [asdict(group) for group in self.groups], "whole": dict(self.whole), "uses": dict(self.uses)}

    @classmethod
    def from_plain(cls, saved: Mapping[str, Any], model: nn.Module) -> "Coupled":
        """What `to_plain` made of one, of a model like this."""
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        groups = []
        for group in saved["groups"]:
            members = tuple(Member(**member) for member in group["members"])
            for member in members:
                there = tensors.get(member.name)
                if there is None or member.axis >= there.dim() or int(member.at.max()) >= there.shape[member.axis]:
                    raise ValueError(_FOREIGN.format(member.name))
            groups.append(Group(group["name"], group["units"], members))
        return cls(tuple(groups), dict(saved["whole"]), dict(saved["uses"]))


class Coupling:
    """What a Pruner of whole filters knows of what goes with them: their biases, and groups once they were found."""

    def __init__(self, model: nn.Module, slices: Sequence[Slice], dim: int) -> None:
        self._model, self._slices = model, slices
        self._alone = _alone(model, slices) if dim == 0 else []
        self.coupled: Coupled | None = None

    def find(self, example_inputs: Any, groups: Sequence[Group] | None = None) -> Coupled:
        """The coupled groups of the model, as example inputs show them, or those given; nothing is remembered."""
        with unread():
            used = uses(self._model, example_inputs, "example_inputs")
            if groups is not None:
                return Coupled.of(groups, self._slices, used)
            graph = follow(self._model, example_inputs)
        fixed = {part.param: why for part in self._slices if (why := _why_fixed(graph, part)) is not None}
        return Coupled.of(graph.groups, self._slices, used, fixed)

    def beside(self, masks: Mapping[str, Tensor], coupled: Coupled | None = None) -> dict[str, Tensor]:
        """The masks of biases and entries of norms that go with what these masks of all targets prune as a whole."""
        known = coupled or self.coupled
        params = dict(self._model.named_parameters())
        found: dict[str, Tensor] = {}
        for group in (*self._alone, *(() if known is None else known.groups)):
            gone = ~living_units(group, masks)
            for member in group.members:
                if member.role == "beside" and member.name in params and member.name not in masks:
                    param = params[member.name]
                    mask = found.setdefault(member.name, torch.ones_like(param, dtype=torch.bool))
                    mask.index_fill_(member.axis, places(member, gone).to(param.device), False)
        return found


def _why_fixed(graph: Graph, part: Slice) -> str | None:
    """Why the rows of a target can never go, where that is so."""
    axis = 1 if part.layout is not None and part.layout.transposed else 0
    roots = graph.roots[part.param][axis].tolist() if part.param in graph.roots else []
    return next((graph.fixed[root] for root in roots if root in graph.fixed), None)


def places(member: Member, units: Tensor) -> Tensor:
    """Where these units, True in a mask of all, are along the axis of a member."""
    return member.at[units.to(member.at.device)].flatten()


def living_units(group: Group, masks: Mapping[str, Tensor]) -> Tensor:
    """True for each unit of which any weight that makes it is alive; on the CPU."""
    alive = torch.zeros(group.units, dtype=torch.bool, device="cpu")
    for member in group.members:
        if member.role == "makes":
            mask = masks[member.name]
            others = [axis for axis in range(mask.dim()) if axis != member.axis]
            alive |= (mask.any(others) if others else mask).cpu()[member.at.cpu()].any(1)
    return alive


def _alone(model: nn.Module, slices: Sequence[Slice]) -> list[Group]:
    """The rows of each target, with the biases of the layers that multiply by it."""
    params = {id(param): name for name, param in model.named_parameters()}
    targets = {part.param: part for part in slices if part.index is None}
    found: dict[str, Group] = {}
    for module in model.modules():
        for leaf, own in module._parameters.items():
            bias, part = module._parameters.get(_BESIDE.get(leaf, "")), targets.get(params.get(id(own), ""))
            if own is None or bias is None or part is None or own.dim() < 2 or (part.layout and part.layout.groups > 1):
                continue
            axis = 1 if part.layout is not None and part.layout.transposed else 0
            if bias.shape != own.shape[axis : axis + 1]:
                continue
            at = torch.arange(len(bias), device="cpu").unsqueeze(1)
            rows = found.get(part.param, Group(part.param, len(bias), (Member(part.param, axis, at, "makes"),)))
            more = Member(params[id(bias)], 0, at, "beside")
            found[part.param] = replace(rows, members=(*rows.members, more))
    return list(found.values())
