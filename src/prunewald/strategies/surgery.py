"""Dynamic network surgery: pruned weights keep learning in the dark, and come back when they matter again."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from prunewald.core.base import Allocation, Criterion, Pattern
from prunewald.core.patterns import Element, by_layout
from prunewald.core.ranking import Count, Ranked, Scores, as_rows
from prunewald.core.weights import NotYet
from prunewald.model.layouts import Layout
from prunewald.model.masking import check_masks
from prunewald.model.optimizers import as_list, forget_history_
from prunewald.model.targets import Target
from prunewald.pruner import Pruner
from prunewald.pruning.by_layer import by_slice
from prunewald.pruning.holding.dark import Dark
from prunewald.pruning.plan import Limit, Plan, Request, SigmaSource, Sparsity, online
from prunewald.pruning.selecting import keep_counts
from prunewald.util.arguments import real, whole
from prunewald.util.notices import warn
from prunewald.util.registry import make


@dataclass(frozen=True)
class Rhythm:
    """At which steps a surgery operates: at multiples of `every` up to `stop`, with a probability that decays."""

    every: int
    gamma: float
    power: float
    stop: int | None
    seed: int

    def __post_init__(self) -> None:
        whole("every", self.every, 1)
        real("gamma", self.gamma, least=0)
        real("power", self.power, least=0)
        whole("seed", self.seed)
        if self.stop is not None:
            whole("stop", self.stop)

    def due(self, step: int) -> bool:
        """Whether to operate after a step. Drawn from the step's own seed, so that a resumed run draws the same."""
        if step % self.every or (self.stop is not None and step > self.stop):
            return False
        chance: float = (1 + self.gamma * step) ** -self.power
        return Random(f"{self.seed} {step}").random() < chance


