"""What one pruning uses: the caller's choices, what is asked for, and both resolved into one plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.allocation import LAMP, Layer
from prunewald.core.base import Allocation, Criterion, Offline, Online, Pattern, Schedule, Statistic, Uncertainty
from prunewald.core.criteria import Magnitude, MagnitudeUncertainty, Wald
from prunewald.core.patterns import Filter
from prunewald.model.optimizers import stepped_by, why_no_mean_square
from prunewald.model.slices import Slice, Slices
from prunewald.pruning.by_layer import by_slice, by_whole_layer
from prunewald.pruning.grouped import Coupled
from prunewald.uncertainty.second_moment import SecondMoment
from prunewald.util.arguments import one_of, real, share, whole
from prunewald.util.registry import brief, make, name_of
from prunewald.util.text import some

Of: TypeAlias = Literal["weights", "filters", "parameters", "macs"]
Sparsity: TypeAlias = float | Mapping[str, float]
Limit: TypeAlias = float | Mapping[str, float]  # a threshold, or what it is in units of a std; by layer in a dict
SigmaSource: TypeAlias = Online | Mapping[str, Tensor] | str  # what a caller may give for an uncertainty
_SHOWN = 6  # so many names of what was left out are listed

_ADAPTED = (
    "adapters add to {} at every pass: where these are zero the sum is not, and merging fills their zeros; "
    "for zeros that stay, merge first, then prune, or call prunewald.integrations.peft.mask_adapters(model, pruner)"
)
_MASKED = "the adapters of {} are masked where these are pruned: the sum has the same zeros, and merging keeps them"

_SHARED = "by default: LAMP of |w| says how many weights each layer keeps; scope='layer' prunes each to the same share"
_ONE_UNIT = "scope {} compares layers, so sigma and lambda are scaled by the spread of all targets, not layer by layer"
_ALONE = (
    "each tensor for itself: coupled layers are not pruned together, so little can be removed; give example_inputs=, "
    "or where a schedule prunes call pruner.couple(example_inputs) before"
)
_ALIKE_GROUPS = "by default: the same share of each coupled group; scope='global' compares their units over the model"
_ALIKE = "by default: the same share of each layer, since {} takes weights in groups; scope='lamp' shares out unevenly"

# What is taken where the caller names nothing.
_TAU, _MAGNITUDE, _WALD, _SECOND_MOMENT = MagnitudeUncertainty(), Magnitude(), Wald(), SecondMoment()
# What gathers where nobody chose a criterion or a sigma: a hundredth of a step, and only for optimizers that keep none.
_OWN = SecondMoment(every=10)
_ENOUGH = 10  # so many gradients make a mean square
_SHARED_OUT, _EACH = LAMP(), Layer()


@dataclass(frozen=True)
class Choices:
    """The parts a caller chose; None where a default is found at each pruning."""

    criterion: Criterion | None
    uncertainty: Online | None
    scope: Allocation | None
    pattern: Pattern
    schedule: Schedule | None

    @classmethod
    def of(
        cls,
        criterion: object,
        uncertainty: object,
        scope: object,
        pattern: object,
        schedule: object,
        total_steps: int | None = None,
    ) -> "Choices":
        """From parts, short names, classes, functions, or a dict of sigmas; a schedule is for so many steps in all."""
        chosen: Criterion | None = None if criterion is None else make("criterion", criterion).simplest
        sigma = None if uncertainty is None else online(uncertainty)
        if sigma is None and chosen is not None and chosen.uses_sigma:
            sigma = _SECOND_MOMENT
        planned: Schedule | None = None if schedule is None else make("schedule", schedule)
        if total_steps is not None:
            whole("total_steps", total_steps, 1)
            if planned is None:
                raise ValueError(f"total_steps={total_steps} is for a schedule, and there is none: schedule='cubic'")
            planned = planned.over(total_steps)
        shared = None if scope is None else make("scope", scope)
        return cls(chosen, sigma, shared, make("pattern", pattern), planned)

    @cached_property
    def open(self) -> bool:
        """Whether nobody chose how weights are scored, nor a sigma."""
        return self.criterion is None and self.uncertainty is None

    @property
    def watched(self) -> tuple[Online | None, Statistic | None]:
        """What gathers from step to step: the estimator that watches the training, the criterion's own statistic."""
        if self.open:
            return _OWN, None
        learns = self.uncertainty is not None and self.uncertainty.learns
        statistic = None if self.criterion is None else self.criterion.statistic
        return self.uncertainty if learns else None, statistic

    @property
    def watches_reach(self) -> bool:
        """Whether what gradients reach has to be watched: wherever a sigma may be used that is not given."""
        if self.uncertainty is None:
            return self.open
        return self.uncertainty.learns and (self.criterion is None or self.criterion.uses_sigma is not False)

    @property
    def by_inputs(self) -> bool:
        """Whether passes forward give all that is gathered from data: neither a sigma nor a gradient is wanted."""
        statistic = self.watched[1]
        return statistic is not None and statistic.by_inputs and not self.watches_reach

    @property
    def by_gradient(self) -> bool:
        """Whether the criterion scores by one gradient."""
        return self.criterion is not None and self.criterion.uses_gradient

    @property
    def least(self) -> int:
        """The first step after which there can be a sigma, where one is needed."""
        if self.uncertainty is None or (self.criterion is not None and self.criterion.uses_sigma is False):
            return 1
        return self.uncertainty.least

    def check(self, slices: Sequence[Slice], params: Mapping[str, Tensor]) -> None:
        """Refuse, before any training, a pattern that does not fit a target and a schedule that cannot be kept."""
        for part in () if self.pattern.single else slices:
            shape = tuple(part.take(params[part.param]).shape)
            try:
                self.pattern.check(shape if part.layout is None else part.layout.swapped(shape))
            except ValueError as error:
                raise ValueError(f"{part.name!r}: {error}") from error
        if self.schedule is not None:
            self._check_schedule(self.schedule)

    def _check_schedule(self, schedule: Schedule) -> None:
        final, most = schedule.final, self.pattern.sparsity
        if final is not None and most is not None and final > most:
            raise ValueError(
                f"{schedule!r} ends at {final}, but {self.pattern!r} prunes {most} and no more: set final={most}"
            )
        if self.uncertainty is not None and self.uncertainty.horizon is not None:
            raise ValueError(
                f"{self.uncertainty!r} collects for one pruning at its total_steps: with a schedule, leave that out"
            )
        if early := [step for step in range(1, self.least) if schedule(step)]:
            raise ValueError(
                f"{schedule!r} prunes at step {early[0]}, and {self.uncertainty!r} can tell nothing before step "
                f"{self.least}: begin later"
            )


