"""The shapes of what a user can choose. Each is an abstract class with the defaults that most of its kind want.

A final class is a frozen dataclass whose fields are its hyperparameters, entered under a short name by the decorator of
its kind (`prunewald.util.registry`). Nothing that changes is kept in it: states belong to the Pruner.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.ranking import Count, Ranked, Scores
from prunewald.core.weights import Weight, WeightStats
from prunewald.util.registry import brief, kind

State: TypeAlias = dict[str, Any]  # tensors, numbers, and dicts and lists of them: it goes into state_dict() as it is
Weights: TypeAlias = Mapping[str, Tensor]  # parameters by name

PATIENCE = 100  # steps without a gradient of the data, at least, before a weight is called dead


# ---- what is gathered while a model trains -------------------------------------------------------------------------


class Running(ABC):
    """Something that is gathered for every weight while a model trains.

    It is only the recipe: the state is handed to every method, and the Pruner holds it.
    """

    @abstractmethod
    def init(self, weights: Weights) -> State:
        """The state before the first step, for the parameters of one optimizer."""

    @abstractmethod
    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Take in one optimizer step; called after it, with `.grad` still there."""

    def watch(self, model: nn.Module, names: Sequence[str], state: Callable[[], State]) -> list[Any]:
        """Register hooks on the model that feed the state, and return their handles; most need none.

        `state` is a function, since the state is another object after a pruning or a resume.
        """
        return []

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """Take in the gradients of one batch that is only looked at, without a step; False where they tell nothing."""
        return False

    def looked_(self, state: State) -> None:
        """The look at data is over."""

    def saved(self, state: State, weights: Weights) -> State:
        """What a checkpoint keeps of the state: all of it, unless a part follows from the weights beside it."""
        return state

    def resumed(self, saved: State, weights: Weights) -> State:
        """The state to go on with from what a checkpoint kept; the weights may be loaded only after this."""
        return saved


class Statistic(Running):
    """A running statistic that a criterion scores by, such as the mean gradient."""

    by_inputs: ClassVar[bool] = False  # whether passes forward feed it, so that it needs no loss

    @abstractmethod
    def value(self, state: State, name: str) -> Tensor | None:
        """The statistic of one parameter; None before there is any."""

    def merged(self, value: Tensor) -> Tensor:
        """The same over all processes that train together, where each of them has seen other data."""
        return value


class Estimate(NamedTuple):
    """Sigma of one parameter, and where a weight is dead, since no gradient of the data reached it (None: unknown)."""

    sigma: Tensor
    dead: Tensor | None


class Uncertainty:
    """How sure is each weight? `Online` ones watch the training, `Offline` ones are computed from data."""


class Online(Running, Uncertainty):
    """Watches optimizer steps, and tells how sure each weight is."""

    learns: ClassVar[bool] = True  # whether it learns from the steps of a training; False: it knows its sigmas already
    notes: tuple[str, ...] = ()  # what a report should say wherever its sigma is used

    def init_marked(self, weights: Weights) -> State:
        """As `init`, where nobody else watches what gradients reach: then the state shall tell, if it can."""
        return self.init(weights)

    @abstractmethod
    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The estimate for one parameter; the state stays as it is.

        `weight.dead` is what the Pruner watched, and goes before what the estimate says of dead weights.
        """

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate | None:
        """The estimate for many replicas of a parameter at once, stacked along the first dimension: (R, ...).

        None where each replica has to be estimated by itself.
        """
        return None

    def seen(self, state: State) -> Mapping[str, int]:
        """Of which parameters it averaged gradients itself that were not all zero, and over how many steps."""
        return {}

    def check(self, state: State, weights: Weights) -> None:
        """Raise where no sigma can be given yet, warn where it is not what was asked for."""

    @property
    def least(self) -> int:
        """How many steps it has to see before it can tell anything."""
        return 1

    @property
    def horizon(self) -> int | None:
        """The one step that it collects for; None where it can be asked at any step."""
        return None

    def with_horizon(self, steps: int | None) -> Self:
        """This estimator, meant for a training of `steps` steps, or with None for one of unknown length.

        Itself where the length makes no difference.
        """
        return self

    @property
    def unscaled(self) -> "Online":
        """The same in one unit for all tensors: itself, unless its sigma is scaled tensor by tensor."""
        return self

    @property
    def standard_error(self) -> bool:
        """Whether sigma is a standard error, so that a Wald test means what it says."""
        return False

    @property
    def patience(self) -> int:
        """How many steps no gradient of the data may reach a weight before that is called dead."""
        return PATIENCE

    def blind(self, state: State, weight: Weight, optimizer: Optimizer | None) -> str:
        """Why the dead weights that its estimate tells of are not to be believed; empty where they are."""
        return ""

    def degrees(self, state: State) -> float | None:
        """The degrees of freedom of z = w / sigma where it is t-distributed; None where it is normal."""
        return None

    def average(self, state: State) -> dict[str, Tensor]:
        """The weights that the standard errors are of, by name, where these are not the model's present ones."""
        return {}

    def caveats(self) -> list[str]:
        """What to say where p-values are made from this sigma; ValueError where none can be."""
        name = type(self).__name__
        return [] if self.standard_error else [_NOT_P_VALUES.format(name)]