class Surgery(Pruner):
    """Prunes and splices while the user's own loop trains.  Guo et al. (2016), with any criterion in the place of |w|.

    After a step, with a probability that decays as (1 + gamma · step)^-power, a weight whose score is below the lower
    threshold is pruned, one above the upper is brought back, and between them all stay as they are. The model always
    computes with the pruned weights at zero; they learn on from its gradient, out of sight. Operations begin as soon as
    the uncertainty can tell something. Steps are those of the last optimizer.

    - `sparsity` (or a dict by layer) sets the thresholds so that about this share is pruned; `threshold` (or a dict by
      target) sets them as scores. They lie `margin` below and above, as a share.
    - `every`: steps between operations; `stop`: the step of the last one.
    - `pattern`: what is exchanged; by default single weights. Groups keep to their pattern and to its count after every
      operation: one comes back where its score, less `margin`, is above that of a living one, plus `margin`.

    `finish()` ends it with the masks as they are, `prune(...)` with an exact count; from then on it is a plain Pruner.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        *,
        sparsity: Sparsity | None = None,
        threshold: Limit | None = None,
        margin: float = 0.1,
        every: int = 1,
        gamma: float = 1e-4,
        power: float = 1.0,
        stop: int | None = None,
        seed: int = 0,
        criterion: Criterion | str | None = None,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str | None = None,
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
    ) -> None:
        chosen: dict[str, Any] = {"criterion": criterion, "uncertainty": uncertainty, "scope": scope}
        chosen["pattern"] = groups = make("pattern", pattern)
        sparsity = groups.sparsity if sparsity is None and threshold is None else sparsity
        _check_levels(sparsity, threshold, groups)
        self.margin = real("margin", margin, least=0, below=1)
        self.rhythm = Rhythm(every, gamma, power, stop, seed)
        self.level, self.threshold = sparsity, threshold
        self._dark: Dark | None = None
        self._told = False
        _check_parts(as_list(optimizer), uncertainty)
        super().__init__(model, optimizer, **chosen, targets=targets, ignore=ignore)
        try:
            self._resolve_()
        except ValueError:
            self.detach()
            raise
        self._begin_()

    def _resolve_(self) -> None:
        """Where levels or thresholds are by layer, find the targets that are meant."""
        if isinstance(self.level, Mapping):
            self.level = by_slice(self.model, self.slices, self.level)
        if isinstance(self.threshold, Mapping):
            self.threshold = by_slice(self.model, self.slices, self.threshold, "threshold")

    @property
    def at_work(self) -> str:
        """What it is in the middle of."""
        return "surgery" if self.active else ""

    @property
    def active(self) -> bool:
        """Whether weights are still exchanged."""
        return self._dark is not None and self._dark in self.holdings

    def finish(self) -> None:
        """End the surgery with the masks as they are: the dark values are dropped, the zeros hold."""
        self._subject.hold(self.masks)

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take masks from elsewhere; a surgery under way goes on, and what they prune learns on in the dark."""
        if self._dark is None or not self.active:
            super().set_masks(masks)
            return
        check_masks(masks, self._params, every=True)
        self._dark.remask_({name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()})
        self._dark.settle_(self._params)
        for optimizer in self.optimizers:
            forget_history_(optimizer)

    # ---- operations ----------------------------------------------------------------------------------------------

    def _begin_(self) -> None:
        self._dark = Dark(self.zeros)
        self.hold(self._dark)
        self._subject.guard.watch()

    @property
    def _acting(self) -> bool:
        return self.active

    def _act_(self) -> None:
        if self.steps < self._choices.least or not self.rhythm.due(self.steps):
            return
        assert self._dark is not None
        self._dark.light_()
        try:
            with warnings.catch_warnings(action="ignore"):  # a window that is still short would warn at every step
                masks = self._operate()
        except NotYet as reason:
            if not self._told:
                self._told = True
                warn(f"surgery waits, at step {self.steps}, until it can operate: {reason}")
            return
        if any(not torch.equal(mask, self.zeros.mask(name)) for name, mask in masks.items()):
            for optimizer in self.optimizers:
                forget_history_(optimizer)
        self._dark.remask_(masks)

    def _operate(self) -> dict[str, Tensor]:
        """The masks after an operation: what is below the lower threshold goes, what is above the upper comes back."""
        plan = self._plan(Request(self.level or 0.0))
        scores, _ = self._subject.scores(plan)
        masks, by_name = self.masks, {part.name: part for part in self.slices}
        if not self.pattern.single:
            self._exchange_groups_(plan, scores, masks)
            return masks
        for name, (middle, exact) in self._middles(plan, scores).items():
            part, ranked = by_name[name], scores[name]
            alive = part.take(masks[part.param])
            part.put_(masks[part.param], _spliced(ranked, alive, middle, self.margin * middle.abs(), exact))
        return masks

    def _exchange_groups_(self, plan: Plan, scores: Scores, masks: Mapping[str, Tensor]) -> None:
        """Choose the groups of each slice anew, where those that are alive have an advantage."""
        assert plan.shares is not None
        by_name = {part.name: part for part in self.slices}
        for name, count in keep_counts(plan.scope, scores, plan.shares).items():
            part, layout = by_name[name], scores.layouts.get(name)
            choose = self.pattern if layout is None else by_layout(self.pattern, layout)
            part.put_(
                masks[part.param], choose(_favoured(scores[name], part.take(masks[part.param]), self.margin), count)
            )

    def _middles(self, plan: Plan, scores: Scores) -> dict[str, tuple[Tensor, Tensor | None]]:
        """The middle of the thresholds of each slice that has any; for a sparsity also the mask of the exact count."""
        if self.level is None or plan.shares is None:
            limits = self.threshold if isinstance(self.threshold, Mapping) else dict.fromkeys(scores, self.threshold)
            return {
                name: (torch.tensor(limit, dtype=torch.float64, device="cpu"), None) for name, limit in limits.items()
            }
        counts = keep_counts(plan.scope, scores, plan.shares)
        return {name: _lowest(scores[name], count, scores.layouts.get(name)) for name, count in counts.items()}

    # ---- resume --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of a Pruner, with the values of the dark weights beside."""
        dark = self._dark.state_dict() if self._dark is not None else {}
        # In a tuple, as the states of the estimator are: there are none before the first operation.
        return super().state_dict() | {"dark": (dark,), "active": self.active}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a surgery."""
        self.check_state(state)
        if self._dark is not None and self.active and not state["active"]:
            self.let_go(self._dark)
        elif state["active"] and not self.active:
            self._begin_()
        super().load_state_dict(state)
        if self._dark is not None:
            self._dark.load_state_dict(_dark_values(state))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """An error where `load_state_dict` would give one; nothing is loaded."""
        super().check_state(state)
        if not {"dark", "active"} <= state.keys():
            raise ValueError(f"not the state of a Surgery: it has {sorted(state)}, and neither dark nor active")
        for name, value in _dark_values(state).items():
            if name not in self._params or value.shape != self._params[name].shape:
                raise ValueError(
                    f"the saved dark values are of {name!r}, of shape {tuple(value.shape)}: no target here"
                )


def _dark_values(state: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The dark values of a saved state; older ones have them as they are."""
    saved = state["dark"]
    values: Mapping[str, Tensor] = saved if isinstance(saved, Mapping) else saved[0]
    return values