def online(given: object) -> Online:
    """An uncertainty that a Pruner can use as it is: an offline one needs data, so it takes what that gives instead."""
    made: Uncertainty = make("uncertainty", given)
    if isinstance(made, Online):
        return made
    assert isinstance(made, Offline)
    name = type(made).__name__
    raise TypeError(f"{name} estimates from data: pass uncertainty={name}(...).estimate(model, batches, loss)")


@dataclass(frozen=True)
class Request:
    """How much a caller asks for: one of a sparsity, a threshold, a level, a false discovery rate and a quality."""

    sparsity: Sparsity | None = None
    threshold: Limit | None = None
    alpha: float | None = None
    fdr: float | None = None
    quality: Limit | None = None
    of: Of = "weights"  # of what a sparsity is a share
    rising: bool = False  # whether a sparsity below the present one changes nothing, rather than being an error

    def checked(self, pattern: Pattern) -> "Request":
        """The request itself, if its numbers are in range and fit the pattern; else an error.

        Where nothing is asked for and the pattern fixes its own sparsity, as n-of-m does, it is a request for that.
        """
        asked = {"sparsity": self.sparsity, "threshold": self.threshold, "alpha": self.alpha, "fdr": self.fdr}
        asked["quality"] = self.quality
        given = [name for name, value in asked.items() if value is not None]
        if not given and pattern.sparsity is not None:
            return replace(self, sparsity=pattern.sparsity)
        if len(given) != 1:
            shown = ", ".join(f"{name}={asked[name]!r}" for name in given) or "nothing"
            raise ValueError(f"prune() was given {shown}: give one of {', '.join(asked)}, as in prune(0.9)")
        if self.sparsity is None and not pattern.single:
            raise ValueError(f"{given[0]} chooses weights one by one, and {pattern!r} groups: give a sparsity")
        if self.of != "weights":
            self._check_of()
        self._check_values()
        return self

    def _check_of(self) -> None:
        one_of("of", self.of, get_args(Of))
        if isinstance(self.sparsity, Mapping) and self.of != "filters":
            raise ValueError(
                f"of={self.of!r} and a sparsity by layer: {self.of} are counted of the model as a whole, so give one "
                "share; a dict is of the units of each layer"
            )

    def _check_values(self) -> None:
        for name, level in (("alpha", self.alpha), ("fdr", self.fdr)):
            if level is not None:
                real(name, level, above=0, below=1)
        if isinstance(self.sparsity, Mapping) and not self.sparsity:
            raise ValueError("sparsity={} names no layer: give a share for one at least, as in prune({'fc1': 0.9})")
        numbers = (self.sparsity, "sparsity", share), (self.threshold, "threshold", real)
        for given, name, check in (*numbers, (self.quality, "quality", partial(real, least=0))):
            for key, number in given.items() if isinstance(given, Mapping) else ():
                check(f"{name} for {key!r}", number)
            if given is not None and not isinstance(given, Mapping):
                check(name, given)

    def by_slice(self, model: nn.Module, slices: Slices, scope: Allocation) -> "Request":
        """The same, but all that is by layer is by the names of the slices."""
        found: dict[str, Any] = {}
        for what in ("sparsity", "threshold", "quality"):
            if isinstance(given := vars(self)[what], Mapping):
                found[what] = by_slice(model, slices, given, what)
                if scope.whole_layers:
                    found[what] = by_whole_layer(slices, found[what])
        return replace(self, **found)


