"""The Pruner: the only part with state. It watches the optimizer, prunes, and makes the zeros hold."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.allocation import Allocation, layer_count
from prunewald.checks import (
    check_moved,
    check_online,
    check_request,
    check_sigmas,
    check_state,
    check_trained,
    copied,
    describe,
)
from prunewald.criteria import Criterion, Magnitude, MagnitudeUncertainty, Wald
from prunewald.optimizers import as_list, forget_, forget_history_, keeps_mean_square, owned
from prunewald.patterns import Pattern
from prunewald.registry import brief, make, name_of
from prunewald.report import Report, Row
from prunewald.scoring import Scorer
from prunewald.selection import Scores
from prunewald.significance import honest_label, z_thresholds
from prunewald.targets import Target, find_parts, match
from prunewald.uncertainty import Estimate, Online, SecondMoment
from prunewald.weights import Part, Weight, accumulator, zero_

Sparsity: TypeAlias = float | Mapping[str, float]


class Pruner:
    """Prunes a model by a criterion and keeps the pruned weights at zero while the user's own loop trains on.

    The masks live here, outside the model, which keeps its type, its parameter names and its state_dict.

    - `optimizer`: one, or several; with None, call `apply_()` after each step of your own.
    - `criterion`, `uncertainty`, `scope`, `pattern`: a part or its short name. An uncertainty may also be a dict of
      sigma by parameter name. By default tau with the optimizer's own second moment; where it keeps none, magnitude.
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
        self.parts = find_parts(self.model, targets, ignore)
        named = dict(self.model.named_parameters())
        self._params = {part.param: named[part.param] for part in self.parts}
        self._owners = owned(self._params, self.optimizers)
        self._alive: dict[str, Tensor] = {}  # of the parameters where anything was pruned
        self._states = self._fresh_states()
        self._handles: list[Any] = [
            o.register_step_post_hook(torch.compiler.disable(self._after_step)) for o in self.optimizers
        ]
        self._masked: set[str] = set()  # parameters with a gradient hook
        self._attached = True

    # ---- what the user reads -------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return {name: self._mask(name).clone() for name in self._params}

    @property
    def sparsity(self) -> float:
        """The share of all targeted weights that is pruned."""
        sizes = [part.take(self._params[part.param]).numel() for part in self.parts]
        return 1 - sum(map(self._alive_count, self.parts)) / sum(sizes)

    def sigma(self) -> dict[str, Tensor]:
        """The uncertainty of each weight, by parameter name."""
        return {name: self._estimate(weight).sigma for name, weight in self._ready_weights().items()}

    def frozen(self) -> dict[str, Tensor]:
        """By parameter name, True where no gradient reached a weight while it was watched."""
        estimates = {name: self._estimate(weight) for name, weight in self._ready_weights().items()}
        return {name: e.frozen for name, e in estimates.items() if e.frozen is not None}

    def scores(self) -> dict[str, Tensor]:
        """The score of each weight, by parameter name: -inf where pruned, negative where frozen, NaN off target."""
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
        return f"Pruner({type(self.model).__name__}, {chosen}, {len(self.parts)} targets, {self.sparsity:.2%} pruned)"

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

        `sparsity` is a fraction, or a dict of fractions by layer (the others stay as they are). `alpha` keeps what a
        Wald test finds different from zero at that level, `fdr` what it finds with that false discovery rate (of each
        target, or of all with scope "global"). With `dry_run` nothing changes. On any error the model is as it was.
        """
        check_request(sparsity, threshold, alpha, fdr)
        testing = alpha is not None or fdr is not None
        scorer, notes = self._scorer(Wald() if testing else self.criterion)
        scores = scorer.scores()
        counts = None if sparsity is None else self._counts(scores, sparsity)
        limits = dict.fromkeys(scores, threshold or 0.0)
        if testing:
            together = name_of("allocation", self.scope) == "global"
            limits = z_thresholds(scores, alpha=alpha, fdr=fdr, df=self._degrees(), together=together)
            notes = notes + honest_label(self.uncertainty)
        masks, rows = self._select(scorer, counts, limits)
        report = self._report(scorer, rows, notes, dry_run)
        if not dry_run:
            self._commit(masks)
        return report

    def _degrees(self) -> float | None:
        """Of freedom, where the estimator's z is t-distributed: the fewest of several."""
        degrees = getattr(self._online, "degrees", None)
        return (
            None
            if degrees is None
            else min(degrees(s) for s, own in zip(self._states, self._owners, strict=True) if own)
        )

    def _scorer(self, criterion: Criterion | None) -> tuple[Scorer, list[str]]:
        """The criterion in force, over weights that were checked."""
        criterion, notes = self._default_criterion() if criterion is None else (criterion, [])
        if not self._uses_sigma(criterion):
            return Scorer(self._weights(), self.parts, criterion, None), notes
        return Scorer(self._ready_weights(), self.parts, criterion, self._estimate), notes

    def _uses_sigma(self, criterion: Criterion) -> bool:
        # A plain function says nothing of itself: it gets a sigma if there is one.
        return getattr(criterion, "uses_sigma", self.uncertainty is not None)

    def _default_criterion(self) -> tuple[Criterion, list[str]]:
        if self.uncertainty is not None:
            return MagnitudeUncertainty(), []
        without = [name for name, p in self._params.items() if not keeps_mean_square(self._optimizer_of(name), p)]
        if not without:
            return MagnitudeUncertainty(), []
        kind = self._optimizer_of(without[0])
        reason = "there is no optimizer" if kind is None else f"{type(kind).__name__} holds no second moment"
        note = (
            f"criterion: magnitude, since {reason} of {without[0]!r} (uncertainty=PseudoBootstrap() would give sigma)"
        )
        return Magnitude(), [note]

    def _counts(self, scores: Scores, sparsity: Sparsity) -> dict[str, int]:
        """How many weights each part keeps; refuses to bring any back."""
        alive = {part.name: self._alive_count(part) for part in self.parts}
        if isinstance(sparsity, Mapping):
            counts = alive | {
                name: layer_count(scores.sizes[name], share) for name, share in self._by_part(sparsity).items()
            }
        else:
            counts = self.scope(scores, sparsity)
        for name, count in counts.items():
            if count > alive[name]:
                size = scores.sizes[name]
                raise ValueError(
                    f"sparsity {sparsity!r} would bring weights of {name!r} back: it is to keep {count:,} of {size:,}, "
                    f"but {size - alive[name]:,} are pruned already. Ask for more, or give a dict by layer"
                )
        return counts

    def _by_part(self, sparsity: Mapping[str, float]) -> dict[str, float]:
        """Resolve the keys of a dict: part names, parameter names, modules, globs."""
        names = {part.name for part in self.parts}
        result: dict[str, float] = {}
        for key, share in sparsity.items():
            meant = match(self.model, key)
            whole = {part.param for part in meant if part.index is None}
            spelled = {key, *(part.name for part in meant)}
            hit = {part.name for part in self.parts if part.name in spelled or part.param in whole}
            if not hit:
                raise ValueError(f"sparsity for {key!r}: no target of that name; the targets are {sorted(names)}")
            if twice := hit & result.keys():
                raise ValueError(f"sparsity for {key!r} names {sorted(twice)} a second time")
            result |= dict.fromkeys(hit, share)
        return result

    def _select(
        self, scorer: Scorer, counts: Mapping[str, int] | None, limits: Mapping[str, float]
    ) -> tuple[dict[str, Tensor], list[Row]]:
        """The new masks, and the report's rows; nothing is changed yet."""
        masks = {name: self._mask(name).clone() for name in self._params}
        rows = []
        for part in self.parts:
            if counts is not None and counts[part.name] == self._alive_count(part):
                rows.append(scorer.untouched(part.name, part.take(masks[part.param])))
                continue
            stats = scorer.stats(part.name)
            ranked = scorer.rank(stats)
            keep = ranked.score >= limits[part.name] if counts is None else self.pattern(ranked, counts[part.name])
            part.put_(masks[part.param], keep)
            rows.append(scorer.row(stats, ranked, keep, self.pattern))
        return masks, rows

    def _report(self, scorer: Scorer, rows: Sequence[Row], notes: list[str], dry_run: bool) -> Report:
        if self.optimizers and not any(self._owners):
            notes = [
                *notes,
                "the optimizer steps none of the targets: nothing holds their zeros, and nothing moves them",
            ]
        if empty := [row.name for row in rows if not row.kept]:
            notes = [*notes, f"emptied: {', '.join(empty)} lost all weights, and pass nothing on"]
        sigma = ""
        if scorer.estimate is not None:
            sigma = describe(SecondMoment() if self.uncertainty is None else self.uncertainty)
        return Report(rows, brief(scorer.criterion), sigma, name_of("allocation", self.scope), notes, dry_run)

    @torch.no_grad()
    def _commit(self, masks: dict[str, Tensor]) -> None:
        for name, alive in masks.items():
            self._alive[name] = alive
            self._hold_(name)
            for optimizer in self.optimizers:
                forget_(optimizer, self._params[name], alive)
        for optimizer in self.optimizers:
            forget_history_(optimizer)
        self._states = self._fresh_states()

    # ---- holding the zeros ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the pruned weights to zero again; without an optimizer this is also the step the estimator sees."""
        for name in self._alive:
            self._hold_(name)
        if self._attached and not self.optimizers:
            self._watch_(0, None)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        at = next(i for i, own in enumerate(self.optimizers) if own is optimizer)
        for name in self._alive:
            zero_(self._params[name], self._mask(name))
            self._hook_(name)
        self._watch_(at, optimizer)

    def _watch_(self, at: int, optimizer: Optimizer | None) -> None:
        if self._online is not None:
            self._online.update_(self._states[at], {n: self._params[n] for n in self._owners[at]}, optimizer)

    def _hold_(self, name: str) -> None:
        """Zero the pruned weights of a parameter and their gradients, now and after every backward pass."""
        zero_(self._params[name], self._mask(name))
        self._mask_grad(name, self._params[name])
        self._hook_(name)

    def _hook_(self, name: str) -> None:
        """Mask the gradient after every backward pass, from when the parameter takes one."""
        param = self._params[name]
        if self._attached and param.requires_grad and name not in self._masked:
            self._handles.append(param.register_post_accumulate_grad_hook(partial(self._mask_grad, name)))
            self._masked.add(name)

    def _mask_grad(self, name: str, param: Tensor) -> None:
        # A sparse gradient has no place to mask; its weight is zeroed after the step all the same.
        if param.grad is not None and not param.grad.is_sparse:
            zero_(param.grad, self._mask(name))

    def detach(self) -> None:
        """Let go of model and optimizer: the zeros stay, nothing holds them any more."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._masked, self._attached = [], set(), False

    # ---- resume --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Masks and estimator state: tensors and plain numbers, safe under torch.load(weights_only=True).

        As in torch's own, the tensors are the living ones: deepcopy what you keep in memory.
        """
        return {"masks": self.masks, "states": self._states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; one of other parameters or another kind of estimator is an error."""
        check_state(state, self._params, self._owners, self._states)
        self._states = copied(state["states"])
        self._alive = {name: mask.clone() for name, mask in state["masks"].items() if not mask.all()}
        with torch.no_grad():
            for name in self._alive:
                self._hold_(name)

    # ---- parts of the above --------------------------------------------------------------------------------------

    @property
    def _online(self) -> Online | None:
        return None if self.uncertainty is None or isinstance(self.uncertainty, Mapping) else self.uncertainty

    def _fresh_states(self) -> list[dict[str, Any]]:
        return [] if self._online is None else [self._online.init() for _ in self._owners]

    def _mask(self, name: str) -> Tensor:
        """True where a weight is alive, on the device where the parameter is now."""
        param = self._params[name]
        if name not in self._alive:
            return torch.ones((), dtype=torch.bool, device=param.device).expand(param.shape)
        if self._alive[name].device != param.device:
            self._alive[name] = self._alive[name].to(param.device)
        return self._alive[name]

    def _alive_count(self, part: Part) -> int:
        return int(torch.count_nonzero(part.take(self._mask(part.param))))

    def _optimizer_of(self, name: str) -> Optimizer | None:
        return next((o for o, own in zip(self.optimizers, self._owners, strict=False) if name in own), None)

    def _weights(self) -> dict[str, Weight]:
        """All parameters that hold targets, after a check that they can be pruned."""
        if not self._attached:
            raise ValueError("this Pruner was detached: make a new one to go on pruning")
        current = dict(self.model.named_parameters())
        for name, param in self._params.items():
            if name not in current or current[name] is not param:
                raise ValueError(
                    f"{name!r} is not the parameter it was when the Pruner was attached: attach a new Pruner"
                )
            low, high = param.data.aminmax()
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ValueError(f"{name!r} has NaN or infinite weights: prune an earlier checkpoint")
        return {n: Weight(n, p, self._mask(n) if n in self._alive else None) for n, p in self._params.items()}

    def _ready_weights(self) -> dict[str, Weight]:
        """The same, after a check that each has an uncertainty."""
        weights = self._weights()
        if isinstance(self.uncertainty, Mapping):
            check_sigmas(self.uncertainty, self._params)
        else:
            check_trained(self._params, self._owners)
        if self._online is not None:
            for state, own in zip(self._states, self._owners, strict=True):
                if own:
                    self._online.check(state)
        return weights

    def _estimate(self, weight: Weight) -> Estimate:
        if isinstance(self.uncertainty, Mapping):
            sigma = torch.as_tensor(self.uncertainty[weight.name])
            return Estimate(sigma.to(weight.param.device, accumulator(weight.param)), None)
        at = next(i for i, own in enumerate(self._owners) if weight.name in own)
        online = self._online or SecondMoment()
        state = self._states[at] if self._states else online.init()
        estimate = online.sigma(state, weight, self._optimizer_of(weight.name))
        check_moved(weight, estimate)
        return estimate
