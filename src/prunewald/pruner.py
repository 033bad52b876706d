"""The Pruner: the front door, and the only part with state. It watches the optimizer, prunes, and holds the zeros."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Allocation, Criterion, Online, Pattern, Schedule
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.model.optimizers import as_list, owned, step_taken
from prunewald.model.slices import Slice, Slices
from prunewald.model.targets import Target, find_slices
from prunewald.pruning.gradual import Gradual
from prunewald.pruning.holding.holding import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Choices, Plan, Request, Sparsity, online, resolve, sigma_source
from prunewald.pruning.report import Report, warn_emptied
from prunewald.pruning.resuming import check_saved
from prunewald.pruning.stepping import Stepping
from prunewald.pruning.subject import Subject
from prunewald.pruning.watching import Watcher

SigmaSource = Online | Mapping[str, Tensor] | str


def fixed(path: str, doc: str) -> Any:
    """What was given when a Pruner was made: it can be read, and an attempt to set it says what to do."""

    def refuse(self: "Pruner", value: object) -> None:
        name = path.rpartition(".")[2]
        raise AttributeError(
            f"{name}={repr(value)[:200]}: {name} is fixed when a {type(self).__name__} is made; make a new one"
        )

    return property(attrgetter(path), refuse, doc=doc)


class Pruner:
    """Prunes a model by a criterion and keeps the pruned weights at zero while the user's own loop trains on.

    The masks live here, outside the model, which keeps its type, its parameter names and its state_dict.

    - `optimizer`: one, or several; with None, call `apply_()` after each step of your own.
    - `criterion`, `uncertainty`, `scope`, `pattern`: a part or its short name. An uncertainty may also be a dict of
      sigma by parameter name. By default tau with the optimizer's own second moment; where it keeps none, magnitude.
    - `schedule`: prunes by itself while the optimizer (of several, the last) steps: `Cubic(0.9, begin=1000, end=9000)`.
      A pruning for which there is no sigma yet is put off, with a warning, until there is.
    - `targets`, `ignore`: names, globs, module types, modules, parameters, or slices: "conv1.weight[2]",
      ("fc.weight", index). By default the weights of layers by a table that can be extended
      (`prunewald.model.layouts`); what else has two or more dimensions is left out, and the report names it.

    What is given can be read, not set (`criterion`, `uncertainty`, `scope`, ...). What the Pruner holds is a property
    (`masks`, `steps`, `sparsity`, `report`), what it has to compute is a method.
    """

    criterion: Criterion | None = fixed("_choices.criterion", "How weights are scored; None: by the default.")
    uncertainty: Online | None = fixed("_choices.uncertainty", "Where sigma comes from; None: from the default.")
    scope: Allocation = fixed("_choices.scope", "How many weights each target keeps.")
    pattern: Pattern = fixed("_choices.pattern", "Which weights go together.")
    schedule: Schedule | None = fixed("_choices.schedule", "When the Pruner prunes by itself.")
    model: nn.Module = fixed("_subject.model", "What is pruned, without what torch.compile wraps around it.")
    slices: Slices = fixed("_subject.slices", "The targets: parameters, or slices of them.")
    zeros: Zeros = fixed("_subject.zeros", "What holds the masks.")
    optimizers: Sequence[Optimizer] = fixed("_stepping.optimizers", "Those whose steps are watched.")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        criterion: Criterion | str | None = None,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str = "layer",
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
    ) -> None:
        inside, optimizers = plain(model), as_list(optimizer)
        slices = find_slices(inside, targets, ignore)
        named = dict(inside.named_parameters())
        self._params = {part.param: named[part.param] for part in slices}
        self._choices = Choices.of(criterion, uncertainty, scope, pattern, schedule)
        self._choices.check(slices, self._params)
        watched = self._choices.watched
        self._check(inside, slices, optimizers)
        self.report: Report | None = None  # of the last pruning, by a call or by the schedule
        self._steps: int | Tensor = 0
        zeros, owners = Zeros(self._params), owned(self._params, optimizers)
        self._watcher = Watcher(inside, self._params, optimizers, owners, *watched)
        self._stepping = Stepping(optimizers, owners, self._after_step)
        self._subject = Subject(inside, slices, zeros, self._watcher, self._stepping)
        planned = self._choices.schedule
        self._gradual = None if planned is None else Gradual(planned, self._subject, self._plan)

    def _check(self, model: nn.Module, slices: Sequence[Slice], optimizers: Sequence[Optimizer]) -> None:
        """Called before anything is attached: a subclass refuses here what it cannot work with."""

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return self._subject.zeros.masks()

    @property
    def steps(self) -> int:
        """How many steps were taken since attaching; of several optimizers, those of the last in the list."""
        return int(self._steps)

    @property
    def sparsity(self) -> float:
        """The share of all targeted weights that is pruned."""
        alive = [part.take(self._subject.zeros.mask(part.param)) for part in self.slices]
        return 1 - sum(int(torch.count_nonzero(a)) for a in alive) / sum(a.numel() for a in alive)

    @property
    def copies(self) -> dict[nn.Module, dict[str, Tensor]]:
        """The copies of the model that were given to `follow`, each with its parameters that are held."""
        return self._subject.zeros.copies

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
        chosen = f"criterion={self.criterion!r}, uncertainty={self.uncertainty!r}, scope={self.scope!r}"
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
        found = self._subject.estimates(sigma_source(self._choices))
        return {name: estimate.sigma for name, estimate in found.items()}

    def dead(self) -> dict[str, Tensor]:
        """By parameter name, True where no gradient reached a weight while it was watched."""
        found = self._subject.estimates(sigma_source(self._choices))
        return {name: estimate.dead for name, estimate in found.items() if estimate.dead is not None}

    def scores(self) -> dict[str, Tensor]:
        """The score of each weight, by parameter name: -inf where pruned, negative where dead, NaN off target."""
        found = {name: torch.full_like(p, torch.nan, dtype=torch.float32) for name, p in self._params.items()}
        with self._subject.in_sight():
            scores, _ = self._subject.scores(self._plan(Request(0.0)))
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
        uncertainty: SigmaSource | None = None,
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
        self._subject.hold(masks)
        self._watcher.restart()
        before, self.report = self.report, report
        if any(not row.kept for row in report.rows):
            warn_emptied(report, () if before is None else before.emptied)
        return report

    def choose(
        self,
        sparsity: Sparsity | None = None,
        *,
        threshold: float | None = None,
        alpha: float | None = None,
        fdr: float | None = None,
        uncertainty: SigmaSource | None = None,
    ) -> tuple[dict[str, Tensor], Report]:
        """The masks that `prune` would set, and its report; nothing changes."""
        return self._subject.choose(self._plan(Request(sparsity, threshold, alpha, fdr), uncertainty))

    def _plan(self, request: Request, uncertainty: SigmaSource | None = None) -> Plan:
        choices = self._choices if uncertainty is None else replace(self._choices, uncertainty=online(uncertainty))
        return resolve(choices, request, self.model, self.slices, self._params, self._watcher.optimizers)

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take masks from elsewhere, of the same model: what they prune is zero and stays so, what they keep learns."""
        check_masks(masks, self._params, every=True)
        self._subject.hold({name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()})
        self._watcher.restart()

    # ---- steps ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the pruned weights to zero again; without an optimizer this is also the step the estimator sees."""
        self._subject.zeros.settle_(self._params)
        for holding in self.holdings:
            holding.settle_(self._params)
        if self._subject.zeros.attached and not self.optimizers:
            self._watcher.update_(0, None)
            self._advance_(None)

    def _after_step(self, at: int, optimizer: Optimizer) -> None:
        self._subject.zeros.settle_(self._params)
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
        return self._gradual is not None

    def _act_(self) -> None:
        """Prune, if the schedule says so."""
        if self._gradual is not None:
            self.report = self._gradual.act_(self.steps, first=self.report is None) or self.report

    def follow(self, copy: nn.Module) -> None:
        """Zero what is pruned in a copy of the model too, such as an AveragedModel: now, and whenever masks change."""
        with torch.no_grad():
            self._subject.zeros.follow(copy)

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
        self._subject.zeros.end_()
        self._watcher.release()

    # ---- resume --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Masks and estimator state: tensors and plain numbers, safe under torch.load(weights_only=True).

        As in torch's own, the tensors are the living ones: deepcopy what you keep in memory.
        """
        owed = 0.0 if self._gradual is None else self._gradual.owed
        return {"masks": self.masks, "steps": self.steps, "owed": owed, **self._watcher.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; one of other parameters or another kind of estimator is an error."""
        self._check_state(state)
        self._watcher.load_state_dict(state)
        self._steps = state["steps"]
        if self._gradual is not None:
            self._gradual.owed = float(state.get("owed", 0.0))
        self._subject.zeros.alive = {name: mask.clone() for name, mask in state["masks"].items() if not mask.all()}
        with torch.no_grad():
            for name in self._subject.zeros.alive:
                self._subject.zeros.hold_(name)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_saved(state)
        check_masks(state["masks"], self._params, every=True, what="the saved masks")
        self._watcher.check_state(state)