@dataclass(frozen=True)
class Plan:
    """All that one pruning uses, decided before anything is computed; the report prints it."""

    request: Request
    shares: Sparsity | None  # the sparsity asked for; where it is by layer, by the names of the slices
    limits: Limit | None  # the same for a threshold, or for a quality
    criterion: Criterion
    uncertainty: Online | None  # None: the criterion needs no sigma
    scope: Allocation
    pattern: Pattern
    tests: bool  # whether weights are chosen by a Wald test
    notes: tuple[str, ...]
    coupled: Coupled | None = None  # the groups whose units go as a whole; None: each tensor for itself


def resolve(
    choices: Choices,
    request: Request,
    model: nn.Module,
    slices: Slices,
    params: Mapping[str, Tensor],
    optimizers: Sequence[Optimizer],
    seen: Mapping[str, int],
    looked: int = 0,
    coupled: Coupled | None = None,
) -> Plan:
    """The plan of one pruning, from what was chosen and what is asked for.

    A criterion and a sigma that nobody chose are found here. The report names both, and where neither was chosen a
    note says how they were found. `seen` are the gradients that the Pruner averaged itself, by parameter, and `looked`
    is of how many batches of data they are, where they are of no training. Where groups are `coupled`, the pattern
    takes units of them as a whole.
    """
    request = request.checked(choices.pattern)
    tests = request.alpha is not None or request.fdr is not None
    stepping = stepped_by(params, optimizers)
    seen = {name: steps for name, steps in seen.items() if steps >= _ENOUGH and params[name].requires_grad}
    lacking = {name: param for name, param in params.items() if name not in seen}
    source = sigma_source(choices, seen)
    criterion, notes = (_WALD, []) if tests else _criterion(choices, request, params, lacking, stepping, looked)
    scope, said = _scope(choices, request, slices, coupled is not None)
    notes += said
    if stepping and (idle := [name for name, p in params.items() if p.requires_grad and name not in stepping]):
        notes.append(f"stepped by no optimizer of this Pruner: {', '.join(idle)}; give it those that step them too")
    needed = choices.uncertainty is not None if criterion.uses_sigma is None else criterion.uses_sigma
    sigma = source if needed else None
    if sigma is not None:
        notes += [*sigma.notes, *(sigma.caveats() if tests else ())]
    if scope.together and (criterion.unscaled is not criterion or (sigma is not None and sigma.unscaled is not sigma)):
        criterion = criterion.unscaled
        notes.append(_ONE_UNIT.format(name_of("scope", scope)))
    if slices.left_out:
        notes.append(_left_out(slices.left_out))
    if slices.adapted or slices.masked:
        notes += adapter_notes(slices)
    named = request
    if any(isinstance(given, Mapping) for given in (request.sparsity, request.threshold, request.quality)):
        named = request.by_slice(model, slices, scope)
    limits = named.threshold if named.quality is None else named.quality
    chosen = criterion, sigma, scope, choices.pattern
    return Plan(request, named.sparsity, limits, *chosen, tests, tuple(notes), coupled)


