"""The Pruner: the front door, and the only part with state. It watches the optimizer, prunes, and holds the zeros."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from html import escape
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Allocation, Criterion, Estimate, Online, Pattern, Schedule
from prunewald.core.weights import NotYet, Weight
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.model.optimizers import as_list, forget_, forget_history_, owned, step_taken
from prunewald.model.targets import Target, find_slices
from prunewald.pruning.describing import describe
from prunewald.pruning.holding.base import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Choices, Plan, Request, Sparsity, online, resolve, sigma_source
from prunewald.pruning.report import Report
from prunewald.pruning.resuming import check_saved
from prunewald.pruning.scoring import PlannedScores, weigh
from prunewald.pruning.selecting import select
from prunewald.pruning.stepping import Stepping
from prunewald.pruning.watching import Reading, Watcher
from prunewald.util.notices import warn
from prunewald.util.registry import brief

Sigmas = Online | Mapping[str, Tensor] | str


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

    What is given is fixed: `criterion`, `uncertainty`, `scope`, `pattern` and `schedule` can be read, not set. What the
    Pruner holds is a property (`masks`, `steps`, `sparsity`, `report`), what it has to compute is a method.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        criterion: Criterion | str | None = None,
        uncertainty: Sigmas | None = None,
        scope: Allocation | str = "layer",
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
    ) -> None:
        self.model = plain(model)
        self.optimizers = as_list(optimizer)
        self.slices = tuple(find_slices(self.model, targets, ignore))
        self.report: Report | None = None  # of the last pruning, by a call or by the schedule
        self._choices = Choices.of(criterion, uncertainty, scope, pattern, schedule)
        self._steps: int | Tensor = 0
        self._owed = 0.0  # what the schedule asked for while the estimator could tell nothing yet
        named = dict(self.model.named_parameters())
        self._params = {part.param: named[part.param] for part in self.slices}
        self._choices.check(self.slices, self._params)
        watched = self._choices.watched
        self._check()
        self.zeros = Zeros(self._params)
        self._owners = owned(self._params, self.optimizers)
        self._watcher = Watcher(self.model, self._params, self.optimizers, self._owners, *watched)
        self._stepping = Stepping(self.optimizers, self._owners, self._after_step)

    def _check(self) -> None:
        """Refuse what cannot work before anything is attached."""

    # ---- what was given ------------------------------------------------------------------------------------------

    @property
    def criterion(self) -> Criterion | None:
        """How weights are scored; None: by the default, which depends on the optimizer."""
        return self._choices.criterion

    @property
    def uncertainty(self) -> Online | None:
        """Where sigma comes from; None: from the optimizer's second moment, if the criterion wants a sigma."""
        return self._choices.uncertainty

    @property
    def scope(self) -> Allocation:
        """How many weights each target keeps."""
        return self._choices.scope

    @property
    def pattern(self) -> Pattern:
        """Which weights go together."""
        return self._choices.pattern

    @property
    def schedule(self) -> Schedule | None:
        """When the Pruner prunes by itself."""
        return self._choices.schedule

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return {name: self.zeros.mask(name).clone() for name in self._params}

    @property
    def steps(self) -> int:
        """How many steps were taken since attaching; of several optimizers, those of the last in the list."""
        return int(self._steps)

    @property
    def sparsity(self) -> float:
        """The share of all targeted weights that is pruned."""
        alive = [part.take(self.zeros.mask(part.param)) for part in self.slices]
        return 1 - sum(int(torch.count_nonzero(a)) for a in alive) / sum(a.numel() for a in alive)

    @property
    def copies(self) -> dict[nn.Module, dict[str, Tensor]]:
        """The copies of the model that were given to `follow`, each with its parameters that are held."""
        return self.zeros.copies

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """What acts on the weights around each step beside the zeros: quantisation, surgery."""
        return tuple(self._stepping.holdings)

    def __getstate__(self) -> None:
        raise TypeError(
            "a Pruner is tied to a model and an optimizer by hooks, which do not copy: copy those, make a new Pruner "
            "for them, and give it this one's state_dict()"
        )

    def __repr__(self) -> str:
        sigma = "" if self.uncertainty is None else brief(self.uncertainty)
        chosen = f"criterion={self.criterion!r}, uncertainty={sigma}, scope={self.scope!r}"
        state = f"{len(self.slices)} targets, {self.sparsity:.2%} pruned"
        return f"{type(self).__name__}({type(self.model).__name__}, {chosen}, {state})"

    def _repr_html_(self) -> str:
        report = "" if self.report is None else self.report._repr_html_()
        return f"<p>{escape(repr(self))}</p>{report}"

    # ---- what it computes ----------------------------------------------------------------------------------------

    def targets(self) -> dict[str, Tensor]:
        """What is pruned, by name: parameters, or slices of them; a loss may use them, to regularise."""
        return {part.name: part.take(self._params[part.param]) for part in self.slices}

    def sigma(self) -> dict[str, Tensor]:
        """The uncertainty of each weight, by parameter name."""
        return {name: sigma for name, (sigma, _) in self._estimates().items()}

    def dead(self) -> dict[str, Tensor]:
        """By parameter name, True where no gradient reached a weight while it was watched."""
        return {name: dead for name, (_, dead) in self._estimates().items() if dead is not None}

    def scores(self) -> dict[str, Tensor]:
        """The score of each weight, by parameter name: -inf where pruned, negative where dead, NaN off target."""
        found = {name: torch.full_like(p, torch.nan, dtype=torch.float32) for name, p in self._params.items()}
        plan = self._plan(Request(0.0))
        with self._in_sight():
            scores, _ = self._scores(plan)
            for part in self.slices:
                part.put_(found[part.param], scores[part.name].score.to(torch.float32))
        return found

    # ---- pruning -------------------------------------------------------------------------------------------------

    def prune(
        self,
        sparsity: Sparsity | None = None,
        *,
        threshold: float | None = None,
        alpha: float | None = None,
        fdr: float | None = None,
        uncertainty: Sigmas | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Prune until `sparsity` of the total is zero, or everything that scores below `threshold`; tell what was done.

        `sparsity` is a fraction, or a dict of fractions by layer (the others stay as they are); a pattern that fixes
        its own, as n-of-m does, needs none. `alpha` keeps what a Wald test finds different from zero at that level,
        `fdr` what it finds with that false discovery rate (of each target, or of all with scope "global").
        `uncertainty` is for this pruning alone, such as sigmas that were estimated for it. With `dry_run` nothing
        changes. On any error the model is as it was.
        """
        masks, report = self.choose(sparsity, threshold=threshold, alpha=alpha, fdr=fdr, uncertainty=uncertainty)
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
        uncertainty: Sigmas | None = None,
    ) -> tuple[dict[str, Tensor], Report]:
        """The masks that `prune` would set, and its report; nothing changes."""
        plan = self._plan(Request(sparsity, threshold, alpha, fdr), uncertainty)
        with self._in_sight():
            return self._choose(plan)

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take masks from elsewhere, of the same model: what they prune is zero and stays so, what they keep learns."""
        self._check_attached()
        check_masks(masks, self._params, every=True)
        self._commit({name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()})
        self._watcher.restart()

    # ---- one pruning, from the plan down -------------------------------------------------------------------------

    def _plan(self, request: Request, uncertainty: Sigmas | None = None) -> Plan:
        choices = self._choices if uncertainty is None else replace(self._choices, uncertainty=online(uncertainty))
        return resolve(choices, request, self.model, self.slices, self._params, self._watcher.optimizers)

    def _read(self, sigma: Online | None, *, tests: bool = False) -> tuple[dict[str, Weight], Reading]:
        """The weights as a pruning sees them, and what the estimator and the criterion's statistic tell of them."""
        self._check_attached()
        competing = any(holding.competes for holding in self._stepping.holdings)
        present = dict(self.model.named_parameters())
        weights = weigh(self.zeros, present, all_alive=competing)
        reading = self._watcher.read(sigma)
        for name, average in reading.averages().items() if tests else ():
            weights[name].average = average
        return weights, reading

    def _scores(self, plan: Plan) -> tuple[PlannedScores, Reading]:
        weights, reading = self._read(plan.uncertainty, tests=plan.tests)
        return PlannedScores(plan, self.slices, weights, reading), reading

    def _choose(self, plan: Plan) -> tuple[dict[str, Tensor], Report]:
        masks = self.masks
        candidates = self._candidates(masks, plan.shares)
        scores, reading = self._scores(plan)
        chosen, rows, notes = select(plan, scores, candidates, reading.degrees() if plan.tests else None)
        for part in self.slices:
            if part.index is None:
                masks[part.param] = chosen[part.name]
            else:
                part.put_(masks[part.param], chosen[part.name])
        if self.optimizers and not any(self._owners):
            notes.append("the optimizer steps none of the targets: nothing holds their zeros, and nothing moves them")
        return masks, describe(plan, rows, [*plan.notes, *notes])

    @torch.no_grad()
    def _commit(self, masks: Mapping[str, Tensor]) -> None:
        for holding in list(self._stepping.holdings):
            if holding.competes:
                holding.ready_(list(self._params))  # what the last choice brings back has its own value, not zero
                self._stepping.drop(holding)
        self.zeros.set_(masks)
        for optimizer in self.optimizers:
            forget_history_(optimizer)
            for name, alive in masks.items():
                forget_(optimizer, self._params[name], alive)

    def _estimates(self) -> dict[str, Estimate]:
        source = sigma_source(self._choices)
        with self._in_sight():
            weights, reading = self._read(source)
            return {name: reading.sigma(weight) for name, weight in weights.items()}

    def _candidates(self, masks: Mapping[str, Tensor], shares: Sparsity | None) -> dict[str, Tensor]:
        """Which weights of each slice may be kept by a pruning to these shares."""
        alive = {s.name: masks[s.param] if s.index is None else s.take(masks[s.param]) for s in self.slices}
        if not any(holding.competes for holding in self._stepping.holdings):
            return alive
        named = shares if isinstance(shares, Mapping) else alive
        return {name: torch.ones_like(mask) if name in named else mask for name, mask in alive.items()}

    def _check_attached(self) -> None:
        if not self.zeros.attached:
            raise ValueError(f"this {type(self).__name__} was detached: make a new one to go on pruning")

    def _in_sight(self) -> AbstractContextManager[Any]:
        """The weights as the optimizer moves them, for as long as they are looked at."""
        stack = ExitStack()
        for holding in self._stepping.holdings:
            stack.enter_context(holding.in_sight())
        return stack

    # ---- steps ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the pruned weights to zero again; without an optimizer this is also the step the estimator sees."""
        self.zeros.settle_(self._params)
        for holding in self.holdings:
            holding.settle_(self._params)
        if self.zeros.attached and not self.optimizers:
            self._watcher.update_(0, None)
            self._advance_(None)

    def _after_step(self, at: int, optimizer: Optimizer) -> None:
        self.zeros.settle_(self._params)
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
        """Whether anything is to be done by itself after some steps."""
        return self.schedule is not None

    def _act_(self) -> None:
        """Prune if the schedule says so, or said so when there was no sigma yet; the estimator's window runs on."""
        assert self.schedule is not None
        due = self.schedule(self.steps)
        self._owed = self._owed if due is None else due
        if not self._owed:
            return
        plan = self._plan(Request(self._owed, rising=True))
        try:
            # What there is to warn of, such as a window that is still short, is said at the first pruning only.
            with nullcontext() if self.report is None else warnings.catch_warnings(action="ignore"):
                masks, self.report = self._choose(plan)
        except NotYet as reason:
            if due:
                warn(f"the pruning of step {self.steps} is put off until it can be: {reason}")
            return
        self._owed = 0.0
        if any(not torch.equal(mask, self.zeros.mask(name)) for name, mask in masks.items()):
            self._commit(masks)

    def follow(self, copy: nn.Module) -> None:
        """Zero what is pruned in a copy of the model too, such as an AveragedModel: now, and whenever masks change."""
        with torch.no_grad():
            self.zeros.follow(copy)

    def hold(self, holding: Holding) -> None:
        """Let a further way of holding weights act around every step, after the Pruner's own: quantisation does."""
        self._stepping.add(holding)

    def let_go(self, holding: Holding) -> None:
        """Let a way of holding weights act no more."""
        self._stepping.drop(holding)

    def detach(self) -> None:
        """Let go of model and optimizer: the zeros stay, nothing holds them any more."""
        with torch.no_grad():
            for holding in self.holdings:
                holding.settle_(self._params)
        self._stepping.release()
        self.zeros.end_()
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
        self.zeros.alive = {name: mask.clone() for name, mask in state["masks"].items() if not mask.all()}
        with torch.no_grad():
            for name in self.zeros.alive:
                self.zeros.hold_(name)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_saved(state)
        check_masks(state["masks"], self._params, every=True, what="the saved masks")
        self._watcher.check_state(state)
