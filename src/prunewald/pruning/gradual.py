"""Pruning by a schedule, while the user's own loop trains.  Zhu & Gupta (2017)."""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from prunewald.core.base import Schedule
from prunewald.core.weights import NotYet
from prunewald.pruning.plan import Plan, Request
from prunewald.pruning.report import Report, warn_emptied
from prunewald.pruning.subject import Subject
from prunewald.util.notices import warn

_log = logging.getLogger("prunewald")
_TELL = "Pruner(..., total_steps=...) or Cubic(end=...) tells it how long the training is"


class Gradual:
    """Prunes when its schedule says so; a pruning for which there is no sigma yet is owed until there is."""

    def __init__(self, schedule: Schedule, subject: Subject, plan: Callable[[Request], Plan]) -> None:
        self._schedule, self._subject, self._plan = schedule, subject, plan
        self.owed = 0.0
        self.history: list[tuple[int, float, float]] = []  # of each pruning: the step, what was asked for, what it gave
        if schedule.assumed:
            _log.warning("%r ends at step %s, since nobody told where: %s", schedule, f"{schedule.last:,}", _TELL)
        self._emptied: Sequence[str] = ()  # what prunings before emptied, and was said

    def act_(self, step: int, *, first: bool) -> Report | None:
        """Do what is due or owed after a step, and report it; the estimator's window runs on."""
        due = self._schedule(step)
        self.owed = self.owed if due is None else due
        if not self.owed:
            return None
        plan = self._plan(Request(self.owed, rising=True))
        try:
            # What there is to warn of, such as a window that is still short, is said at the first pruning only.
            with nullcontext() if first else warnings.catch_warnings(action="ignore"):
                masks, report = self._subject.choose(plan)
        except NotYet as reason:
            if due:
                warn(f"the pruning of step {step} is put off until it can be: {reason}")
            return None
        self.history.append((step, self.owed, report.sparsity))
        _log.info("step %d: %.2f %% of the weights are pruned (asked for: %.2f %%)", *_percent(*self.history[-1]))
        self.owed = 0.0
        if any(not torch.equal(mask, self._subject.zeros.mask(name)) for name, mask in masks.items()):
            report = replace(report, notes=[*self._subject.hold(masks), *report.notes])
        self._emptied = warn_emptied(report, self._emptied)
        if report.lost_rows:
            _log.info("step %d: %s", step, report.notes[-1])
        return replace(report, unfinished=self.standing(report.sparsity, step))

    def finished(self, reached: float, step: int) -> bool:
        """Whether nothing is left to do: the last step is over, or its sparsity is reached already."""
        last, final = self._schedule.last, self._schedule.final
        over = last is not None and step >= last and not self.owed
        return over or (final is not None and reached >= final - 1e-3)

    def standing(self, reached: float, step: int) -> str:
        """Where the schedule stands, if it has not come to its end; empty where it has, or its end is not known."""
        last, final = self._schedule.last, self._schedule.final
        if last is None or final is None or self.finished(reached, step):
            return ""
        return f"the schedule stands at {reached:.2%} of {final:.2%}, step {step:,} of {last:,}"

    def warn_unfinished(self, reached: float, step: int) -> None:
        """Warn that the schedule goes no further, if it has not come to its end."""
        if where := self.standing(reached, step):
            warn(f"{where}, and goes no further: {_TELL}")


def _percent(step: int, asked: float, reached: float) -> tuple[int, float, float]:
    return step, 100 * reached, 100 * asked
