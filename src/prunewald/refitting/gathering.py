"""What the layers of a step met, and should have given: summed up over the examples, in one pass."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence

from prunewald.refitting.feed import Given
from prunewald.refitting.norms import Moments
from prunewald.refitting.order import Step
from prunewald.refitting.passes import Passes
from prunewald.refitting.seeing import Event, Normalised, Product
from prunewald.refitting.sums import Sums
from prunewald.refitting.units import Unit


class Gathering:
    """Sums over the examples fitted to, and over those held back: of each unit, and of a BatchNorm."""

    def __init__(self, passes: Passes, order: Sequence[Hashable], step: Step, *, dense_inputs: bool = False) -> None:
        self.units: dict[Unit, tuple[Sums, Sums]] = {}
        self.moments = Moments(), Moments()
        self._passes, self._order, self._step, self._dense_inputs = passes, order, step, dense_inputs
        self._dense: defaultdict[Hashable, deque[Event]] = defaultdict(deque)  # what the dense model gave, call by call

    def over(self, examples: Iterable[Given]) -> None:
        """Run the dense model and the pruned one on each batch, and sum up."""
        for given in examples:
            self._dense.clear()
            self._given = given
            # Which experts an example comes by may be another matter in the dense model: it is asked for its weights.
            if not self._step.routed:
                self._passes.see(given, self._order, self._step, self._aim, dense=True)
            if self._dense_inputs and not self._step.routed:
                for events in self._dense.values():
                    for event in list(events):
                        self._take(event)
            else:
                self._passes.see(given, self._order, self._step, self._take, dense=False)
        self._dense.clear()

    def _aim(self, event: Event) -> None:
        self._dense[_who(event)].append(event)

    def _take(self, event: Event) -> None:
        dense = None if self._step.routed else self._dense[_who(event)].popleft().out
        if isinstance(event, Product):
            pair = self.units.setdefault(event.unit, (Sums(), Sums()))
            pair[self._given.held].add(event, dense, self._given.keep)
        elif dense is not None:
            self.moments[self._given.held].add(event.x, dense)


def _who(event: Event) -> Hashable:
    return event.name if isinstance(event, Normalised) else event.unit
