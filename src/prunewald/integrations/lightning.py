"""Lightning: a callback that prunes while the Trainer trains, and goes on from its checkpoints."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, TypeAlias

from torch import Tensor, nn

from prunewald.core.base import Allocation, Criterion, Pattern, Schedule
from prunewald.integrations.beginning import load, meet_zeros, shares, take
from prunewald.integrations.framework import framework
from prunewald.integrations.lightning_trainer import check_epoch, check_strategy, optimizers, steps_to_come
from prunewald.integrations.model_pruning import Reading, from_model_pruning
from prunewald.integrations.peft import take_along
from prunewald.integrations.sparsities import sparsities
from prunewald.model.masking import check_masks
from prunewald.model.modules import averaged
from prunewald.model.targets import Target
from prunewald.pruner import Pruner
from prunewald.pruning.by_layer import by_slice
from prunewald.pruning.plan import Choices, Request, SigmaSource, Sparsity
from prunewald.pruning.report import Report
from prunewald.util.arguments import whole
from prunewald.util.notices import warn
from prunewald.util.registry import make
from prunewald.util.text import some

__all__ = ["PrunerCallback", "from_model_pruning"]  # noqa: F822 (the first is made when it is asked for)

Module: TypeAlias = str | Callable[[Any], nn.Module]
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
_PASSING = {"log", "log_dict", "_pruner", "_earlier", "_reading"}  # what a copy does without
_SHOWN = 6  # so many names are said
_ELSEWHERE = (
    "this PrunerCallback prunes another model, the {} of an earlier fit: make a new one for this {}; "
    "PrunerCallback(masks=other.pruner.masks) takes the masks along"
)


class _PrunerCallback:
    """Attaches a `pw.Pruner` to the model of a Lightning Trainer, when a fit begins, and keeps it for the next one.

    - `sparsity`, `at_epoch`: prune once, before the first batch of that epoch (the first is 0). Without both nothing is
      pruned until `callback.pruner.prune(0.9)` is called, after a fit or in a hook of your own, or a schedule says so.
    - `module`: what is pruned: the name of a part of the LightningModule, or a function that gives it. By default all.
    - `criterion`, `uncertainty`, `scope`, `pattern`, `targets`, `ignore`, `schedule`, `total_steps`: as for `Pruner`. A
      schedule that has no end of its own ends with the training, where the Trainer knows how long that is.
    - `masks`: what is pruned already, by parameter name. `hold_zeros=True` takes the zeros for it that the weights have
      when the fit begins; with False they train.

    Its state is in the Trainer's checkpoints. Sparsity, by layer too, goes to the Trainer's loggers and progress bar.
    """

    def __init__(
        self,
        sparsity: Sparsity | None = None,
        *,
        at_epoch: int | None = None,
        module: Module | None = None,
        criterion: Criterion | str | None = None,
        uncertainty: SigmaSource | None = None,
        scope: Allocation | str | None = None,
        pattern: Pattern | str = "element",
        targets: Iterable[Target] | Target | None = None,
        ignore: Iterable[Target] | Target | None = None,
        schedule: Schedule | str | None = None,
        total_steps: int | None = None,
        masks: Mapping[str, Tensor] | None = None,
        hold_zeros: bool | None = None,
    ) -> None:
        choices = Choices.of(criterion, uncertainty, scope, pattern, schedule, total_steps)
        choices.check((), {})
        _check_when(sparsity, at_epoch, choices.pattern)
        _check_module(module)
        if masks is not None:
            check_masks(masks)
            if hold_zeros is not None:
                raise ValueError(f"masks={some(masks, _SHOWN)} and hold_zeros={hold_zeros!r}: give one of them")
        self.sparsity, self.at_epoch, self.module = sparsity, at_epoch, module
        self.masks, self.hold_zeros = masks, hold_zeros
        self._choices: dict[str, Any] = {"criterion": criterion, "uncertainty": uncertainty, "scope": scope}
        self._choices |= {"pattern": pattern, "targets": targets, "ignore": ignore}
        self._choices |= {"schedule": schedule, "total_steps": total_steps}
        self._pruner: Pruner | None = None
        self._earlier: Pruner | None = None  # the last fit's, until there is one for this fit
        self._pruned = False  # at its epoch
        self._total: int | None = None  # how many steps the Trainer said, for a schedule
        self._state: Mapping[str, Any] | None = None  # a saved state, until there is a Pruner to go on from it
        self._report: Report | None = None  # of the last fit's Pruner, for the next
        self._restored = False  # whether this run's checkpoint had a state
        self._elsewhere = False  # whether this run is of another model than the Pruner's
        self._reading: Reading | None = None  # of masks that ModelPruning left in this run's checkpoint
        self._seen, self._shown = -1, dict[str, float]()  # how often masks had changed when this sparsity was logged

    @property
    def pruner(self) -> Pruner:
        """The Pruner of the present fit, or of the last one; each fit has a new one, which goes on from it."""
        if self._pruner is None:
            raise RuntimeError(f"{self!r} has no Pruner yet: trainer.fit(...) makes it, when the training begins")
        return self._pruner

    @property
    def state_key(self) -> str:
        """Under what its state is in a checkpoint: callbacks for two parts of a model are told apart."""
        own = type(self).__qualname__
        return own if self.module is None else f"{own}({_brief(self.module)})"

    # ---- hooks of the Trainer ------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse another model, and other callbacks that prune this one; read masks that ModelPruning saved."""
        self._restored = False
        self._elsewhere = self._pruner is not None and not shares(self._pruner, pl_module)
        if stage == "fit":
            check_strategy(trainer)
            self._check_others(trainer)
            if self._elsewhere:
                raise ValueError(_ELSEWHERE.format(type(self.pruner.model).__name__, type(pl_module).__name__))
        self._read_no_more()
        self._reading = Reading(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach, now that weights, optimizers and loops are as the checkpoint has them."""
        inside = self._inside(pl_module)
        if self.at_epoch is not None and not self._pruned:
            check_epoch(trainer, self.at_epoch)
        self._let_go(trainer)
        pruner = Pruner(inside, optimizers(trainer, inside), **self._resolved(trainer, pl_module))
        try:
            self._begin(trainer, pl_module, pruner)
        except Exception:
            pruner.detach()
            raise
        take_along(pl_module, self._earlier, pruner)
        self._pruner, self._earlier, self._state, self._seen = pruner, None, None, -1
        self._read_no_more()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Prune, if it is time. A fit that goes on within an epoch has no beginning of that epoch."""
        if self.at_epoch is not None and not self._pruned and trainer.current_epoch >= self.at_epoch:
            trainer.print(self.pruner.prune(self.sparsity))
            self._pruned = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Show the sparsity in the progress bar; at each pruning tell the loggers, by layer too."""
        if trainer.barebones:
            return
        if self._seen != self.pruner.zeros.changes:
            self._seen = self.pruner.zeros.changes
            self._shown = self._sparsities(pl_module)
            for logger in trainer.loggers:  # each of them writes in the first process only
                logger.log_metrics(self._shown, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        name, total = next(iter(self._shown.items()))
        pl_module.log(name, total, prog_bar=True, logger=False, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the sparsity of each epoch, so that other callbacks can monitor it too."""
        if not trainer.barebones:
            pl_module.log_dict(self._sparsities(pl_module), sync_dist=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say what the training ended before."""
        if not trainer.is_global_zero:
            return
        pruner = self.pruner
        if pruner.at_work:
            warn(
                f"the training ended, and {pruner.schedule!r} stands at {pruner.sparsity:.2%}, step {pruner.steps:,}: "
                "it goes on in the next fit, and from a checkpoint; Cubic(end=...) or total_steps=... ends it earlier"
            )
        if self.at_epoch is not None and not self._pruned:
            warn(
                f"the training ended before at_epoch={self.at_epoch}, so nothing was pruned then: "
                "callback.pruner.prune(...) does it now, a further fit at that epoch"
            )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave nothing on the model but the Pruner, which holds the zeros on."""
        self._read_no_more()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same, where a run was broken off; what its checkpoint had and no fit took on is of no use."""
        self._read_no_more()
        if self._restored and self._pruner is None:
            self._state = None

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the Pruner's state, and whether it was pruned at its epoch."""
        if self._pruner is None or not self._pruner.zeros.attached:
            return dict(self._state or {})
        return {"pruner": self._pruner.state_dict(), "pruned": self._pruned, "total_steps": self._total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint: at once where there is a Pruner, else when the next fit begins."""
        if self._elsewhere:
            return
        self._restored = True
        if self._pruner is None or not self._pruner.zeros.attached:
            self._state = state_dict
        else:
            load(self._pruner, state_dict)
        self._pruned, self._total = state_dict["pruned"], state_dict["total_steps"]

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no Pruner; in its own fit it goes on from where this one is."""
        kept = {name: value for name, value in vars(self).items() if name not in _PASSING}
        return kept | {"_pruner": None, "_earlier": None, "_reading": None, "_state": self.state_dict() or None}

    def __repr__(self) -> str:
        given = {**vars(self), **self._choices}
        defaults = {one.name: repr(one.default) for one in signature(_PrunerCallback).parameters.values()}
        shown = [f"{name}={_words(given[name])}" for name in defaults if _words(given[name]) != defaults[name]]
        now = [] if self._pruner is None else [f"pruner={self._pruner!r}"]
        return f"{type(self).__qualname__}({', '.join([*shown, *now])})"

    # ---- attaching -----------------------------------------------------------------------------------------------

    def _inside(self, model: nn.Module) -> nn.Module:
        """What is pruned of a LightningModule, or of a copy of it."""
        if self.module is None:
            return model
        if not isinstance(self.module, str):
            part = self.module(model)
            if not any(part is one for one in model.modules()):
                given = f"module={_brief(self.module)} gave {repr(part)[:200]}"
                raise ValueError(f"{given}, which is no part of the {type(model).__name__}: give one")
            return part
        try:
            return model.get_submodule(self.module)
        except AttributeError:
            parts = some([name for name, _ in model.named_children()], _SHOWN)
            raise ValueError(f"module={self.module!r}: {type(model).__name__} has no such part, but {parts}") from None

    def _let_go(self, trainer: Any) -> None:
        """Keep the state of the last fit's Pruner for the one to come, unless a checkpoint took its place."""
        resumed = trainer.ckpt_path is not None
        self._report = None
        if self._pruner is not None:
            self._report, self._state = None if resumed else self._pruner.report, self.state_dict() or None
            self._pruner.detach()
            self._pruner, self._earlier = None, self._pruner
        if resumed and not self._restored:
            self._state, self._pruned, self._total = None, False, None

    def _resolved(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        """The choices, with the end of the training for a schedule that nobody gave an end."""
        schedule = self._choices["schedule"]
        if schedule is None or self._choices["total_steps"] is not None or not make("schedule", schedule).assumed:
            return self._choices
        if self._total is None and (steps := steps_to_come(trainer, pl_module)) > 0:
            self._total = steps
            trainer.print(
                f"the schedule ends with the training, at step {steps:,}, by trainer.estimated_stepping_batches"
            )
        return {**self._choices, "total_steps": self._total}

    def _begin(self, trainer: Any, pl_module: Any, pruner: Pruner) -> None:
        """Go on from a state, or hold what is pruned already; the copies that others average are to follow."""
        if isinstance(self.sparsity, Mapping):
            by_slice(pruner.model, pruner.slices, self.sparsity)
        for other in trainer.callbacks:
            self._check_apart(other, pruner)
            if isinstance(copy := getattr(other, "_average_model", None), nn.Module):
                pruner.follow(self._inside(averaged(copy)))
        found = {} if self._reading is None else self._reading.masks
        masks = self._named_inside(pl_module, found) if found else self.masks
        if self._state is not None:
            load(pruner, self._state)
            pruner.report = self._report
        elif masks is not None:
            take(pruner, masks)
        else:
            soon = self.at_epoch == 0 and not self._pruned
            meet_zeros(pruner, self.hold_zeros, trainer.ckpt_path, "state of a PrunerCallback", soon=soon)

    def _named_inside(self, pl_module: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks by the names that the Pruner has for their parameters."""
        place = self._place(pl_module)
        return {name.removeprefix(f"{place}." if place else ""): mask for name, mask in masks.items()}

    def _place(self, pl_module: nn.Module) -> str:
        """The name of what is pruned, in the LightningModule."""
        inside = self._inside(pl_module)
        return next((name for name, one in pl_module.named_modules() if one is inside), "")

    def _sparsities(self, pl_module: nn.Module) -> dict[str, float]:
        """What is pruned and zero now: in all, then of each parameter."""
        place, (share, layers) = self._place(pl_module), sparsities(self.pruner)
        total, within = (f"sparsity/{place}", f"sparsity/{place}.") if place else ("sparsity", "sparsity/")
        return {total: share, **{f"{within}{name}": part for name, part in layers.items()}}

    def _read_no_more(self) -> None:
        if self._reading is not None:
            self._reading.end()
        self._reading = None

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check_others(self, trainer: Any) -> None:
        for other in trainer.callbacks:
            if type(other).__name__ == "ModelPruning":
                raise ValueError(
                    "ModelPruning and PrunerCallback in one Trainer prune the same weights: leave ModelPruning out; "
                    "PrunerCallback goes on from its checkpoints"
                )
            if isinstance(other, _PrunerCallback) and other is not self and other.state_key == self.state_key:
                raise ValueError(
                    f"{other!r} and {self!r} are in one Trainer: give one, or each a part of the model, as module='net'"
                )
        if sum(other is self for other in trainer.callbacks) > 1:
            raise ValueError(f"{self!r} is twice in trainer.callbacks: give it once")

    def _check_apart(self, other: object, pruner: Pruner) -> None:
        """Refuse to share a parameter with another of these callbacks."""
        if isinstance(other, _PrunerCallback) and other is not self and other._pruner is not None:
            held = set(map(id, other._pruner.zeros.params.values()))
            if shared := [name for name, param in pruner.zeros.params.items() if id(param) in held]:
                raise ValueError(
                    f"{some(shared, _SHOWN)} of {self.state_key} are targets of {other.state_key} too, in the same "
                    "Trainer: give each of them a part of the model that the other leaves alone"
                )


# ---- small things ----------------------------------------------------------------------------------------------------


def _check_when(sparsity: Sparsity | None, at_epoch: int | None, pattern: Pattern) -> None:
    if at_epoch is not None:
        whole("at_epoch", at_epoch)
        Request(sparsity).checked(pattern)
    elif sparsity is not None:
        raise ValueError(
            f"sparsity={sparsity!r}: say when, as PrunerCallback({sparsity!r}, at_epoch=5), or by a schedule: "
            "PrunerCallback(schedule=pw.Cubic(0.9)); after a fit, callback.pruner.prune(...) prunes"
        )


def _check_module(module: object) -> None:
    if module is not None and (isinstance(module, nn.Module) or not (isinstance(module, str) or callable(module))):
        raise TypeError(
            f"module={repr(module)[:200]}: give the name of a part of the LightningModule, such as 'generator', or a "
            "function of the LightningModule that gives the part"
        )


def _brief(module: Module) -> str:
    return repr(module) if isinstance(module, str) else getattr(module, "__qualname__", type(module).__name__)


def _words(value: object) -> str:
    tensors = isinstance(value, Mapping) and any(isinstance(one, Tensor) for one in value.values())
    return f"<{some(list(value), _SHOWN)}>" if tensors and isinstance(value, Mapping) else repr(value)


def _bases() -> list[type]:
    """The Callback of each package that is loaded, or else of the one that is installed."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    names = loaded or [name for name in _PACKAGES if find_spec(name)][:1] or ["lightning"]
    for name in names:
        framework(name)
    return [import_module(_PACKAGES[name]).Callback for name in names]


def __getattr__(name: str) -> Any:
    """PrunerCallback, made when it is first asked for: only then is Lightning there to derive from."""
    if name != "PrunerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    own = {"__doc__": _PrunerCallback.__doc__, "__module__": __name__}
    globals()[name] = made = type(name, (_PrunerCallback, *_bases()), own)
    return made