def _spliced(ranked: Ranked, alive: Tensor, middle: Tensor, band: Tensor, exact: Tensor | None) -> Tensor:
    """What is kept: all above the band around the middle, and within the band what is alive."""
    keep = (ranked.score >= middle + band) | (alive & (ranked.score >= middle - band))
    if exact is None:
        return keep
    # Dead weights have an order but no score, or all the same one: there the count decides, not the band.
    by_count = _unscored(ranked) | ((band == 0) & (ranked.score == middle))
    return torch.where(by_count, exact, keep)


def _favoured(ranked: Ranked, alive: Tensor, margin: float) -> Ranked:
    """What is alive scored higher by the margin, and what is dark lower; an order without scores stays as it is."""
    side = torch.where(alive, margin, -margin).to(ranked.score.dtype)
    score = torch.where(_unscored(ranked), ranked.score, ranked.score + side * ranked.score.abs())
    return Ranked(score, ranked.weight * (1 + side), ranked.dead)


def _unscored(ranked: Ranked) -> Tensor:
    """Where a score is only a place in the order: weights that are zero, or that no gradient reached."""
    zero = ranked.score == torch.finfo(ranked.score.dtype).min
    return zero if ranked.dead is None else zero | (ranked.dead & (ranked.score < 0))


def _lowest(ranked: Ranked, count: Count, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """The lowest score that is kept, of each row where the count is by row; and the mask of what is kept."""
    keep = Element()(ranked, count) if layout is None else by_layout(Element(), layout)(ranked, count)
    kept = torch.where(keep, ranked.score, torch.inf)
    if not isinstance(count, Tensor):
        return kept.amin(), keep
    turned = kept if layout is None else layout.swap(kept)
    by_row = as_rows(turned).amin(1).reshape(-1, *[1] * (kept.dim() - 1))
    return by_row if layout is None else layout.swap(by_row.expand_as(turned)), keep


def _check_levels(sparsity: Sparsity | None, threshold: Limit | None, pattern: Pattern) -> None:
    if (sparsity is None) == (threshold is None):
        raise ValueError(f"sparsity={sparsity!r}, threshold={threshold!r}: surgery needs one of them")
    Request(sparsity, threshold).checked(pattern)
    levels = sparsity.values() if isinstance(sparsity, Mapping) else [] if sparsity is None else [sparsity]
    if pattern.sparsity is not None and max(levels, default=0) > pattern.sparsity:
        raise ValueError(f"sparsity={sparsity!r}: {pattern!r} prunes {pattern.sparsity} and no more")


def _check_parts(optimizers: Sequence[Optimizer], uncertainty: SigmaSource | None) -> None:
    """Refuse what surgery cannot work with, before anything is attached."""
    if not optimizers:
        raise ValueError("surgery needs the optimizer: what is pruned is trained on by its steps")
    if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
        raise ValueError("LBFGS fits a curvature to the loss, which moves in the dark do not change: it diverges")
    if uncertainty is not None and online(uncertainty).horizon is not None:
        raise ValueError(f"{uncertainty!r} collects for one pruning, and surgery operates at many steps")
