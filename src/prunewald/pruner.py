"""The Pruner: the only part with state. It watches the optimizer, prunes, and makes the zeros hold."""

import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.allocation import Allocation
from prunewald.core.criteria import Criterion, MagnitudeUncertainty, Wald
from prunewald.core.patterns import Pattern
from prunewald.core.schedules import Schedule
from prunewald.core.weights import NotYet, Weight
from prunewald.model.optimizers import as_list, forget_, forget_history_, owned, step_taken
from prunewald.model.targets import Target, find_parts
from prunewald.pruning.checks import (
    check_masks,
    check_moved,
    check_online,
    check_params,
    check_pattern,
    check_request,
    check_saved,
    check_schedule,
    check_sigmas,
    check_trained,
    describe,
    least_steps,
)
from prunewald.pruning.holding import Holder
from prunewald.pruning.report import Report
from prunewald.pruning.scoring import Scorer, default_criterion
from prunewald.pruning.selecting import Sparsity, by_part, keep_counts, reached, reported, select, unreached
from prunewald.pruning.significance import honest_label, z_thresholds
from prunewald.pruning.watching import Watcher
from prunewald.uncertainty import Estimate, Online, SecondMoment
from prunewald.util.registry import make, name_of
from prunewald.util.tensors import accumulator


class Pruner:
    """Prunes a model by a criterion and keeps the pruned weights at zero while the user's own loop trains on.

    The masks live here, outside the model, which keeps its type, its parameter names and its state_dict.

    - `optimizer`: one, or several; with None, call `apply_()` after each step of your own.
    - `criterion`, `uncertainty`, `scope`, `pattern`: a part or its short name. An uncertainty may also be a dict of
      sigma by parameter name. By default tau with the optimizer's own second moment; where it keeps none, magnitude.
    - `schedule`: prunes by itself while the optimizer (of several, the last) steps: `Cubic(0.9, begin=1000, end=9000)`.
      A pruning for which there is no sigma yet is put off, with a warning, until there is.
    - `targets`, `ignore`: names, globs, module types, modules, parameters, or slices: "conv1.weight[2]",
      ("fc.weight", index). By default every floating parameter of two or more dimensions outside embedding and norm
      modules.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        criterion: Criterion | str | None = None,
        uncertainty: Online | Mapping[str, Tensor] | str | None = None,
        scope: Allocation | str = "layer",
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
    ) -> None:
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.optimizers = as_list(optimizer)
        self.criterion: Criterion | None = make("criterion", criterion)
        self.uncertainty: Online | Mapping[str, Tensor] | None = make("uncertainty", uncertainty)
        check_online(self.uncertainty)
        if self.uncertainty is None and self.criterion is not None and self._uses_sigma(self.criterion):
            self.uncertainty = SecondMoment()
        self.scope: Allocation = make("allocation", scope)
        self.pattern: Pattern = make("pattern", pattern)
        self.schedule: Schedule | None = make("schedule", schedule)
        self.parts = find_parts(self.model, targets, ignore)
        self.report: Report | None = None  # of the last pruning, by a call or by the schedule
        self._steps: int | Tensor = 0
        self._owed = 0.0  # what the schedule asked for while the estimator could tell nothing yet
        named = dict(self.model.named_parameters())
        self._params = {part.param: named[part.param] for part in self.parts}
        self._check_parts()
        self._owners = owned(self._params, self.optimizers)
        self._holder = Holder(self._params)
        self.copies = self._holder.copies  # of the model, as given to follow()
        online = None if isinstance(self.uncertainty, Mapping) else self.uncertainty
        statistic = getattr(self.criterion, "statistic", None)
        self._watcher = Watcher(self.model, self._params, self._owners, online, statistic)
        self._handles: list[Any] = []
        self._attach_()

    def _check_parts(self) -> None:
        """Refuse what cannot work before anything is attached."""
        check_pattern(self.pattern, {part.name: part.take(self._params[part.param]).shape for part in self.parts})
        uses_sigma = self.criterion is None or self._uses_sigma(self.criterion)
        self._least = least_steps(self.uncertainty) if uses_sigma else 1
        check_schedule(self.schedule, self.pattern, self.uncertainty, self._least)

    def _attach_(self) -> None:
        hook = torch.compiler.disable(self._after_step)
        self._handles += [o.register_step_post_hook(hook) for o in self.optimizers]

    # ---- what the user reads -------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return {name: self._holder.mask(name).clone() for name in self._params}

    @property
    def steps(self) -> int:
        """How many steps were taken since attaching; of several optimizers, those of the last in the list."""
        return int(self._steps)

    @property
    def sparsity(self) -> float:
        """The share of all targeted weights that is pruned."""
        alive = self._alive()
        return 1 - sum(int(torch.count_nonzero(a)) for a in alive.values()) / sum(a.numel() for a in alive.values())

    def targets(self) -> dict[str, Tensor]:
        """What is pruned, by name: parameters, or slices of them; a loss may use them, to regularise."""
        return {part.name: part.take(self._params[part.param]) for part in self.parts}

    def sigma(self) -> dict[str, Tensor]:
        """The uncertainty of each weight, by parameter name."""
        return {name: self._estimate(weight).sigma for name, weight in self._ready_weights().items()}

    def dead(self) -> dict[str, Tensor]:
        """By parameter name, True where no gradient reached a weight while it was watched."""
        estimates = {name: self._estimate(weight) for name, weight in self._ready_weights().items()}
        return {name: e.dead for name, e in estimates.items() if e.dead is not None}

    def scores(self) -> dict[str, Tensor]:
        """The score of each weight, by parameter name: -inf where pruned, negative where dead, NaN off target."""
        scorer, _ = self._scorer(self.criterion)
        found = {name: torch.full_like(p, torch.nan, dtype=torch.float32) for name, p in self._params.items()}
        for part in self.parts:
            part.put_(found[part.param], scorer.scores()[part.name].score.to(torch.float32))
        return found

    def __getstate__(self) -> None:
        raise TypeError(
            "a Pruner is tied to a model and an optimizer by hooks, which do not copy: copy those, make a new Pruner "
            "for them, and give it this one's state_dict()"
        )

    def __repr__(self) -> str:
        chosen = f"criterion={self.criterion!r}, uncertainty={describe(self.uncertainty)}, scope={self.scope!r}"
        state = f"{len(self.parts)} targets, {self.sparsity:.2%} pruned"
        return f"{type(self).__name__}({type(self.model).__name__}, {chosen}, {state})"

    # ---- pruning -------------------------------------------------------------------------------------------------

    def prune(
        self,
        sparsity: Sparsity | None = None,
        *,
        threshold: float | None = None,
        alpha: float | None = None,
        fdr: float | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Prune until `sparsity` of the total is zero, or everything that scores below `threshold`; tell what was done.

        `sparsity` is a fraction, or a dict of fractions by layer (the others stay as they are); a pattern that fixes
        its own, as n-of-m does, needs none. `alpha` keeps what a Wald test finds different from zero at that level,
        `fdr` what it finds with that false discovery rate (of each target, or of all with scope "global"). With
        `dry_run` nothing changes. On any error the model is as it was.
        """
        masks, report = self.choose(sparsity, threshold=threshold, alpha=alpha, fdr=fdr)
        if dry_run:
            return replace(report, dry_run=True)
        self._commit(masks)
        self._watcher.restart()
        self.report = report
        return report

    def choose(
        self,
        sparsity: Sparsity | None = None,
        *,
        threshold: float | None = None,
        alpha: float | None = None,
        fdr: float | None = None,
    ) -> tuple[dict[str, Tensor], Report]:
        """The masks that `prune` would set, and its report; nothing changes."""
        if sparsity is None and threshold is None and alpha is None and fdr is None:
            sparsity = getattr(self.pattern, "sparsity", None)
        check_request(sparsity, threshold, alpha, fdr, self.pattern)
        if alpha is None and fdr is None:
            return self._choose(self._scorer(self.criterion), sparsity, threshold or 0.0)
        scorer, notes = self._scorer(Wald(), tested=True)
        together = name_of("allocation", self.scope) == "global"
        limits = z_thresholds(scorer.scores(), alpha=alpha, fdr=fdr, df=self._watcher.degrees(), together=together)
        return self._choose((scorer, notes + honest_label(self.uncertainty)), None, limits)

    def _choose(
        self,
        scoring: tuple[Scorer, list[str]],
        sparsity: Sparsity | None,
        limits: float | Mapping[str, float] = 0.0,
        *,
        rising: bool = False,
    ) -> tuple[dict[str, Tensor], Report]:
        """By a sparsity, or else by limits; with `rising`, a sparsity below the present one changes nothing."""
        scorer, notes = scoring
        shares = by_part(self.model, self.parts, sparsity) if isinstance(sparsity, Mapping) else sparsity
        scores, alive = scorer.scores(), self._candidates(shares if isinstance(shares, Mapping) else None)
        asked, counts = None, None
        if sparsity is not None and shares is not None:
            asked = keep_counts(self.scope, scores, shares)
            counts = reached(self.pattern, asked, alive, sparsity, rising=rising)
        if not isinstance(limits, Mapping):
            limits = dict.fromkeys(scores, limits)
        chosen, rows = select(scorer, self.pattern, counts, limits, alive)
        masks = self.masks
        for part in self.parts:
            part.put_(masks[part.param], chosen[part.name])
        notes = [*notes, *unreached(self.pattern, asked, rows)]
        if self.optimizers and not any(self._owners):
            notes.append("the optimizer steps none of the targets: nothing holds their zeros, and nothing moves them")
        return masks, reported(scorer, rows, self.scope, self.pattern, self.uncertainty, notes)

    def _scorer(self, criterion: Criterion | None, *, tested: bool = False) -> tuple[Scorer, list[str]]:
        """The criterion in force, over weights that were checked; `tested`: those that standard errors are of."""
        criterion, notes = self._default_criterion() if criterion is None else (criterion, [])
        statistic = self._watcher.statistic
        if not self._uses_sigma(criterion):
            return Scorer(self._weights(), self.parts, criterion, None, statistic), notes
        weights = self._ready_weights()
        averages = self._watcher.averages() if tested else {}
        weights |= {n: replace(weights[n], param=a.to(weights[n].param.device)) for n, a in averages.items()}
        return Scorer(weights, self.parts, criterion, self._estimate, statistic), notes

    def _uses_sigma(self, criterion: Criterion) -> bool:
        # A plain function says nothing of itself: it gets a sigma if there is one.
        return getattr(criterion, "uses_sigma", self.uncertainty is not None)

    def _default_criterion(self) -> tuple[Criterion, list[str]]:
        if self.uncertainty is not None:
            return MagnitudeUncertainty(), []
        return default_criterion((name, p, self._optimizer_of(name)) for name, p in self._params.items())

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take masks from elsewhere, of the same model: what they prune is zero and stays so, what they keep learns."""
        self._check_attached()
        check_masks(masks, self._params)
        self._commit({name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()})
        self._watcher.restart()

    @torch.no_grad()
    def _commit(self, masks: dict[str, Tensor]) -> None:
        for name, alive in masks.items():
            self._holder.alive[name] = alive
            self._holder.hold_(name)
            for optimizer in self.optimizers:
                forget_(optimizer, self._params[name], alive)
        for optimizer in self.optimizers:
            forget_history_(optimizer)

    # ---- holding the zeros ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the pruned weights to zero again; without an optimizer this is also the step the estimator sees."""
        self._holder.zero_()
        if self._holder.attached and not self.optimizers:
            self._watcher.update_(0, None)
            self._advance_(None)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        at = next(i for i, own in enumerate(self.optimizers) if own is optimizer)
        self._holder.zero_()
        self._watcher.update_(at, optimizer)
        if optimizer is self.optimizers[-1]:
            self._advance_(optimizer)

    def _advance_(self, optimizer: Optimizer | None) -> None:
        """Count a step, unless it was skipped, and do what is due after it."""
        took = step_taken(optimizer)
        self._steps = self._steps + (1 if took is None else took)
        # Only what acts at certain steps has to wait for the device to tell.
        if self._acting and (took is None or bool(took)):
            self._act_()

    @property
    def _acting(self) -> bool:
        return self.schedule is not None

    def _act_(self) -> None:
        """Prune if the schedule says so, or said so when there was no sigma yet; the estimator's window runs on."""
        assert self.schedule is not None
        due = self.schedule(self.steps)
        self._owed = self._owed if due is None else due
        if not self._owed:
            return
        check_request(self._owed, None, None, None, self.pattern)
        try:
            # What there is to warn of, such as a window that is still short, is said at the first pruning only.
            with nullcontext() if self.report is None else warnings.catch_warnings(action="ignore"):
                masks, self.report = self._choose(self._scorer(self.criterion), self._owed, rising=True)
        except NotYet as reason:
            if due:
                warnings.warn(f"the pruning of step {self.steps} is put off until it can be: {reason}", stacklevel=2)
            return
        self._owed = 0.0
        if any(not torch.equal(mask, self._holder.mask(name)) for name, mask in masks.items()):
            self._commit(masks)

    def follow(self, copy: nn.Module) -> None:
        """Zero what is pruned in a copy of the model too, such as an AveragedModel: now, and whenever masks change."""
        with torch.no_grad():
            self._holder.follow(copy)

    def detach(self) -> None:
        """Let go of model and optimizer: the zeros stay, nothing holds them any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._holder.release()
        self._watcher.release()

    # ---- resume --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Masks and estimator state: tensors and plain numbers, safe under torch.load(weights_only=True).

        As in torch's own, the tensors are the living ones: deepcopy what you keep in memory.
        """
        return {"masks": self.masks, "steps": self.steps, "owed": self._owed, **self._watcher.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; one of other parameters or another kind of estimator is an error."""
        self._check_state(state)
        self._watcher.load_state_dict(state)
        self._steps, self._owed = state["steps"], float(state.get("owed", 0.0))
        self._holder.alive = {name: mask.clone() for name, mask in state["masks"].items() if not mask.all()}
        with torch.no_grad():
            for name in self._holder.alive:
                self._holder.hold_(name)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_saved(state)
        check_masks(state["masks"], self._params)
        self._watcher.check_state(state)

    # ---- parts of the above --------------------------------------------------------------------------------------

    def _alive(self) -> dict[str, Tensor]:
        """The mask of each part."""
        return {part.name: part.take(self._holder.mask(part.param)) for part in self.parts}

    def _candidates(self, named: Collection[str] | None) -> dict[str, Tensor]:
        """Which weights of each part a pruning of these parts (None: all) may keep."""
        return self._alive()

    def _optimizer_of(self, name: str) -> Optimizer | None:
        return next((o for o, own in zip(self.optimizers, self._owners, strict=False) if name in own), None)

    def _check_attached(self) -> None:
        if not self._holder.attached:
            raise ValueError(f"this {type(self).__name__} was detached: make a new one to go on pruning")

    def _weights(self) -> dict[str, Weight]:
        """All parameters that hold targets, after a check that they can be pruned."""
        self._check_attached()
        check_params(self._params, dict(self.model.named_parameters()))
        return {
            n: Weight(n, p, self._holder.mask(n) if n in self._holder.alive else None) for n, p in self._params.items()
        }

    def _ready_weights(self) -> dict[str, Weight]:
        """The same, after a check that each has an uncertainty."""
        weights = self._weights()
        if isinstance(self.uncertainty, Mapping):
            check_sigmas(self.uncertainty, self._params)
        else:
            check_trained(self._params, self._owners)
        self._watcher.check()
        return weights

    def _estimate(self, weight: Weight) -> Estimate:
        if isinstance(self.uncertainty, Mapping):
            sigma = torch.as_tensor(self.uncertainty[weight.name])
            return Estimate(sigma.to(weight.param.device, accumulator(weight.param)), None)
        estimate = self._watcher.estimate(weight, self._optimizer_of(weight.name))
        check_moved(weight, estimate)
        return estimate
