"""What can be read of a Pruner: what it was given, what it holds, and what it computes when asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Allocation, Criterion, Online, Pattern, Schedule
from prunewald.distributed import in_group, refuse_sharded
from prunewald.model.groups import Group
from prunewald.model.slices import Slices
from prunewald.pruning.gradual import Gradual
from prunewald.pruning.holding.holding import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Choices, Limit, Of, Plan, Request, SigmaSource, Sparsity, sigma_source
from prunewald.pruning.report import Report
from prunewald.pruning.scoring import Scored
from prunewald.pruning.sight import Sight
from prunewald.pruning.stepping import Stepping
from prunewald.pruning.subject import Subject
from prunewald.util.text import some

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def fixed(path: str, doc: str) -> Any:
    """What was given when a Pruner was made: it can be read, and an attempt to set it says what to do."""

    def refuse(self: object, value: object) -> None:
        name = path.rpartition(".")[2]
        raise AttributeError(
            f"{name}={repr(value)[:200]}: {name} is fixed when a {type(self).__name__} is made; make a new one"
        )

    return property(attrgetter(path), refuse, doc=doc)


class PrunerView:
    """The readable side of a Pruner; nothing here changes the model, the masks or what is attached."""

    _report: Report | None
    _choices: Choices
    _params: dict[str, Tensor]
    _steps: int | Tensor
    _stepping: Stepping
    _subject: Subject
    _gradual: Gradual | None
    _plan: Callable[..., Plan]

    criterion: Criterion | None = fixed("_choices.criterion", "How weights are scored; None: by the default.")
    uncertainty: Online | None = fixed("_choices.uncertainty", "Where sigma comes from; None: from the default.")
    scope: Allocation | None = fixed("_choices.scope", "How many weights each target keeps; None: by the default.")
    pattern: Pattern = fixed("_choices.pattern", "Which weights go together.")
    schedule: Schedule | None = fixed("_choices.schedule", "When the Pruner prunes by itself.")
    model: nn.Module = fixed("_subject.model", "What is pruned, without torch.compile or DDP around it.")
    slices: Slices = fixed("_subject.slices", "The targets: parameters, or slices of them.")
    zeros: Zeros = fixed("_subject.zeros", "What holds the masks.")
    optimizers: Sequence[Optimizer] = fixed("_stepping.optimizers", "Those whose steps are watched.")

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """By parameter name, True where a weight is alive; a copy."""
        return self._subject.zeros.masks()

    @property
    def beside(self) -> dict[str, Tensor]:
        """By parameter name, False where an entry of a bias or a norm is held at zero with a pruned filter; a copy."""
        return {name: self.zeros.mask(name).clone() for name in self.zeros.beside}

    @property
    def groups(self) -> list[Group]:
        """The coupled groups of which units can go as a whole; empty until `couple` or a pruning has found them."""
        known = None if self._subject.coupling is None else self._subject.coupling.coupled
        return [] if known is None else list(known.groups)

    @property
    def steps(self) -> int:
        """How many steps were taken since attaching; of several optimizers, those of the last in the list."""
        return int(self._steps)

    @property
    def sparsity(self) -> float:
        """The share of all targeted weights that is pruned and zero, at this moment."""
        self._check_whole()
        present = self._subject.present()
        held = ((part, present[part.param].detach(), self.zeros.mask(part.param)) for part in self.slices)
        kept = [part.take((weight != 0).logical_or_(alive)) for part, weight, alive in held]
        return 1 - sum(int(torch.count_nonzero(k)) for k in kept) / sum(k.numel() for k in kept)

    @property
    def report(self) -> Report | None:
        """What the last pruning did, by a call or by the schedule; where that is not so any more, a note says it."""
        if self._report is None or not (gone := self._gone()):
            return self._report
        return replace(self._report, notes=[f"at this moment {gone}", *self._report.notes])

    @report.setter
    def report(self, report: Report | None) -> None:
        self._report = report

    @property
    def history(self) -> list[tuple[int, float, float]]:
        """What a schedule has done so far: of each pruning the step, the sparsity asked for, and the one it gave."""
        return [] if self._gradual is None else list(self._gradual.history)

    @property
    def copies(self) -> dict[nn.Module, dict[str, Tensor]]:
        """The copies of the model that were given to `follow`, each with its parameters that are held."""
        return self._subject.zeros.copies

    @property
    def wrappers(self) -> list[Any]:
        """What is around the optimizers and keeps state of its own: Lookahead does."""
        inside = [id(optimizer.state) for optimizer in self.optimizers]
        return [one for one in self._stepping.kept if id(one.state) not in inside]

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """What acts on the weights around each step beside the zeros: quantisation, surgery."""
        return tuple(self._stepping.holdings)

    def _check_whole(self) -> None:
        """Refuse to go on, or to tell anything, once the parameters were sharded over processes."""
        if in_group():
            refuse_sharded(self.model, self._params)

    def __getstate__(self) -> None:
        raise TypeError(
            "a Pruner is tied to a model and an optimizer by hooks, which do not copy: copy those, make a new Pruner "
            "for them, and give it this one's state_dict()"
        )

    def __repr__(self) -> str:
        chosen = f"criterion={self.criterion!r}, uncertainty={self.uncertainty!r}, scope={self.scope!r}"
        try:
            states = [f"{self.sparsity:.2%} pruned"]
        except (TypeError, ValueError):
            states = []
        states += filter(None, [self._gone(), self._standing() if states else ""])
        about = f"{type(self.model).__name__}, {chosen}, {len(self.slices)} targets"
        return f"{type(self).__name__}({', '.join([about, *states])})"

    def _standing(self) -> str:
        """Where a schedule stands."""
        return "" if self._gradual is None else self._gradual.standing(self.sparsity, self.steps)

    def _gone(self) -> str:
        """What is not as the masks say at this moment, in words; empty where all is."""
        try:
            self._check_whole()
            present = self._subject.present()
        except (TypeError, ValueError) as reason:  # its parameters are no more
            return str(reason)
        revived = sum(self.zeros.revived(name, present[name]) for name in self.zeros.held if name in present)
        return f"{revived:,} pruned weights are not zero: apply_() sets them to zero again" if revived else ""

    def _repr_html_(self) -> str:
        report = "" if self._report is None else self._report._repr_html_()
        return f"<p>{escape(repr(self))}</p>{report}"

    # ---- what it computes ----------------------------------------------------------------------------------------

    def choose(
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
    ) -> tuple[dict[str, Tensor], Report]:
        """The masks that `prune` would set, and its report; nothing changes."""
        request = Request(sparsity, threshold, alpha, fdr, quality, of)
        return self._subject.choose(self._plan(request, uncertainty, example_inputs=example_inputs))

    def scores(self, *, scope: Allocation | str | None = None) -> Scored:
        """The score of each weight, by parameter name: -inf where pruned, negative where dead, NaN off target.

        They are as a pruning would have them, with another `scope` as one with that would: "global" gives all tensors
        one unit, so that their scores can be compared. The dict has the `criterion`, the `uncertainty` and `notes` on
        how they were found.
        """
        found = {name: torch.full_like(p, torch.nan, dtype=torch.float32) for name, p in self._params.items()}
        with self._subject.in_sight():
            plan = self._plan(Request(0.0), scope=scope)
            scores, reading = self._subject.scores(plan)
            for part in self.slices:
                part.put_(found[part.param], scores[part.name].score.to(torch.float32))
        return Scored(found, plan.criterion, plan.uncertainty, (*plan.notes, *reading.notes()))

    def targets(self) -> dict[str, Tensor]:
        """What is pruned, by name: parameters, or slices of them; a loss may use them, to regularise."""
        return {part.name: part.take(self._params[part.param]) for part in self.slices}

    def sigma(self) -> dict[str, Tensor]:
        """The uncertainty of each weight, by parameter name."""
        found = self._subject.estimates(sigma_source(self._choices, self._subject.watcher.seen()))
        return {name: estimate.sigma for name, estimate in found.items()}

    def dead(self) -> dict[str, Tensor]:
        """By parameter name, True where no gradient of the data reaches a weight; without those where it is unknown.

        In a group of processes that train together every one has to ask: they tell each other.
        """
        self._check_whole()
        found = {name: self._subject.reach.dead(name) for name in self._params}
        if any(dead is None and self._params[name].requires_grad for name, dead in found.items()):
            with suppress(ValueError):  # no sigma can be told of, so nothing more is known
                estimates = self._subject.estimates(sigma_source(self._choices, self._subject.watcher.seen()))
                found = {name: estimate.dead for name, estimate in estimates.items()}
        return {name: dead for name, dead in found.items() if dead is not None}

    @contextmanager
    def sight(self, criterion: Criterion | str | None = None) -> Iterator[Sight]:
        """All that a pruning would go by at this moment, to be drawn: weights, sigma, counts; nothing changes.

        With a `criterion` as one by that would, whatever the Pruner's own.
        """
        with self._subject.in_sight():
            plan = self._plan(Request(0.0), criterion=criterion)
            scores, reading = self._subject.scores(plan)
            yield Sight(plan, scores, reading.degrees(), tuple(reading.notes()), reading.averages())

    def plot(self, layer: str | None = None, *, sparsity: float | None = None, axes: "Axes | None" = None) -> "Axes":
        """Draw |w| against sigma of one target, the largest by default; returns the axes. Needs matplotlib.

        It shows which weights stay at a `sparsity` of all targets, and which would by magnitude with the same counts:
        by default at 0.9, or where some are pruned what is left.
        """
        from prunewald.pruning.drawing import plane

        sizes = {name: weight.numel() for name, weight in self.targets().items()}
        chosen = max(sizes, key=sizes.__getitem__) if layer is None else layer
        if chosen not in sizes:
            raise ValueError(f"layer={layer!r} is no target of this Pruner; it has {some(sizes, 6)}")
        with self.sight() as sight:
            return plane(sight, chosen, sparsity, axes)

    @property
    def at_work(self) -> str:
        """What the Pruner is in the middle of: a "schedule" that has not reached its end; empty where nothing is."""
        done = self._gradual is None or self._gradual.finished(self.sparsity, self.steps)
        return "" if done or not self.zeros.attached else "schedule"

    @property
    def holding(self) -> bool:
        """Whether there are zeros that it holds."""
        return self.zeros.attached and bool(self.zeros.alive)
