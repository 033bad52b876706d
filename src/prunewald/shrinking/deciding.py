"""Which units can go without changing what a model gives, what they leave behind, and why others stay."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunewald.model.coupling import Ids
from prunewald.model.graph import Graph, follow
from prunewald.model.groups import Group
from prunewald.model.layouts import survey
from prunewald.model.masking import Masks
from prunewald.model.widths import CONFIG, Widths, cut
from prunewald.shrinking.constants import Constants, Reading
from prunewald.util.text import some

_SHOWN = 5
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "num_key_value_heads")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "hidden_dim")


@dataclass(frozen=True)
class Decision:
    """Which units of a model go: by the name of a group, True for each of its units that does."""

    model: nn.Module
    graph: Graph
    gone: dict[str, tuple[Group, Tensor]]
    readings: list[Reading]
    stay: dict[str, str]  # layers with rows that are pruned whole, and stay: why
    alive: Mapping[str, Tensor]
    pruner: bool

    def goes(self, ids: Ids) -> NDArray[np.bool_]:
        """True for each unit that goes, by numbers."""
        return np.isin(self.graph.units.roots(ids), self._roots())

    def kept(self) -> dict[str, list[Tensor | None]]:
        """Of each tensor that is cut, which positions along each axis stay."""
        roots = self._roots()
        found: dict[str, list[Tensor | None]] = {}
        for name, axes in self.graph.roots.items():
            stays = [~np.isin(ids, roots) for ids in axes]
            if not all(one.all() for one in stays):
                found[name] = [None if one.all() else torch.from_numpy(np.flatnonzero(one)) for one in stays]
        return found

    @torch.no_grad()
    def fold_(self, model: nn.Module) -> None:
        """Add to the biases of a model what units that go would have given."""
        params = dict(model.named_parameters()) | dict(model.named_buffers())
        for reading, at in self._folds(params):
            assert reading.bias is not None
            weight, bias = params[reading.weight], params[reading.bias]
            columns = weight.detach().movedim(reading.axis, 0)[at.to(weight.device)].double()
            columns = columns.flatten(2).sum(2) if columns.dim() > 2 else columns
            bias += (reading.value[at].to(weight.device) @ columns).to(bias.dtype)

    def why_nothing(self) -> str:
        """Why no unit can go, and what to do."""
        dead = sum(int((~alive).sum()) for alive in self.alive.values())
        what = "pruned" if self.pruner else "zero"
        said = f"nothing can be removed from this {type(self.model).__name__}: "
        said += f"{dead:,} weights are {what}, " if dead else f"no weight is {what}. "
        if dead and not self.stay:
            said += "but no filter, neuron or head whole. "
        elif dead:
            said += f"and what is pruned whole cannot go: {self._reasons()}. "
        remedy = "Pruner(model, pattern=pw.Filter()).prune(share, example_inputs=...) prunes units"
        return f"{said}{remedy} whole, each with all that goes with it"

    def notes(self) -> list[str]:
        """What the user should know of the smaller model."""
        found = [f"some of what is pruned whole stays in the smaller model: {self._reasons()}"] if self.stay else []
        kept, weights = self.kept(), survey(self.model).weights
        left = sum(int((~cut(self.alive[name], kept.get(name, ()))).sum()) for name in self.alive if name in weights)
        if left and (self.pruner or left > 0.001 * sum(self.alive[name].numel() for name in weights)):
            found.append(
                f"{left:,} weights of the smaller model are zero: Pruner(small, optimizer).hold_zeros() keeps them so"
            )
        return found

    def _reasons(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in list(self.stay.items())[:_SHOWN]) + (
            f"; and {len(self.stay) - _SHOWN} more layers" if len(self.stay) > _SHOWN else ""
        )

    def _folds(self, params: Mapping[str, Tensor]) -> Iterator[tuple[Reading, Tensor]]:
        """What is read that goes and is a constant other than zero: the positions of it."""
        kept = self.kept()
        for reading in self.readings:
            stays = kept[reading.weight][reading.axis] if reading.weight in kept else None
            if stays is not None:
                goes = torch.ones(len(reading.value)).bool().index_fill(0, stays, False)
                at = goes & ~_dead(params[reading.weight] != 0, reading.axis) & (reading.value != 0)
                if at.any():
                    yield reading, at.nonzero().flatten()

    def _roots(self) -> Ids:
        roots = [
            self.graph.roots[member.name][member.axis][member.at[gone, 0].numpy()]
            for group, gone in self.gone.values()
            for member in group.members[:1]
        ]
        return np.concatenate(roots) if roots else np.zeros(0, np.int64)


def decide(model: nn.Module, example_inputs: Any, masks: Masks | None) -> Decision:
    """Find the units that can go from a model whose pruned weights are zero."""
    params = dict(model.named_parameters())
    given = {name: p.detach() != 0 for name, p in params.items()} if masks is None else masks
    alive = {
        name: given[name].to(p.device) if name in given else torch.ones_like(p).bool() for name, p in params.items()
    }
    constants = Constants({p: alive[name] for name, p in params.items()})
    graph = follow(model, example_inputs, constants)
    readings: dict[tuple[str, int], list[Reading]] = {}
    for reading in constants.readings:
        readings.setdefault((reading.weight, reading.axis), []).append(reading)
    shared = Counter(reading.bias for reading in constants.readings)
    gone: dict[str, tuple[Group, Tensor]] = {}
    stay: dict[str, str] = {}
    for group in graph.groups:
        units = _free(group, readings, alive, shared, stay)
        if units.all():
            units[0] = False
            stay[group.name] = "all of it is pruned, so one unit stays"
        if units.any():
            gone[group.name] = group, units
    found = Decision(model, graph, gone, constants.readings, stay, given, masks is not None)
    _fixed(model, graph, alive, stay)
    return found


def _dead(alive: Tensor, axis: int) -> Tensor:
    """Of each position along an axis of a weight, whether all of it is pruned."""
    return ~alive.movedim(axis, 0).reshape(alive.shape[axis], -1).any(1).cpu()


def _free(
    group: Group,
    readings: Mapping[tuple[str, int], list[Reading]],
    alive: Mapping[str, Tensor],
    shared: Mapping[str | None, int],
    stay: dict[str, str],
) -> Tensor:
    """Which units of a group can go: what reads them reads constants that can be folded, or does not read them."""
    at = [(member, _dead(alive[member.name], member.axis)) for member in group.members if member.name in alive]
    made = {member.name: dead[member.at].all(1) for member, dead in at if member.role == "makes"}
    unmade = torch.stack(list(made.values())).all(0)
    found = torch.stack([dead[member.at].all(1) for member, dead in at]).any(0)
    read = False
    for member, dead in at:
        for reading in readings.get((member.name, member.axis), ()):
            read = True
            foldable = reading.bias is not None and shared[reading.bias] == 1
            silent = dead | (reading.constant & (~reading.value.isnan() if foldable else reading.value == 0))
            own = silent[member.at].all(1)
            found &= own
            if left := int((unmade & ~own).sum()):
                stay[group.name] = (
                    f"{left} units that are pruned still give {member.name!r} a constant, from a bias, a norm or a "
                    "function that is not 0 at 0, and there is no bias that could take it up (a convolution that pads "
                    "has none for this)"
                )
    found = found if read else torch.zeros(group.units).bool()
    ways = torch.stack(list(made.values())).any(0)
    if left := int((ways & ~unmade & ~found).sum()):
        others = [name for name, own in made.items() if (~own & ways & ~found).any()]
        stay.setdefault(group.name, f"{left} units are made by {some(others, 3)} too, which keeps them")
    return found


def _fixed(model: nn.Module, graph: Graph, alive: Mapping[str, Tensor], stay: dict[str, str]) -> None:
    """Note rows that are pruned whole and can never go."""
    for name, layout in survey(model).weights.items():
        axis = int(layout.transposed)
        if layout.stacked or layout.groups > 1 or name not in graph.roots:
            continue
        dead = _dead(alive[name], axis).numpy()
        reasons = [graph.fixed.get(int(root)) for root in graph.roots[name][axis][dead]]
        if told := [reason for reason in reasons if reason is not None]:
            stay.setdefault(name.removesuffix(".weight"), f"of what is pruned {len(told)} units stay, since {told[0]}")


def configured(model: nn.Module, found: Decision) -> Widths:
    """Entries of a Hugging Face configuration that are the same for all layers afterwards."""
    config = vars(model).get("config")
    entries = {key: value for key, value in vars(config).items() if type(value) is int} if config is not None else {}
    sizes: dict[str, set[int]] = {}
    for one in found.graph.cuts:
        left = int((~found.goes(one.part)).sum())
        for key in _HEADS:
            if entries.get(key) == len(one.part) and len(one.part) < len(one.whole):
                sizes.setdefault(key, set()).add(left)
    for group in found.graph.groups:
        left = group.units - int(found.gone[group.name][1].sum()) if group.name in found.gone else group.units
        for key in _INNER:
            if entries.get(key) == group.units:
                sizes.setdefault(key, set()).add(left)
    same = {
        key: left
        for key, several in sizes.items()
        if len(several) == 1 and (left := next(iter(several))) != entries[key]
    }
    return {CONFIG: same} if same else {}
