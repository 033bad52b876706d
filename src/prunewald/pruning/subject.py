"""What a Pruner prunes, and one pruning of it from the plan down: sigma, scores, counts, masks, report, holding."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.core.base import Estimate, Online
from prunewald.core.weights import Weight
from prunewald.distributed import in_group, refuse_sharded
from prunewald.model.groups import Group
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.model.optimizers import forget_, forget_history_, owned
from prunewald.model.slices import Slice
from prunewald.model.targets import prunable
from prunewald.pruning.describing import describe, lost_rows
from prunewald.pruning.grouped import Coupled, Coupling
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.noticing import Guard
from prunewald.pruning.plan import Plan
from prunewald.pruning.reaching import Reach
from prunewald.pruning.report import Report, UnitReport
from prunewald.pruning.resuming import packed, unpacked
from prunewald.pruning.scoring import REPLACED, PlannedScores, weigh
from prunewald.pruning.selecting import select
from prunewald.pruning.stepping import Stepping
from prunewald.pruning.watching import Reading, Watcher
from prunewald.pruning.whole_units import select_units
from prunewald.util.text import some

_UNCHANGED = (
    "{} keeps {} in a form that cannot be cleared at pruned places, such as 8 bits: "
    "it stays as it is and fades, while the zeros are held after every step"
)
_HELD = "held at zero with the rows that are pruned, and not counted: {:,} entries of {}"
_SHOWN = 4  # so many names are listed
_FILTERS = "{} is for whole filters: Pruner(model, optimizer, pattern=prunewald.Filter())"
_NO_VALUES = (
    "{!r} was moved to the meta device, and has no values there: to_empty(device=...) and load_state_dict() first"
)
DETACHED = "this Pruner was detached: make a new one to go on pruning"


@dataclass(frozen=True)
class Subject:
    """A model, the slices of it that are meant, their masks, what was gathered of them, and what holds them."""

    model: nn.Module
    slices: Sequence[Slice]
    zeros: Zeros
    watcher: Watcher
    reach: Reach
    stepping: Stepping
    guard: Guard
    coupling: Coupling | None = None  # where whole filters go: what goes with them

    def choose(self, plan: Plan) -> tuple[dict[str, Tensor], Report]:
        """The masks of a pruning, and its report; nothing changes."""
        present = {name: self.zeros.mask(name) for name in self.zeros.params}
        with self.in_sight():
            candidates = self._candidates(plan, present)
            scores, reading = self.scores(plan)
            if plan.coupled is None:
                chosen, rows, notes = select(plan, scores, candidates, reading.degrees() if plan.tests else None)
                groups: Sequence[UnitReport] = ()
            else:
                params = dict(self.model.named_parameters())
                chosen, rows, notes, groups = select_units(plan, scores, candidates, params)
        masks: dict[str, Tensor] = {}
        for part in self.slices:
            own, now = chosen[part.name], present[part.param]
            if part.index is None:
                masks[part.param] = own.clone() if own is now else own
            else:
                part.put_(masks.setdefault(part.param, now.clone()), own)
        if self.stepping.optimizers and not self.watcher.optimizers:
            notes.append("the optimizer steps none of the targets: nothing holds their zeros, and nothing moves them")
        looked = ((s, self.zeros.params[s.param], present[s.param], chosen[s.name]) for s in self.slices)
        # Patterns of groups empty rows on purpose.
        losses = lost_rows(self.model, looked) if plan.pattern.single else []
        notes += self._beside_notes(masks, plan.coupled) if self.coupling is not None else []
        report = describe(plan, rows, [*plan.notes, *reading.notes(), *notes], losses)
        return masks, replace(report, groups=groups) if groups else report

    def coupled(self, example_inputs: Any, of: str) -> Coupled | None:
        """The groups that a pruning goes by: those that example inputs show, or that are known."""
        if self.coupling is None:
            given = "example_inputs=..." if example_inputs is not None else f"of={of!r}"
            raise ValueError(_FILTERS.format(given))
        found = self.coupling.coupled if example_inputs is None else self.coupling.find(example_inputs)
        if found is None and of != "weights":
            raise ValueError(
                f"of={of!r} counts what goes as a whole, which takes a pass through the model: give "
                "prune(..., example_inputs=x), with x as the model is called"
            )
        return found

    def scores(self, plan: Plan) -> tuple[PlannedScores, Reading]:
        """The scores by the criterion of a plan, and what they were made from."""
        weights, reading = self._read(plan.uncertainty)
        for name, average in reading.averages().items() if plan.tests else ():
            weights[name].average = average
        return PlannedScores(plan, self.slices, weights, reading, partial(prunable, self.model)), reading

    def estimates(self, sigma: Online) -> dict[str, Estimate]:
        """What an estimator tells of each parameter."""
        with self.in_sight():
            weights, reading = self._read(sigma)
            return {name: reading.sigma(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def hold(self, masks: Mapping[str, Tensor], coupled: Coupled | None = None) -> list[str]:
        """Hold the zeros of these masks from now on; what would move a pruned weight without a gradient is cleared.

        Notes for the report say where that cannot be. Whole filters take their biases with them, and with groups that
        are `coupled`, and known from now on, the entries of norms too.
        """
        if not self.zeros.attached:
            raise ValueError(DETACHED)
        if in_group():
            refuse_sharded(self.model, self.zeros.params)
        for holding in list(self.stepping.holdings):
            if holding.competes:
                holding.ready_(list(self.zeros.params))  # what the last choice brings back has its own value, not zero
                self.stepping.drop(holding)
        if self.coupling is not None:
            masks = {**masks, **self._join_(self.coupling.beside(masks, coupled))}
            self.coupling.coupled = coupled or self.coupling.coupled
        left: dict[str, str] = {}  # by optimizer, the first state that cannot be cleared
        for optimizer in self.stepping.kept:  # first, so that a state which cannot be changed leaves the model alone
            forget_history_(optimizer)
            for name, alive in masks.items():
                for key in forget_(optimizer, self.zeros.held[name], alive):
                    left.setdefault(type(optimizer).__name__, f"the {key} of {name!r}")
        self.guard.watch()
        self.zeros.set_(masks)
        return [_UNCHANGED.format(*one) for one in left.items()]

    def restart(self) -> None:
        """Forget all that was gathered: it was of a model with other weights."""
        self.watcher.restart()
        self.reach.restart()

    def release(self) -> None:
        """Hold nothing any more; what is attached stays so."""
        for holding in list(self.stepping.holdings):
            if holding.competes:
                self.stepping.drop(holding)
        self.guard.release()
        self.zeros.clear_()

    def present(self) -> dict[str, Tensor]:
        """The targets as the model has them now: something else may have taken the place of one since."""
        found: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        if not found.keys() >= self.zeros.params.keys():  # a layer was compiled since
            found = dict(plain(self.model).named_parameters(remove_duplicate=False))
        for name, param in self.zeros.params.items():
            if name not in found or found[name].shape != param.shape:
                raise ValueError(REPLACED.format(name))
            if found[name].is_meta:
                raise ValueError(_NO_VALUES.format(name))
        return found

    def in_sight(self) -> AbstractContextManager[Any]:
        """The weights as the optimizer moves them, for as long as they are looked at."""
        stack = ExitStack()
        for holding in self.stepping.holdings:
            stack.enter_context(holding.in_sight())
        return stack

    def _read(self, sigma: Online | None) -> tuple[dict[str, Weight], Reading]:
        """The weights as a pruning sees them, and what is known of them."""
        if not self.zeros.attached:
            raise ValueError(DETACHED)
        if in_group():
            refuse_sharded(self.model, self.zeros.params)
        compete, present = self._compete(), self.present()
        reading = self.watcher.read(sigma, self.reach)
        return weigh(self.zeros, present, all_alive=compete), reading

    def _candidates(self, plan: Plan, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Which weights of each slice may be kept."""
        alive = {s.name: masks[s.param] if s.index is None else s.take(masks[s.param]) for s in self.slices}
        if not self._compete():
            return alive
        named = plan.shares if isinstance(plan.shares, Mapping) else alive
        return {name: torch.ones_like(mask) if name in named else mask for name, mask in alive.items()}

    def _compete(self) -> bool:
        """Whether pruned weights have values by which they may be chosen again."""
        return any(holding.competes for holding in self.stepping.holdings)

    # ---- what is beside ------------------------------------------------------------------------------------------

    def couple(self, example_inputs: Any, groups: Sequence[Group] | None = None) -> None:
        """Find the groups, or take those given, for what is pruned by now, and for all further prunings."""
        if self.coupling is None:
            raise ValueError(_FILTERS.format("couple()"))
        self.coupling.coupled = self.coupling.find(example_inputs, groups)
        if self.zeros.alive and not self._compete():
            self.hold(self.zeros.masks())

    def beside(self, masks: Mapping[str, Tensor], coupled: Coupled | None) -> dict[str, Tensor]:
        """The masks of biases and norms that go with what these masks of the targets prune."""
        return {} if self.coupling is None else self.coupling.beside(masks, coupled)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: masks of whatever may be beside, and the groups."""
        if self.coupling is None and not self.zeros.beside:
            return {}
        known = None if self.coupling is None else self.coupling.coupled
        return {"beside": packed(self._beside_masks()), "coupled": {} if known is None else known.to_plain()}

    def check_saved(self, state: Mapping[str, Any]) -> None:
        """An error where `resume_` would give one."""
        if "beside" in state:
            check_masks(unpacked(state["beside"]), dict(self.model.named_parameters()), what="the saved masks beside")
        if state.get("coupled"):
            Coupled.from_plain(state["coupled"], self.model)

    @torch.no_grad()
    def resume_(self, state: Mapping[str, Any]) -> None:
        """Hold by saved masks, and by those of what is beside."""
        masks = unpacked(state["masks"])
        if self.coupling is not None and state.get("coupled"):
            self.coupling.coupled = Coupled.from_plain(state["coupled"], self.model)
        beside = unpacked(state.get("beside"))
        if beside is None:  # saved before there was any, or by a pattern without
            beside = {} if self._compete() else self.beside(masks, None)
        gone = {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.zeros.beside.items()}
        every = {**masks, **self._join_(gone | beside)}
        held = {name: mask.clone() for name, mask in every.items() if not mask.all()}
        self.zeros.alive = {name: mask for name, mask in self.zeros.alive.items() if name in held}
        self.zeros.set_(held)
        self.guard.watch()

    def _beside_masks(self) -> dict[str, Tensor]:
        """Of all that may be held beside the targets, since a checkpoint in parts is loaded into what is there."""
        zeros = self.zeros
        vectors = {n: p for n, p in self.model.named_parameters() if p.dim() == 1 and n not in zeros.params}
        found = {name: torch.ones_like(p, dtype=torch.bool) for name, p in vectors.items()}
        return found | {name: zeros.mask(name) for name in zeros.beside}

    def settle_(self, at: int, own: Collection[str]) -> None:
        """Set to zero again, after a step of an optimizer, what is pruned of its own targets, and what is beside."""
        self.zeros.settle_(own)
        if self.zeros.beside:
            self.zeros.settle_(self.zeros.beside_owners[at])

    def _join_(self, beside: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Enter what is to be held beside the targets: the masks that prune anything, or did."""
        zeros, present = self.zeros, dict(self.model.named_parameters())
        found = {name: mask for name, mask in beside.items() if name in zeros.beside or not mask.all()}
        if new := {name: present[name] for name in found if name not in zeros.beside}:
            zeros.join_(new, owned(zeros.beside | new, self.stepping.optimizers))
            self.guard.unwatch()
        return found

    def _beside_notes(self, masks: Mapping[str, Tensor], coupled: Coupled | None) -> list[str]:
        assert self.coupling is not None
        found = {n: int((~mask).sum()) for n, mask in self.coupling.beside(masks, coupled).items() if not mask.all()}
        return [_HELD.format(sum(found.values()), some(found, _SHOWN))] if found else []
