"""Transformers: a callback that prunes while a Trainer trains, holds the zeros, and is in its checkpoints."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import currentframe
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from prunewald.core.allocation import Layer
from prunewald.core.base import Allocation, Criterion, Pattern, Schedule
from prunewald.integrations.framework import framework
from prunewald.model.masking import check_masks
from prunewald.model.optimizers import as_list
from prunewald.model.targets import Target
from prunewald.pruner import Pruner
from prunewald.pruning.plan import Choices, Request, SigmaSource, Sparsity
from prunewald.pruning.resuming import check_saved, unpacked
from prunewald.util.arguments import whole
from prunewald.util.files import read_torch, replacing
from prunewald.util.notices import warn
from prunewald.util.text import some

_SHOWN = 3  # so many parameters are named in an error
_STATE = "pruner.pt"  # the file in a checkpoint
_LOOP = "_inner_training_loop"  # the method of the Trainer that knows which checkpoint it resumes from
_MUCH = 0.01  # a tensor with fewer zeros was hardly pruned: in bfloat16 some weights are zero by chance
_HOLD = "PrunerCallback(hold_zeros=True) holds them, hold_zeros=False lets them train"
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
        earlier, folder = self._attached, _resumed_from(args, state)
        stays = earlier is not None and folder is None and _is_of(earlier, model)
        if earlier is not None and stays and list(earlier.optimizers) == as_list(optimizer):
            return
        masks = earlier.masks if earlier is not None and stays else {}
        if earlier is not None:
            earlier.detach()
        saved = {} if folder is None else _read(folder, args.process_index)
        left = state.max_steps - state.global_step
        self._total = saved.get("total_steps") or left if self._endless else None
        pruner = Pruner(model, optimizer, **self._choices | ({"total_steps": self._total} if self._endless else {}))
        try:
            if folder is not None and saved:
                _load(pruner, saved, folder)
            elif masks:
                pruner.set_masks(masks)
            else:
                self._look(pruner, folder, state.global_step)
            self._due = self._due if stays else self._is_due(pruner, state)
            if self._due and self.at_step == state.global_step:
                self._prune(pruner, state)
        except BaseException:
            pruner.detach()
            raise
        self._pruner, self._told = pruner, {}

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

    def _look(self, pruner: Pruner, folder: str | None, step: int) -> None:
        """What a new Pruner does with the zeros that are there already."""
        zeros = _zeros(pruner)
        if self.hold_zeros:
            pruner.hold_zeros()
        elif zeros and self.hold_zeros is None:
            if folder is not None:
                raise ValueError(
                    f"{zeros:,} of the weights to prune are zero in the model that is resumed from {folder!r}, which "
                    f"has no {_STATE} that says which were pruned: {_HOLD}"
                )
            if self.at_step != 0:
                warn(f"{zeros:,} of the weights to prune are zero, and nothing holds them: {_HOLD}")
        if folder is not None:
            warn(f"{folder!r} has no {_STATE}: its Pruner begins anew, and counts its steps from step {step:,} on")

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
        total, layers = _sparsities(pruner)
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
            with replacing(os.path.join(folder, _file(args.process_index))) as file:
                torch.save({**pruner.state_dict(), "total_steps": self._total}, file)
        elif args.should_save:
            warn(f"there is no folder {folder!r}, so the Pruner is in no checkpoint of step {state.global_step:,}")

    def on_push_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write it before the checkpoint is uploaded, which is before `on_save`."""
        if control.should_save:
            self.on_save(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say what did not come to its end, and take the masks of the best model with its weights."""
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
        if best is not None and (saved := _read(best, args.process_index)):
            reached = pruner.sparsity
            try:
                _load(pruner, saved, best)
            except ValueError as reason:  # what was trained is not to be lost
                warn(str(reason))
            if pruner.sparsity != reached:
                warn(
                    f"load_best_model_at_end took the model of {best!r}, of which {pruner.sparsity:.2%} is pruned, "
                    f"and not {reached:.2%} as at the end of the training"
                )


# ---- what is in a checkpoint ---------------------------------------------------------------------------------------


def _file(process: int) -> str:
    """What a process writes: where gradients arrive is known to each for its own data only."""
    return f"pruner_{process}.pt" if process else _STATE


def _resumed_from(args: Any, state: Any) -> str | None:
    """The folder a training goes on from, None where it begins.

    The Trainer tells its callbacks the step it goes on from, but keeps the folder to itself: it is an argument of the
    call that led here.
    """
    if not state.global_step:
        return None
    frame = currentframe()
    while frame is not None:
        if frame.f_code.co_name == _LOOP and (folder := frame.f_locals.get("resume_from_checkpoint")):
            return str(folder)
        frame = frame.f_back
    return str(args.resume_from_checkpoint or os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))


def _read(folder: str, process: int) -> dict[str, Any]:
    """The state of a Pruner in a checkpoint, by this process or else by the first one; empty where there is none."""
    for path in (os.path.join(folder, _file(number)) for number in (process, 0)):
        if os.path.isfile(path):
            found = read_torch(
                path,
                "state of a Pruner",
                "take another checkpoint, or remove it and give PrunerCallback(hold_zeros=True)",
            )
            check_saved(found)
            return dict(found)
    return {}


def _load(pruner: Pruner, saved: Mapping[str, Any], folder: str) -> None:
    """Go on from a saved state, which has to be of these targets and of the weights that the model has."""
    params = pruner.zeros.params
    try:
        masks = unpacked(saved["masks"])
        check_masks(masks, params, every=True, what="the saved masks")
        # What is frozen, as under adapters, need not be in the checkpoint: the masks make it what it was.
        trained = ((name, params[name].detach(), mask) for name, mask in masks.items() if params[name].requires_grad)
        if other := [name for name, weight, mask in trained if weight[~mask.to(weight.device)].any()]:
            raise ValueError(
                f"what it prunes is not zero in {some(map(repr, other), _SHOWN)}: the Trainer did not load these "
                "weights, as it loads none that have other names in files, such as stacked experts; begin with "
                f"from_pretrained({folder!r}), and resume then"
            )
        pruner.load_state_dict(saved)
    except ValueError as reason:
        raise ValueError(f"the Pruner of this PrunerCallback cannot go on from {folder!r}: {reason}") from reason


# ---- what is zero ---------------------------------------------------------------------------------------------------


def _is_of(pruner: Pruner, model: nn.Module) -> bool:
    """Whether what a Pruner prunes is in a model."""
    return {id(param) for param in pruner.zeros.params.values()} <= {id(param) for param in model.parameters()}


def _zeros(pruner: Pruner) -> int:
    """How many weights look as if they were pruned: zeros, where there are many, in tensors that have others too."""
    counts = [(int((weight == 0).sum()), weight.numel()) for weight in pruner.targets().values()]
    return sum(zeros for zeros, size in counts if _MUCH * size <= zeros < size)


def _sparsities(pruner: Pruner) -> tuple[float, dict[str, float]]:
    """The share that is pruned and zero: of all targets, and by parameter."""
    kept, size = Counter[str](), Counter[str]()
    for part in pruner.slices:
        name = part.param
        here = part.take((pruner.zeros.params[name].detach() != 0) | pruner.zeros.mask(name))
        kept[name] += int(torch.count_nonzero(here))
        size[name] += here.numel()
    return 1 - kept.total() / size.total(), {name: 1 - kept[name] / size[name] for name in size}


# ---- the class, derived when it is asked for -------------------------------------------------------------------------


@cache
def _derived() -> Any:
    base = framework("transformers").TrainerCallback
    return type("PrunerCallback", (PrunerEvents, base), {"__doc__": PrunerEvents.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "PrunerCallback":
        return _derived()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: PrunerCallback is there")
