"""Transformers: a callback that prunes while a Trainer trains, holds the zeros, and is in its checkpoints."""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from prunewald.core.allocation import Layer
from prunewald.core.base import Allocation, Criterion, Pattern, Schedule
from prunewald.integrations.beginning import meet_zeros
from prunewald.integrations.framework import framework
from prunewald.integrations.peft import take_along
from prunewald.integrations.sparsities import sparsities
from prunewald.integrations.trainer_checkpoints import (
    STATE,
    file_of,
    gone,
    load_into,
    read,
    resumed_from,
    sums,
    warn_of_others,
)
from prunewald.model.optimizers import as_list
from prunewald.model.targets import Target
from prunewald.pruner import Pruner
from prunewald.pruning.plan import Choices, Request, SigmaSource, Sparsity
from prunewald.util.arguments import whole
from prunewald.util.files import replacing
from prunewald.util.notices import warn
from prunewald.util.text import some

_SHOWN = 3  # so many parameters are named in a warning
_callbacks: Any = WeakIdKeyDictionary()  # by the TrainerState of a Trainer's making or of a training: the one it has


def _check_when(chosen: Choices, sparsity: Sparsity | None, at_step: int | None) -> None:
    """Refuse a pruning of which it is not clear when or how far, before there is a Trainer."""
    if at_step is None:
        if sparsity is not None:
            raise ValueError(
                f"sparsity={sparsity!r}: say when, as at_step=100 (0: before the first step), or prune bit by bit, as "
                "schedule=pw.Cubic(0.9), which says itself how far"
            )
        return
    whole("at_step", at_step)
    if chosen.schedule is not None:
        raise ValueError(f"at_step={at_step} and schedule={chosen.schedule!r}: give one, a schedule says itself when")
    Request(sparsity).checked(chosen.pattern)
    if 0 < at_step < chosen.least:
        raise ValueError(
            f"at_step={at_step}: {chosen.uncertainty!r} can tell nothing before step {chosen.least}: prune later"
        )


