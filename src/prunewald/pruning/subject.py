"""What a Pruner prunes, and one pruning of it from the plan down: sigma, scores, counts, masks, report, holding."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.core.base import Estimate, Online
from prunewald.core.weights import Weight
from prunewald.distributed import in_group, refuse_sharded
from prunewald.model.modules import plain
from prunewald.model.optimizers import forget_, forget_history_
from prunewald.model.slices import Slice
from prunewald.model.targets import prunable
from prunewald.pruning.describing import describe, lost_rows
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.noticing import Guard
from prunewald.pruning.plan import Plan
from prunewald.pruning.reaching import Reach
from prunewald.pruning.report import Report
from prunewald.pruning.scoring import REPLACED, PlannedScores, weigh
from prunewald.pruning.selecting import select
from prunewald.pruning.stepping import Stepping
from prunewald.pruning.watching import Reading, Watcher

_UNCHANGED = (
    "{} keeps {} in a form that cannot be cleared at pruned places, such as 8 bits: "
    "it stays as it is and fades, while the zeros are held after every step"
)
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

    def choose(self, plan: Plan) -> tuple[dict[str, Tensor], Report]:
        """The masks of a pruning, and its report; nothing changes."""
        present = {name: self.zeros.mask(name) for name in self.zeros.params}
        with self.in_sight():
            candidates = self._candidates(plan, present)
            scores, reading = self.scores(plan)
            chosen, rows, notes = select(plan, scores, candidates, reading.degrees() if plan.tests else None)
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
        return masks, describe(plan, rows, [*plan.notes, *reading.notes(), *notes], losses)

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
    def hold(self, masks: Mapping[str, Tensor]) -> list[str]:
        """Hold the zeros of these masks from now on; what would move a pruned weight without a gradient is cleared.

        Notes for the report say where that cannot be.
        """
        if not self.zeros.attached:
            raise ValueError(DETACHED)
        if in_group():
            refuse_sharded(self.model, self.zeros.params)
        for holding in list(self.stepping.holdings):
            if holding.competes:
                holding.ready_(list(self.zeros.params))  # what the last choice brings back has its own value, not zero
                self.stepping.drop(holding)
        left: dict[str, str] = {}  # by optimizer, the first state that cannot be cleared
        for optimizer in self.stepping.kept:  # first, so that a state which cannot be changed leaves the model alone
            forget_history_(optimizer)
            for name, alive in masks.items():
                for key in forget_(optimizer, self.zeros.params[name], alive):
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
