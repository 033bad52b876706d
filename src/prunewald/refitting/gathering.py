"""What the layers of a step met, and should have given: summed up over the examples, in one pass."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from torch import Tensor

from prunewald.refitting.feed import Given
from prunewald.refitting.norms import Moments
from prunewald.refitting.order import Enough, Step
from prunewald.refitting.passes import Passes
from prunewald.refitting.seeing import Event, Normalised, Product
from prunewald.refitting.sums import Met, Sums, rows_of, squares
from prunewald.refitting.units import Unit


class Aim:
    """What the dense model says of the layers of a step, for some examples.

    `crosswise` that is what they are given there, once, since all are given the same, and the squares of what they
    give; else what they give, call by call, and with `inputs` also what they are given.
    """

    def __init__(self, given: Given, *, crosswise: bool, inputs: bool) -> None:
        self._given, self._crosswise, self._inputs = given, crosswise, inputs
        self.first: Product | None = None
        self.squares: dict[Unit, Tensor] = {}
        self.calls: defaultdict[Hashable, deque[Event]] = defaultdict(deque)

    def __call__(self, event: Event) -> None:
        """Take in what was seen; copies, since what follows may write into it."""
        if self._crosswise and isinstance(event, Product):
            ((_, y),) = rows_of(event, self._given.keep, event.out)
            assert y is not None
            self.squares[event.unit] = squares(y)
            self.first = self.first or event.copied(x=True, out=False)
        else:
            self.calls[_who(event)].append(event.copied(x=self._inputs, out=True))

    def next(self, event: Event) -> Event:
        """The call that is this one in the dense model."""
        return self.calls[_who(event)].popleft()


class Gathering:
    """Sums over the examples fitted to, and over those held back: of each unit, and of a BatchNorm.

    Where it may be `crosswise`, the products of inputs in both models are summed up, once for all layers of a step.
    """

    def __init__(
        self, passes: Passes, order: Sequence[Hashable], step: Step, *, crosswise: bool, dense_inputs: bool
    ) -> None:
        self.units: dict[Unit, tuple[Sums, Sums]] = {}
        self.moments = Moments(), Moments()
        self.step, self.crosswise = step, crosswise
        self._met = Met(), Met()  # of a step whose layers meet the same
        self._passes, self._order = passes, order
        self._dense_inputs = dense_inputs and not step.routed

    def aim(self, given: Given) -> Aim:
        """What the dense model is to say."""
        return Aim(given, crosswise=self.crosswise, inputs=self._dense_inputs)

    def over(self, feed: Iterable[Given], aims: deque[Aim] | None = None) -> None:
        """Take in all that is fed; `aims` are what the dense model says, where it was asked already: none is left."""
        for given in feed:
            aim = self.aim(given) if aims is None else aims.popleft()
            # Experts may be given others in the dense model: that is asked for its weights alone.
            if aims is None and not self.step.routed:
                self._passes.see(given, self._order, self.step, aim, dense=True)
            if self._dense_inputs:
                for event in [event for calls in aim.calls.values() for event in calls]:
                    self._take(given, aim, event)
            else:
                self._passes.see(given, self._order, self.step, partial(self._take, given, aim), dense=False)

    def _take(self, given: Given, aim: Aim, event: Event) -> None:
        if isinstance(event, Normalised):
            self.moments[given.held].add(event.x, aim.next(event).out)
        elif self.crosswise:
            self._cross(given, aim, event)
        else:
            sums = self._sums(event.unit)[given.held]
            target = None if self.step.routed else aim.next(event).out
            for x, y in rows_of(event, given.keep, target):
                sums.met.add(x)
                if y is not None:
                    sums.add(x, y)

    def _cross(self, given: Given, aim: Aim, event: Product) -> None:
        """Products of the inputs here and there, once for all layers, and the squares for each; then all is seen."""
        assert aim.first is not None
        for unit, found in aim.squares.items():
            self._sums(unit)[given.held].add_squares(found)
        ((x, _),), ((z, _),) = rows_of(event, given.keep), rows_of(aim.first, given.keep)
        self._met[given.held].add(x, z)
        raise Enough

    def _sums(self, unit: Unit) -> tuple[Sums, Sums]:
        if unit not in self.units:
            fitted, held = self._met if self.crosswise else (Met(), Met())
            self.units[unit] = Sums(fitted), Sums(held)
        return self.units[unit]


def _who(event: Event) -> Hashable:
    """What an event is about."""
    return event.name if isinstance(event, Normalised) else event.unit
