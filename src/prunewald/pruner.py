"""The Pruner: the front door, and the only part with state. It watches the optimizer, prunes, and holds the zeros."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Allocation, Criterion, Pattern, Schedule
from prunewald.core.patterns import Filter
from prunewald.distributed import in_group, refuse_sharded, refuse_shards
from prunewald.model.calibration import Calibration
from prunewald.model.groups import Group
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain, plain_names
from prunewald.model.optimizers import as_given, owned, step_taken
from prunewald.model.targets import Target, find_slices
from prunewald.pruning.gradual import Gradual
from prunewald.pruning.grouped import Coupling
from prunewald.pruning.holding.holding import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.noticing import Guard
from prunewald.pruning.observing import pass_gradients, pass_inputs
from prunewald.pruning.owning import claim, leave
from prunewald.pruning.plan import (
    Choices,
    Limit,
    Of,
    Plan,
    Request,
    SigmaSource,
    Sparsity,
    online,
    resolve,
    sigma_source,
)
from prunewald.pruning.reaching import Reach
from prunewald.pruning.report import Report, warn_emptied
from prunewald.pruning.resuming import check_saved, packed, unpacked
from prunewald.pruning.stepping import Stepping, after_backward
from prunewald.pruning.subject import DETACHED, Subject
from prunewald.pruning.view import PrunerView
from prunewald.pruning.waiting import Waiting
from prunewald.pruning.watching import Watcher
from prunewald.refitting.call import refit_pruned
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.files import FilePath
from prunewald.util.registry import make


class Pruner(PrunerView):
    """Prunes a model by a criterion and keeps the pruned weights at zero while the user's own loop trains on.

    The masks live here, outside the model, which keeps its type, its parameter names and its state_dict.

    - `optimizer`: one, or several, also as Accelerate, Lightning or a Trainer wraps them, inside SAM or Lookahead, or
      schedule-free; with None, call `apply_()` after each step of your own.
    - `criterion`, `uncertainty`, `scope`, `pattern`: a part or its short name. An uncertainty may also be a dict of
      sigma by parameter name. By default tau with the optimizer's own second moment; where it keeps none, with one
      that is averaged here, every tenth step, or after fewer than 100 steps magnitude.
      One sparsity is shared out over the targets by LAMP of |w|; `scope="layer"` prunes each to it, as the paper does.
    - `schedule`: prunes by itself while the optimizer (of several, the last) steps: `Cubic(0.9, begin=1000, end=9000)`.
      A pruning for which there is no sigma yet is put off, with a warning, until there is. `total_steps` is how long
      the training is, epochs times batches: `schedule="cubic", total_steps=...` ends with it.
    - `targets`, `ignore`: names, globs, module types, modules, parameters, or slices: "conv1.weight[2]",
      ("fc.weight", index). By default the weights of layers by a table that can be extended
      (`prunewald.model.layouts`); what else has two or more dimensions is left out, and the report names it.

    What is given can be read, not set (`criterion`, `uncertainty`, `scope`, ...). What the Pruner holds is a property
    (`masks`, `steps`, `sparsity`, `report`), what it has to compute is a method.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        criterion: Criterion | str | None = None,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str | None = None,
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
        total_steps: int | None = None,
    ) -> None:
        inside = plain(model)
        slices = find_slices(inside, targets, ignore)
        named = dict(inside.named_parameters())
        self._params: dict[str, Tensor] = {part.param: named[part.param] for part in slices}
        if in_group():
            refuse_shards(self._params)
        names, optimizers, kept, evaluations = as_given(optimizer)
        self._owners = owned(self._params, optimizers)
        sigma = None if uncertainty is None else plain_names(model, uncertainty)
        self._choices = Choices.of(criterion, sigma, scope, pattern, schedule, total_steps)
        self._choices.check(slices, self._params)
        watched = self._choices.watched
        self._report, self._steps = None, 0
        claim(self, self._params)
        zeros = Zeros(self._params)
        self._watcher = Watcher(inside, self._params, optimizers, self._owners, *watched, aside=self._choices.open)
        watches = self._choices.watches_reach
        self._reach = Reach(self._params, self._owners, sigma_source(self._choices, {}).patience, watches)
        self._stepping = Stepping(optimizers, self._owners, self._after_step, kept)
        guard = Guard(inside, zeros, names, Waiting(evaluations), model)
        coupling = Coupling(inside, slices, by.dim) if isinstance(by := self._choices.pattern, Filter) else None
        self._subject = Subject(inside, slices, zeros, self._watcher, self._reach, self._stepping, guard, coupling)
        planned = self._choices.schedule
        self._gradual = None if planned is None else Gradual(planned, self._subject, self._plan)
        if planned is not None:
            guard.wait()

    # ---- pruning -------------------------------------------------------------------------------------------------

    def prune(
        self,
        sparsity: Sparsity | None = None,
        *,
        threshold: Limit | None = None,
        alpha: float | None = None,
        fdr: float | None = None,
        quality: Limit | None = None,
        uncertainty: SigmaSource | None = None,
        example_inputs: Any = None,
        of: Of = "weights",
        dry_run: bool = False,
        refit: Iterable[Any] | None = None,
        folder: FilePath | None = None,
    ) -> Report:
        """Prune until `sparsity` of the total is zero, or everything that scores below `threshold`; tell what was done.

        `sparsity` is a fraction, or a dict of fractions by layer (the others stay as they are); a pattern that fixes
        its own, as n-of-m does, needs none. `threshold` may be a dict by layer too. `quality` prunes each layer, by
        magnitude, below so many standard deviations of its weights (Han et al. 2015), or is a dict. `alpha` keeps
        what a Wald test finds different from zero at that level, `fdr` what it finds with that false discovery rate (of
        each target, or of all with scope "global"). `uncertainty` is for this pruning alone, such as sigmas that were
        estimated for it. With `dry_run` nothing changes. On any error the model is as it was.

        With `example_inputs`, what the model is called with (a tensor, a tuple, or a dict), `pattern=Filter()` prunes
        filters, neurons and heads together with all that is coupled to them, as `couple` finds it. `of` says of what
        the sparsity is then a share: "weights" of the targets, "filters", all "parameters", or "macs".

        `refit` are batches of data on which the surviving weights are fitted by least squares to what the dense model
        gives, as `pw.refit` does it: instead of retraining, or before it. The dense weights are meanwhile in memory, or
        where one is given on disk in a `folder`.
        """
        if dry_run and refit is not None:
            raise ValueError("dry_run=True with refit=...: nothing changes in a dry run, so leave one of them out")
        request = Request(sparsity, threshold, alpha, fdr, quality, of)
        plan = self._plan(request, uncertainty, example_inputs=example_inputs)
        masks, report = self._subject.choose(plan)
        if dry_run:
            return replace(report, dry_run=True)
        if self._subject.guard.loaded:
            self._subject.guard.settle()
        if refit is not None:
            beside = self._subject.beside(masks, plan.coupled)
            report = replace(report, refit=refit_pruned(self, masks | beside, refit, folder))
        if notes := self._subject.hold(masks, plan.coupled):
            report = replace(report, notes=[*report.notes, *notes])
        self._subject.restart()
        before, self._report = self._report, report
        if any(loss.grave for loss in report.lost_rows) or any(not row.kept for row in report.rows):
            warn_emptied(report, () if before is None else before.emptied)
        return report

    def _plan(
        self,
        request: Request,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str | None = None,
        criterion: Criterion | str | None = None,
        example_inputs: Any = None,
    ) -> Plan:
        choices, given = self._choices, self._subject.guard.given
        if uncertainty is not None:
            sigma = plain_names(self.model if given is None else given, uncertainty)  # what is compiled may have no len
            choices = replace(choices, uncertainty=online(sigma))
        if scope is not None:
            choices = replace(choices, scope=make("scope", scope))
        if criterion is not None:
            choices = replace(choices, criterion=make("criterion", criterion))
        own = self._watcher
        looked, coupled = own.looked.get("sigma", 0), None
        if example_inputs is not None or request.of != "weights" or self._subject.coupling is not None:
            coupled = self._subject.coupled(example_inputs, request.of)
        known = self.model, self.slices, self._params, self.optimizers, own.seen(), looked
        return resolve(choices, request, *known, coupled)

    def observe(
        self, batches: Batches, loss: Loss | None = None, *, limit: int | None = None, progress: bool = False
    ) -> dict[str, int]:
        """Gather from data whatever this Pruner asks of them; how many living weights of each parameter are dead.

        One pass over `batches`, or over the first `limit` of them, in eval mode, changes nothing else. From it come

        - which weights are dead: from now on what neither these data reach nor, where it is watched, the training does;
        - what the criterion goes by: for Wanda the inputs of layers, for SNIP, Taylor, OBD the gradients of batches;
        - for `SecondMoment()`, also by default, an average of squared gradients, one a batch, where no optimizer keeps
          one: with ten batches or more a model needs no more than its file to be pruned by tau.

        The report of a pruning says so; it holds until the next, dead weights also no longer than until so many steps
        are watched that they tell by themselves. Batches are as a training loop has them: pairs of inputs and targets,
        or dicts, also of Hugging Face. Without a `loss` it is the one that the model computes itself from labels in the
        batch. Where only the inputs of layers are asked for, as by Wanda, no loss is needed and nothing is said of
        dead weights.
        """
        data = Calibration(batches, self.model, passes=1, limit=limit, progress=progress)
        with self._watcher.observing(self._choices.by_gradient) as take:
            frozen = not any(param.requires_grad for param in self._params.values())
            if self._choices.by_inputs and (loss is None or frozen):
                pass_inputs(self.model, data, take)
                return {}
            with self._reach.observing() as names:
                pass_gradients(self.model, {name: self._params[name] for name in names}, data, loss, take)
        dead, masks = self.dead(), self._subject.zeros.mask
        return {name: int(torch.count_nonzero(dead[name] & masks(name))) for name in names}

    def couple(self, example_inputs: Any, groups: Sequence[Group] | None = None) -> list[Group]:
        """Find the coupled groups of the model, for what is pruned and all further prunings, also of a schedule.

        A unit of a group, a filter, a neuron or a head, goes with all that makes it, reads it, or is beside it. They
        are found from one pass over `example_inputs`; `prune(..., example_inputs=...)` does so by itself. For a model
        that cannot be followed, `groups` of your own are taken instead.
        """
        self._subject.couple(example_inputs, groups)
        return self.groups

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take masks from elsewhere, of the same model: what they prune is zero and stays so, what they keep learns."""
        check_masks(masks, self._params, every=True)
        self._subject.guard.put_back_()
        self._subject.hold({name: mask.to(self._params[name].device, copy=True) for name, mask in masks.items()})
        self.restart()

    def hold_zeros(self) -> None:
        """Take the zeros that the targets have now for pruned, and hold them: of a model that was pruned elsewhere."""
        masks = self.masks
        self._subject.guard.put_back_()
        for part in self.slices:
            part.put_(masks[part.param], part.take(self._params[part.param].detach() != 0))
        self.set_masks(masks)

    @classmethod
    def from_file(
        cls, path: FilePath, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer] | None = None, **choices: Any
    ) -> Self:
        """Load a packed file into a model and hold its zeros, to train on or prune further; `choices` are its own."""
        from prunewald.storage import load

        load(path, into=model)
        pruner = cls(model, optimizer, **choices)
        pruner.hold_zeros()
        return pruner

    # ---- steps ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the pruned weights to zero again; without an optimizer this is also the step the estimator sees."""
        self._subject.guard.find()
        self._subject.zeros.settle_(self._subject.zeros.held)
        for holding in self.holdings:
            holding.settle_(self._params)
        self._subject.guard.waiting.stepped()
        if self._subject.zeros.attached and not self.optimizers:
            self._watcher.update_(0, None)
            self._reach.update_(0)
            self._advance_(None)

    def _after_step(self, at: int, optimizer: Optimizer) -> None:
        if in_group():
            refuse_sharded(self.model, self._params)
        self._subject.guard.stepped()
        self._subject.settle_(at, self._owners[at])
        self._watcher.update_(at, optimizer)
        self._reach.update_(at)
        if optimizer is self.optimizers[-1]:
            self._advance_(optimizer)

    def _advance_(self, optimizer: Optimizer | None) -> None:
        """Count a step, unless it was skipped, and do what is due after it."""
        took = step_taken(optimizer)
        self._steps = self._steps + (1 if took is None else took)
        # Only what acts at certain steps has to wait for the device to tell.
        if self._acting and (took is None or bool(took)):
            after_backward(self._act_)

    @property
    def _acting(self) -> bool:
        """Whether anything is to be done by itself after some steps."""
        return self._gradual is not None

    def _act_(self) -> None:
        """Prune, if the schedule says so."""
        if self._gradual is not None:
            self._report = self._gradual.act_(self.steps, first=self._report is None) or self._report

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

    def restart(self) -> None:
        """Forget what was gathered of the weights, and begin anew: they have other values now."""
        self._subject.restart()

    def reset(self) -> None:
        """Prune nothing any more: the model is plain and trainable with its present values, and can be pruned anew."""
        self._subject.release()
        self.restart()
        self._report = None
        if self._gradual is not None:
            self._gradual.owed = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and self._gradual is not None and self._subject.zeros.attached:
            self._gradual.warn_unfinished(self.sparsity, self.steps)  # a plain detach() may well be meant to stop it
        self.detach()

    def detach(self) -> None:
        """Let go of model and optimizer: nothing holds the zeros any more, and what was loaded last stays as it is."""
        leave(self, self._params)
        with torch.no_grad():
            for holding in self.holdings:
                holding.settle_(self._params)
        self._subject.guard.release()
        self._stepping.release()
        self._subject.zeros.end_()
        self._watcher.release()
        self._reach.release()

    # ---- resume --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Masks, a bit a weight, and what the estimator needs to go on exactly: tensors and plain numbers.

        It is safe under torch.load(weights_only=True), and torch.distributed.checkpoint loads it into that of a Pruner
        made anew. As in torch's own, the tensors of the estimator are the living ones: deepcopy what you keep in
        memory.
        """
        self._check_whole()
        self._subject.guard.look()
        owed = 0.0 if self._gradual is None else self._gradual.owed
        # All keys are always there: what the present state lacks, torch.distributed.checkpoint does not load.
        own = {"masks": packed(self.masks), "steps": self.steps, "owed": owed}
        return (
            own
            | self._subject.saved()
            | {
                "history": [list(one) for one in self.history],
                "reach": self._reach.state_dict(),
                **self._watcher.state_dict(),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; one of other parameters or another kind of estimator is an error."""
        self._check_whole()
        self.check_state(state)
        self._subject.guard.put_back_()
        self._steps = state["steps"]
        if self._gradual is not None:
            self._gradual.owed = float(state.get("owed", 0.0))
            self._gradual.history = [(int(step), *levels) for step, *levels in state.get("history", [])]
        self._subject.resume_(state)
        self._watcher.load_state_dict(state)
        self._reach.load_state_dict(state.get("reach", ()))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """An error where `load_state_dict` would give one; nothing is loaded."""
        if not self._subject.zeros.attached:
            raise ValueError(DETACHED)
        check_saved(state)
        check_masks(unpacked(state["masks"]), self._params, every=True, what="the saved masks")
        self._subject.check_saved(state)
        self._watcher.check_state(state)
        self._reach.check_state(state.get("reach", ()))