class PrunerEvents:
    """A `transformers.TrainerCallback` that prunes and holds the zeros; it takes what a `Pruner` does.

    - `sparsity`, `at_step`: prune once, right after that step of the training; 0 is before the first one.
    - `schedule`: prune by itself, step by step; without an end of its own it ends with the training.
    - With neither it watches the training: `callback.pruner.prune(0.9)`, then train again.
    - `hold_zeros`: what to do with zeros that the model has when a training begins. True holds them, False lets them
      train; None warns of them, and refuses to resume from a checkpoint that has them without their Pruner.

    From the beginning of a training on its Pruner is `callback.pruner`. Every checkpoint has its state, in `pruner.pt`,
    and a training that is resumed goes on from there, bit for bit.
    """

    def __init__(
        self,
        sparsity: Sparsity | None = None,
        *,
        at_step: int | None = None,
        hold_zeros: bool | None = None,
        criterion: Criterion | str | None = None,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str | None = None,
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
        total_steps: int | None = None,
    ) -> None:
        chosen = Choices.of(criterion, uncertainty, scope, pattern, schedule, total_steps)
        _check_when(chosen, sparsity, at_step)
        self.sparsity, self.at_step, self.hold_zeros = sparsity, at_step, hold_zeros
        self._choices: dict[str, Any] = {"criterion": criterion, "uncertainty": uncertainty, "scope": scope}
        self._choices |= {"pattern": pattern, "targets": targets, "ignore": ignore}
        self._choices |= {"schedule": schedule, "total_steps": total_steps}
        self._pruner: Pruner | None = None
        self._left: Pruner | None = None  # was let go for a training that did not begin: the next has its masks
        self._broken = False  # whether the last training did not come to its end
        self._endless = chosen.schedule is not None and chosen.schedule.assumed
        self._total: int | None = None  # how many steps a schedule is for that has no end of its own
        self._due = False  # whether there is a pruning at `at_step` to come
        self._told: dict[str, float] = {}  # the sparsity by layer, as logged last

    @property
    def pruner(self) -> Pruner:
        """The Pruner of the training that began last."""
        if self._pruner is None:
            raise RuntimeError("this PrunerCallback has no Pruner before a training with it begins: trainer.train()")
        return self._pruner

    def __repr__(self) -> str:
        named = {"at_step": self.at_step, "hold_zeros": self.hold_zeros, **self._choices}
        said = [] if self.sparsity is None else [repr(self.sparsity)]
        said += [f"{name}={value!r:.200}" for name, value in named.items() if value not in (None, "element")]
        return f"PrunerCallback({', '.join(said)})" + ("" if self._pruner is None else f" with {self._pruner!r}")

    @property
    def _attached(self) -> Pruner | None:
        """The Pruner, where it was not detached."""
        return self._pruner if self._pruner is not None and self._pruner.zeros.attached else None

    # ---- before the training -------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        """Refuse, when the Trainer is made, what this callback cannot do."""
        self._check(args, state, model)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        """Attach a Pruner, or go on with the one that is there, or from a checkpoint."""
        self._check(args, state, model)
        earlier, folder = self._attached, resumed_from(args, state)
        held = self._left if earlier is None else earlier
        held = held if held is not None and _is_of(held, model) else None
        stays = held is not None and folder is None
        anew = self._broken and self._endless  # a schedule is to end with this training, and not with that one
        self._broken = True
        if stays and earlier is not None and list(earlier.optimizers) == as_list(optimizer) and not anew:
            return
        if earlier is not None:
            self._left = earlier
            earlier.detach()
        saved = {} if folder is None else read(folder, args.process_index)
        pruner = self._made(model, optimizer, state, saved)
        try:
            self._begin(pruner, held, folder, saved, state)
            self._due = self._due if stays else self._is_due(pruner, state)
            if self._due and self.at_step == state.global_step:
                self._prune(pruner, state)
        except BaseException:
            pruner.detach()
            raise
        take_along(model, self._pruner, pruner)
        self._pruner, self._left, self._told = pruner, None, {}

    def _made(self, model: nn.Module, optimizer: Any, state: Any, saved: Mapping[str, Any]) -> Pruner:
        """A Pruner, with the end of the training for a schedule that has none."""
        left = state.max_steps - state.global_step
        self._total = saved.get("total_steps") or left if self._endless else None
        return Pruner(model, optimizer, **self._choices | ({"total_steps": self._total} if self._endless else {}))

    def _begin(
        self, pruner: Pruner, held: Pruner | None, folder: str | None, saved: Mapping[str, Any], state: Any
    ) -> None:
        """Go on from a checkpoint, or with the masks of the last training, or with the model as it is."""
        if folder is not None and saved:
            load_into(pruner, saved, folder)
            if held is not None and (names := gone(pruner, held.masks)):
                raise ValueError(
                    f"{some(map(repr, names), _SHOWN)} was pruned further since {folder!r}, from which the Trainer "
                    "loads no weights of it, since it is frozen or has another name in files: make the model anew, as "
                    "it was then, and resume with that"
                )
            warn_of_others(pruner, saved, folder)
        elif held is not None and folder is None:
            pruner.set_masks(held.masks)
        else:
            meet_zeros(pruner, self.hold_zeros, folder, STATE, soon=self.at_step == 0)
            if folder is not None:
                step = state.global_step
                warn(f"{folder!r} has no {STATE}: its Pruner begins anew, and counts its steps from step {step:,} on")

    def _check(self, args: Any, state: Any, model: nn.Module) -> None:
        """Refuse a second callback, sharded weights, and another model than the one that is held."""
        if state in _callbacks:
            raise ValueError(
                f"this Trainer has a PrunerCallback twice, {_callbacks[state]!r} and {self!r}: give it one"
            )
        _callbacks[state] = self
        for name in ("fsdp", "deepspeed"):
            if given := getattr(args, name, None):
                raise ValueError(f"{name}={given!r} shards the weights, and PrunerCallback prunes whole ones: use DDP")
        earlier = self._attached
        if earlier is not None and not state.is_hyper_param_search and not _is_of(earlier, model):
            raise ValueError(
                f"the Pruner of this PrunerCallback is of another {type(earlier.model).__name__} than the "
                f"{type(model).__name__} to train: make a new PrunerCallback, or callback.pruner.detach() first"
            )

    def _is_due(self, pruner: Pruner, state: Any) -> bool:
        """Whether the pruning at `at_step` is still to come; an error where it cannot."""
        if isinstance(self.sparsity, Mapping):
            Request(self.sparsity).by_slice(pruner.model, pruner.slices, pruner.scope or Layer())
        if self.at_step is None:
            return False
        if self.at_step > state.max_steps:
            raise ValueError(f"at_step={self.at_step}: the training has {state.max_steps:,} steps; prune earlier")
        if self.at_step > state.global_step:
            return True
        if state.global_step and pruner.holding:
            return False
        if self.at_step < state.global_step:
            raise ValueError(
                f"at_step={self.at_step}: the training goes on from step {state.global_step:,}, where nothing is "
                "pruned; give a later step"
            )
        return True

    # ---- while it trains -----------------------------------------------------------------------------------------

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prune, if this was the step for it; the gradients are still there."""
        if self._due and state.global_step + 1 == self.at_step:
            self._prune(self.pruner, state)

    def _prune(self, pruner: Pruner, state: Any) -> None:
        report = pruner.prune(self.sparsity)
        self._due = False
        if state.is_world_process_zero:
            print(report)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **_: Any) -> None:
        """Add the sparsity to what is logged, and by layer what changed: all that is logged is in every checkpoint."""
        if (pruner := self._attached) is None:
            return
        total, layers = sparsities(pruner)
        news = {f"sparsity/{name}": share for name, share in layers.items() if self._told.get(name) != share}
        self._told = layers
        for one in (logs, *state.log_history[-1:]):
            one.update({"sparsity": total, **news})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state of the Pruner into the checkpoint; in a group each process its own."""
        if (pruner := self._attached) is None:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if os.path.isdir(folder):
            with replacing(os.path.join(folder, file_of(args.process_index))) as file:
                torch.save({**pruner.state_dict(), "total_steps": self._total, "sums": sums(pruner)}, file)
        elif args.should_save:
            warn(f"there is no folder {folder!r}, so the Pruner is in no checkpoint of step {state.global_step:,}")

    def on_push_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write it before the checkpoint is uploaded, which is before `on_save`."""
        if control.should_save:
            self.on_save(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say what did not come to its end, and take the masks of the best model with its weights."""
        self._broken = False
        if (pruner := self._attached) is None:
            return
        if self._due:
            warn(
                f"the training ended with step {state.global_step:,}, before at_step={self.at_step}: nothing was pruned"
            )
        if pruner.at_work:
            warn(
                f"the training ended with step {state.global_step:,}, before {pruner.schedule!r}: "
                f"{pruner.sparsity:.2%} of the weights to prune are pruned"
            )
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and (saved := read(best, args.process_index)):
            _take_best(pruner, saved, best)


