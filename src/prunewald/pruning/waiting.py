"""Steps that do not come: a model trains, but by no step that its Pruner sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from prunewald.util.notices import warn
from prunewald.util.tensors import fingerprint

_FIRST = 32  # so many passes without a step are nothing to look at, until more of them are seen between two steps
_MANY = 1000  # after so many, a schedule that waits is worth a word though no weight moves
_GIVE = "make a new one with the optimizer that steps them, as Pruner(model, optimizer)"


@dataclass(eq=False)
class Waiting:
    """Counts the training passes since the last step; after many of them, looks whether the weights move all the same.

    Loops that gather gradients take several passes for a step: twice as many as were ever seen are waited for.
    """

    evaluations: int = 0  # how many passes one step may take, where an optimizer says so
    scheduled: bool = False  # whether a schedule waits for the steps
    passes: int = 0
    patience: int = _FIRST
    before: tuple[int, ...] = ()  # a fingerprint of each weight, from when patience ended
    said: bool = False

    def stepped(self) -> None:
        """There was a step."""
        self.patience = max(self.patience, 2 * self.passes)
        self.passes = 0

    def passed(self, params: Mapping[str, Tensor], optimizers: Sequence[str]) -> None:
        """There was a training pass; where steps are missed, say so, once."""
        self.passes += 1
        # Looked at is when patience has ended, at twice that, at four times that: it costs next to nothing.
        often, rest = divmod(self.passes, self.patience)
        if rest or often & (often - 1) or self.said or not (self.scheduled or optimizers):
            return
        now = tuple(fingerprint(param) for param in params.values() if param.requires_grad)
        if often == 1:
            self.before = now
        moved = now != self.before and self.passes > 2 * self.evaluations  # a line search ends a little late
        if moved or (self.scheduled and self.passes >= _MANY):
            self.said = True
            self._say(moved, optimizers)

    def _say(self, moved: bool, optimizers: Sequence[str]) -> None:
        kinds = ", ".join(dict.fromkeys(optimizers))
        missed = f"no step of the {kinds} that this Pruner was given" if kinds else "no apply_() of this Pruner"
        seen = f"{missed} came in {self.passes:,} training passes" + (", though the weights change" if moved else "")
        lost = "its schedule does not go on" if self.scheduled else "the steps of another are not watched"
        warn(f"{seen}: {lost}; {_GIVE}{'' if kinds else ', or call apply_() after each step'}")