def _criterion(
    choices: Choices,
    request: Request,
    params: Mapping[str, Tensor],
    lacking: Mapping[str, Tensor],
    stepping: Mapping[str, Optimizer],
    looked: int,
) -> tuple[Criterion, list[str]]:
    """How weights are scored, and what to say where nobody chose that, nor a sigma."""
    if request.quality is not None:
        return _by_size(choices.criterion, request.quality), []
    if choices.criterion is not None:
        return choices.criterion, []
    if choices.uncertainty is not None:
        return _TAU, []
    if missing := why_no_mean_square(lacking, stepping):
        if 0 < looked < _ENOUGH:
            missing = f"only {looked} batches were observed, and {_ENOUGH} gradients make a mean square"
        return _MAGNITUDE, [f"criterion: magnitude, since {missing} ({_remedy(params, stepping)})"]
    own = "the Pruner averaged itself, " + ("of data" if looked else "every tenth step")
    averaged = [name for name in params if name not in lacking]
    kept = own if not lacking else "the optimizer keeps"
    if lacking and averaged:
        kept += f", of {some(averaged, _SHOWN)} one that {own}"
    return _TAU, [f"by default: tau with lambda* 1, sigma from the second moment that {kept}"]


def _scope(choices: Choices, request: Request, slices: Slices, coupled: bool) -> tuple[Allocation, list[str]]:
    """How many weights each target keeps, and what to say where nobody chose that.

    By default LAMP shares out one sparsity over several targets. There is nothing to share out where each has its own
    (a dict), where a limit decides, and of one target alone; whole groups go by the same share of each target.
    """
    alone = [_ALONE] if isinstance(choices.pattern, Filter) and not coupled else []
    if choices.scope is not None:
        return choices.scope, alone
    if len(slices) == 1 or request.sparsity is None or isinstance(request.sparsity, Mapping):
        return _EACH, alone
    if coupled:
        return _EACH, [_ALIKE_GROUPS]
    if not choices.pattern.single:
        return _EACH, [] if choices.pattern.sparsity is not None else [_ALIKE.format(brief(choices.pattern)), *alone]
    return _SHARED_OUT, [_SHARED]


def _by_size(criterion: Criterion | None, quality: Limit) -> Criterion:
    """The criterion of a pruning that compares |w| with the std of its layer: one whose scores are |w|."""
    if criterion is not None and not criterion.is_magnitude:
        raise ValueError(
            f"quality={quality!r} compares |w| with the std of its layer, and the criterion is {criterion!r}: "
            "criterion='magnitude', or threshold=... for scores of that criterion"
        )
    return criterion or _MAGNITUDE


def _left_out(names: Sequence[str]) -> str:
    shown = some(names, _SHOWN)
    return f"left out, since by default only the weights of layers are pruned: {shown}; targets=... reaches them"


def adapter_notes(slices: Slices) -> list[str]:
    """What a report says of adapters on what is pruned."""
    each = (_ADAPTED, slices.adapted), (_MASKED, slices.masked)
    return [text.format(some(names, _SHOWN)) for text, names in each if names]


def sigma_source(choices: Choices, seen: Mapping[str, int]) -> Online:
    """Where sigma comes from if one is wanted: by default, from the second moment that the optimizer keeps, or ours."""
    if choices.open and seen:
        return _OWN
    return _SECOND_MOMENT if choices.uncertainty is None else choices.uncertainty


def _remedy(params: Mapping[str, Tensor], optimizers: Mapping[str, Optimizer]) -> str:
    """What a caller who got no sigma can do to have one."""
    if not all(param.requires_grad for param in params.values()):
        return (
            "the inputs of its layers, linear or convolutional, give sigma without gradients: prune(..., "
            "uncertainty=pw.uncertainty.LayerLeastSquares().estimate(model, batches))"
        )
    if optimizers:
        return (
            "pruner.observe(batches, loss) averages one of data; a Pruner averages its own over 100 steps from "
            "attaching, or from the last pruning, on; so do uncertainty=SecondMoment() or PseudoBootstrap(), given "
            "before training"
        )
    return (
        f"data give sigma: pruner.observe(batches, loss) before prune(), with {_ENOUGH} batches or more; so does an "
        "epoch of training after pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap())"
    )