_NOT_P_VALUES = "not p-values: sigma from {} is no standard error, so the level given is nominal only"


class Offline(Uncertainty):
    """Estimates from data, after training: `uncertainty=FisherDiagonal().estimate(model, batches, loss)`."""

    @abstractmethod
    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        loss: Any = None,
        *,
        masks: Any = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> dict[str, Tensor]:
        """Sigma by parameter name, from `batches` of data, at most `limit` of them, with a bar where one is wanted.

        Without a `loss` it is the one that the model computes itself. With `masks`, by parameter name too, only what
        they leave alive is estimated.
        """


# ---- what a pruning is made of -------------------------------------------------------------------------------------


class Criterion(ABC):
    """How important is each weight? Higher is kept."""

    uses_sigma: ClassVar[bool | None] = False  # None: it takes a sigma where there is one
    is_magnitude: ClassVar[bool] = False  # whether its order is that of |w|
    uses_gradient: ClassVar[bool] = False  # whether it scores by the gradient of one backward pass

    @property
    def statistic(self) -> Statistic | None:
        """What has to be gathered for it while the model trains; the Pruner does so."""
        return None

    @property
    def simplest(self) -> "Criterion":
        """The plainest criterion with the same order, which is used in its place: itself, unless its fields allow."""
        return self

    @property
    def unscaled(self) -> "Criterion":
        """The same in one unit for all tensors: itself, unless its scores are scaled tensor by tensor."""
        return self

    @abstractmethod
    def __call__(self, stats: WeightStats) -> Tensor:
        """One score for each weight, in the shape of `stats.weight`."""


class Allocation(ABC):
    """How many weights does each tensor keep? Counts, so that it fits every criterion and every pattern."""

    together: ClassVar[bool] = False  # whether it compares the scores of different tensors
    whole_layers: ClassVar[bool] = False  # whether the tensors of a module are one layer, here and for lambda

    @abstractmethod
    def __call__(self, scores: Scores, sparsity: float) -> Mapping[str, Count]:
        """The number of weights that each tensor keeps, or each of its rows.

        `scores.weight(name)` are the weights of a tensor, `scores[name]` what the criterion makes of them, computed
        only if it is asked for.
        """


class Pattern(ABC):
    """Which weights of a tensor stay, given how many?"""

    single: ClassVar[bool] = False  # whether any weight may go by itself

    @property
    def sparsity(self) -> float | None:
        """The highest sparsity it can reach; None where there is no limit."""
        return None

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError where it does not fit a tensor of this shape."""

    def nearest(self, shape: Sequence[int], keep: Count) -> Count:
        """The count it keeps where `keep` is asked for: whole groups cannot keep every number."""
        return keep

    @abstractmethod
    def __call__(self, ranked: Ranked, keep: Count) -> Tensor:
        """True where a weight is kept; with a count a row, each row is treated as a tensor of its own."""


class Schedule(ABC):
    """When to prune, and how far?"""

    @property
    def final(self) -> float | None:
        """The sparsity it ends at; None where that is not known."""
        return None

    @property
    def last(self) -> int | None:
        """The step it ends at; None where that is not known."""
        return None

    @property
    def assumed(self) -> bool:
        """Whether nobody told where it ends, so that its last step is only assumed."""
        return False

    def over(self, steps: int) -> "Schedule":
        """This schedule, for a training of so many steps: itself, if it ends by then; an error otherwise."""
        if self.last is not None and self.last > steps:
            raise ValueError(f"{self!r} ends at step {self.last:,}, after total_steps={steps}: end it earlier")
        return self

    @abstractmethod
    def __call__(self, step: int) -> float | None:
        """The sparsity to reach after an optimizer step (the first is 1); None for not now."""


# ---- plain functions -----------------------------------------------------------------------------------------------


class FunctionCriterion(Criterion):
    """A user's own function of the statistics of a tensor, as a criterion."""

    uses_sigma = None
    uses_gradient = True  # it may

    def __init__(self, function: Callable[[WeightStats], Tensor]) -> None:
        self.function = function

    def __call__(self, stats: WeightStats) -> Tensor:
        """The scores that the function gives."""
        return self.function(stats)

    def __repr__(self) -> str:
        return brief(self.function)


class FunctionSchedule(Schedule):
    """A user's own function of the step, as a schedule."""

    def __init__(self, function: Callable[[int], float | None]) -> None:
        self.function = function

    def __call__(self, step: int) -> float | None:
        """The sparsity that the function gives, or None."""
        return self.function(step)

    def __repr__(self) -> str:
        return brief(self.function)


kind("criterion", Criterion, "Magnitude()", lambda given: FunctionCriterion(given) if callable(given) else None)
kind("uncertainty", Uncertainty, "SecondMoment(), or a dict of sigma by parameter name")
kind("scope", Allocation, "'lamp', 'layer' or 'global'")
kind("pattern", Pattern, "Element()")
kind("schedule", Schedule, "Cubic(0.9, end=5000)", lambda given: FunctionSchedule(given) if callable(given) else None)
