"""Dynamic network surgery: pruned weights keep learning in the dark, and come back when they matter again."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from prunewald.core.allocation import Allocation
from prunewald.core.criteria import Criterion
from prunewald.core.patterns import Element
from prunewald.core.ranking import Count, Ranked, Scores, as_rows
from prunewald.core.schedules import check_whole
from prunewald.core.weights import NotYet, Weight
from prunewald.model.optimizers import forget_history_, with_closures
from prunewald.model.targets import Target
from prunewald.pruner import Pruner
from prunewald.pruning.checks import check_masks, check_request, copied
from prunewald.pruning.report import Report
from prunewald.pruning.selecting import Sparsity, by_part, keep_counts
from prunewald.uncertainty import Online


class Surgery(Pruner):
    """Prunes and splices while the user's own loop trains.  Guo et al. (2016), with any criterion in the place of |w|.

    After a step, with a probability that decays as (1 + gamma · step)^-power, a weight whose score is below the lower
    threshold is pruned, one above the upper is brought back, and between them all stay as they are. The model always
    computes with the pruned weights at zero; they learn on from its gradient, out of sight. Operations begin as soon as
    the uncertainty can tell something. Steps are those of the last optimizer.

    - `sparsity` (or a dict by layer) sets the thresholds so that about this share is pruned; `threshold` (or a dict by
      target) sets them as scores. They lie `margin` below and above, as a share.
    - `every`: steps between operations; `stop`: the step of the last one.

    `finish()` ends it with the masks as they are, `prune(...)` with an exact count; from then on it is a plain Pruner.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        *,
        sparsity: Sparsity | None = None,
        threshold: float | Mapping[str, float] | None = None,
        margin: float = 0.1,
        every: int = 1,
        gamma: float = 1e-4,
        power: float = 1.0,
        stop: int | None = None,
        seed: int = 0,
        criterion: Criterion | str | None = None,
        uncertainty: Online | Mapping[str, Tensor] | str | None = None,
        scope: Allocation | str = "layer",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
    ) -> None:
        _check_levels(sparsity, threshold)
        _check_number("margin", margin, below=1)
        _check_number("gamma", gamma)
        _check_number("power", power)
        check_whole(every=(every, 1), stop=(0 if stop is None else stop, 0), seed=(seed, 0))
        self.level, self.threshold, self.margin = sparsity, threshold, margin
        self.every, self.gamma, self.power, self.stop, self.seed = every, gamma, power, stop, seed
        self.active, self._told = True, False
        self._dark: dict[str, Tensor] = {}  # the values of pruned weights, where the mask is False
        super().__init__(
            model,
            optimizer,
            criterion=criterion,
            uncertainty=uncertainty,
            scope=scope,
            targets=targets,
            ignore=ignore,
        )
        self._holder.gradients = False

    def _check_parts(self) -> None:
        super()._check_parts()
        if not self.optimizers:
            raise ValueError("surgery needs the optimizer: what is pruned is trained on by its steps")
        if any(isinstance(optimizer, LBFGS) for optimizer in self.optimizers):
            raise ValueError("LBFGS fits a curvature to the loss, which moves in the dark do not change: it diverges")
        if getattr(self.uncertainty, "total_steps", None) is not None:
            raise ValueError(f"{self.uncertainty!r} collects for one pruning, and surgery operates at many steps")
        if isinstance(self.level, Mapping):
            self.level = by_part(self.model, self.parts, self.level)
        if isinstance(self.threshold, Mapping):
            self.threshold = by_part(self.model, self.parts, self.threshold, "threshold")

    def _attach_(self) -> None:
        super()._attach_()
        hook = torch.compiler.disable(self._before_step)
        self._handles += [o.register_step_pre_hook(hook) for o in self.optimizers]

    # ---- a step --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Bring the dark values in, so that the step moves them; what evaluates the model within must not see them."""
        if not self.active:
            return None
        own = self._owners[self.optimizers.index(optimizer)]
        self._light_(own)
        return with_closures(args, kwargs, lambda closure: self._in_the_dark(closure, own))

    def _in_the_dark(self, closure: Callable[..., Any], own: list[str]) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            self._darken_(own)
            loss = closure(*args, **kwargs)  # an error in it ends the step: then they stay out of sight
            self._light_(own)
            return loss

        return evaluate

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if not self.active:
            super()._after_step(optimizer)
            return
        at = self.optimizers.index(optimizer)
        try:
            self._watcher.update_(at, optimizer)
            if optimizer is self.optimizers[-1]:
                self._advance_(optimizer)
        finally:
            self._darken_(self._params)

    @property
    def _acting(self) -> bool:
        return self.active

    def _act_(self) -> None:
        if not self._due():
            return
        self._light_(self._params)
        try:
            with warnings.catch_warnings(action="ignore"):  # of windows that are still short, at every step
                self._operate_()
        except NotYet as reason:
            if not self._told:
                self._told = True
                warnings.warn(f"surgery waits, at step {self.steps}, until it can operate: {reason}", stacklevel=2)

    def _due(self) -> bool:
        if self.steps % self.every or self.steps < self._least:
            return False
        # Drawn from the step's own seed: a resumed run draws what the uninterrupted one did.
        chance = Random(f"{self.seed} {self.steps}").random()
        return (self.stop is None or self.steps <= self.stop) and chance < (1 + self.gamma * self.steps) ** -self.power

    def _operate_(self) -> None:
        """Prune below the lower threshold, splice above the upper."""
        scorer, _ = self._scorer(self.criterion)
        scores, masks = scorer.scores(), self.masks
        for name, (middle, exact) in self._middles(scores).items():
            part, score, band = scorer.parts[name], scores[name].score, self.margin * middle.abs()
            alive = part.take(masks[part.param])
            keep = (score >= middle + band) | (alive & (score >= middle - band))
            if exact is not None:
                # Dead weights have an order but no score, or all the same one: there the count decides, not the band.
                by_count = _unscored(scores[name]) | ((band == 0) & (score == middle))
                keep = torch.where(by_count, exact, keep)
            part.put_(masks[part.param], keep)
        if any(not torch.equal(mask, self._holder.mask(name)) for name, mask in masks.items()):
            for optimizer in self.optimizers:
                forget_history_(optimizer)
        self._holder.alive = masks

    def _middles(self, scores: Scores) -> dict[str, tuple[Tensor, Tensor | None]]:
        """The middle of the thresholds of each part that has any; for a sparsity also the mask of the exact count."""
        if self.level is None:
            limits = self.threshold if isinstance(self.threshold, Mapping) else dict.fromkeys(scores, self.threshold)
            return {name: (torch.tensor(limit, dtype=torch.float64), None) for name, limit in limits.items()}
        counts = keep_counts(self.scope, scores, self.level)
        return {name: _lowest(scores[name], count) for name, count in counts.items()}

    # ---- light and dark ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _light_(self, names: Iterable[str]) -> None:
        """Give the pruned weights their dark values."""
        for name in names:
            if name in self._dark:
                param = self._params[name]
                # What is alive stays what it is: it may have been loaded or changed since.
                param.copy_(torch.where(self._holder.mask(name), param, self._dark.pop(name).to(param)))

    @torch.no_grad()
    def _darken_(self, names: Iterable[str]) -> None:
        """Put the values of the pruned weights away, and zero them."""
        for name in names:
            if name in self._holder.alive and name not in self._dark:
                self._dark[name] = self._params[name].detach().clone()
                self._holder.hold_(name)

    @contextmanager
    def _lit(self) -> Iterator[None]:
        """The dark values in sight for a while: in other storage, so that the model itself stays as it is."""
        held = {name: self._params[name].data for name in self._dark}
        try:
            for name, data in held.items():
                self._params[name].data = torch.where(self._holder.mask(name), data, self._dark[name].to(data))
            yield
        finally:
            for name, data in held.items():
                self._params[name].data = data

    def _weights(self) -> dict[str, Weight]:
        weights = super()._weights()
        # Dark weights compete with the living: none is out of the race.
        return {name: Weight(name, w.param, None) for name, w in weights.items()} if self.active else weights

    def _candidates(self, named: Collection[str] | None) -> dict[str, Tensor]:
        alive = super()._candidates(named)
        if not self.active:
            return alive
        return {n: torch.ones_like(mask) if named is None or n in named else mask for n, mask in alive.items()}

    # ---- as a Pruner ---------------------------------------------------------------------------------------------

    def sigma(self) -> dict[str, Tensor]:
        """The uncertainty of each weight, the dark ones too."""
        with self._lit():
            return super().sigma()

    def dead(self) -> dict[str, Tensor]:
        """Where no gradient reached a weight."""
        with self._lit():
            return super().dead()

    def scores(self) -> dict[str, Tensor]:
        """The score of each weight, the dark ones too."""
        with self._lit():
            return super().scores()

    def choose(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Tensor], Report]:
        """The masks that `prune` would set, chosen among all weights, the dark ones too."""
        with self._lit():
            return super().choose(*args, **kwargs)

    def finish(self) -> None:
        """End the surgery with the masks as they are: the dark values are dropped, the zeros hold."""
        self._check_attached()
        self._commit(self.masks)

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """As a Pruner's; a surgery under way goes on from these masks, and what they prune learns on in the dark."""
        if not self.active:
            super().set_masks(masks)
            return
        self._check_attached()
        check_masks(masks, self._params)
        self._light_(self._params)
        self._holder.alive = {name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()}
        self._darken_(self._params)
        for optimizer in self.optimizers:
            forget_history_(optimizer)

    def _commit(self, masks: dict[str, Tensor]) -> None:
        if self.active:
            # What the last choice brings back has its dark value, not zero.
            self._light_(self._params)
            self.active, self._holder.gradients = False, True
        super()._commit(masks)

    def apply_(self) -> None:
        """Set the pruned weights to zero again; what is dark stays what it is."""
        if self.active:
            self._darken_(self._params)  # where an error in the optimizer's own step left them in sight
        super().apply_()

    def detach(self) -> None:
        """Let go of model and optimizer: the zeros stay, the dark values are dropped."""
        self.apply_()
        super().detach()
        self.active, self._dark = False, {}

    def state_dict(self) -> dict[str, Any]:
        """As a Pruner's, with the values of the dark weights."""
        return super().state_dict() | {"dark": dict(self._dark), "active": self.active}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a surgery."""
        self._check_state(state)
        self.active, self._holder.gradients = bool(state["active"]), not state["active"]
        super().load_state_dict(state)
        self._dark = copied(state["dark"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        if not {"dark", "active"} <= state.keys():
            raise ValueError(f"not the state of a Surgery: it has {sorted(state)}, and neither dark nor active")
        for name, value in state["dark"].items():
            if name not in self._params or value.shape != self._params[name].shape:
                raise ValueError(
                    f"the saved dark values are of {name!r}, of shape {tuple(value.shape)}: no target here"
                )


def _unscored(ranked: Ranked) -> Tensor:
    """Where a score is only a place in the order: weights that are zero, or that no gradient reached."""
    zero = ranked.score == torch.finfo(ranked.score.dtype).min
    return zero if ranked.dead is None else zero | (ranked.dead & (ranked.score < 0))


def _lowest(ranked: Ranked, count: Count) -> tuple[Tensor, Tensor]:
    """The lowest score of those that such a count keeps, of each row if the counts are; and which they are."""
    keep = Element()(ranked, count)
    kept = torch.where(keep, ranked.score, torch.inf)
    by_row = as_rows(kept).amin(1).reshape(-1, *[1] * (kept.dim() - 1))
    return by_row if isinstance(count, Tensor) else by_row.amin(), keep


def _check_levels(sparsity: object, threshold: object) -> None:
    if (sparsity is None) == (threshold is None):
        raise ValueError(f"sparsity={sparsity!r}, threshold={threshold!r}: surgery needs one of them")
    for limit in threshold.values() if isinstance(threshold, Mapping) else [threshold]:
        check_request(sparsity, limit, None, None, Element())


def _check_number(name: str, value: object, below: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < below:
        raise ValueError(f"{name}={value!r}: must be a number of at least 0 and below {below}")