# ---- small things ----------------------------------------------------------------------------------------------------


def _is_of(pruner: Pruner, model: nn.Module) -> bool:
    """Whether what a Pruner prunes is in a model."""
    return {id(param) for param in pruner.zeros.params.values()} <= {id(param) for param in model.parameters()}


def _take_best(pruner: Pruner, saved: Mapping[str, Any], best: str) -> None:
    """Take the masks of the best model with its weights; what was trained is not to be lost, so this only warns."""
    reached, masks = pruner.sparsity, pruner.masks
    try:
        load_into(pruner, saved, best)
    except ValueError as reason:
        warn(str(reason))
        return
    if names := gone(pruner, masks):
        pruner.set_masks(pruner.masks | {name: masks[name] for name in names})
        warn(
            f"load_best_model_at_end: {some(map(repr, names), _SHOWN)} was pruned further since {best!r}, from which "
            "the Trainer loads no weights of it, since it is frozen or has another name in files: it stays as it is"
        )
    else:
        warn_of_others(pruner, saved, best)
    if pruner.sparsity != reached:
        warn(
            f"load_best_model_at_end took the model of {best!r}, of which {pruner.sparsity:.2%} is pruned, "
            f"and not {reached:.2%} as at the end of the training"
        )


# ---- the class, derived when it is asked for -------------------------------------------------------------------------


@cache
def _derived() -> Any:
    base = framework("transformers").TrainerCallback
    return type("PrunerCallback", (PrunerEvents, base), {"__doc__": PrunerEvents.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "PrunerCallback":
        return _derived()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: PrunerCallback is there")
