"""Iterative pruning: prune a little, train, and again, through rising levels."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, TypeAlias

from torch import Tensor, nn

from prunewald.checks import copied
from prunewald.files import FilePath
from prunewald.pruner import Pruner
from prunewald.registry import brief
from prunewald.report import Report
from prunewald.schedules import check_levels
from prunewald.strategies.checkpoint import Folder, State, as_report, restore_, set_, take

Estimate: TypeAlias = Callable[[], Mapping[str, Tensor]]
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass
class Round:
    """One level of an iterative pruning: what was pruned, and what the training after it returned."""

    index: int
    sparsity: float
    report: Report
    result: float | None = None


def iterative(
    pruner: Pruner,
    levels: Iterable[float],
    train: Callable[[Round], float | None],
    *,
    estimate: Estimate | None = None,
    rewind: Callable[[], None] | None = None,
    lr: float | None = None,
    dropout: bool | Mapping[str, str] = False,
    folder: FilePath | None = None,
) -> list[Round]:
    """Prune to each level in turn, and train after each.  Han et al. (2015).

    `train` is the user's own: it is called with the round after its pruning, and may return a number to keep, such as
    an accuracy. An online estimator collects while it trains, so sigma is of the survivors; an offline one is called
    anew before every pruning by `estimate`, which returns its sigmas.

    - `rewind`: called after each pruning, as `Checkpoint(model, optimizer).weights_` or `.lr_`; the zeros stay.
    - `lr`: the learning rate each retraining begins with, as a share of that before the first; Han takes a tenth.
      With None it stays what it is, which after a decay inside `train` is little.
    - `dropout`: lower the rate of every dropout module by sqrt(kept / all) of the layer before it, as Han does. True
      goes by the order in which the model holds its modules; a dict says for each dropout module which layer it is.
    - `folder`: every finished round is kept there, and the next start goes on after the last one, whatever the model
      is by then; to rewind to a checkpoint, take that again. The folder also keeps torch's global random numbers.
    """
    run = _Run(pruner, levels, estimate, rewind, lr, dropout, folder)
    for one in run.rounds():
        one.result = train(one)
    return run.done


def rounds(
    pruner: Pruner,
    levels: Iterable[float],
    *,
    estimate: Estimate | None = None,
    rewind: Callable[[], None] | None = None,
    lr: float | None = None,
    dropout: bool | Mapping[str, str] = False,
    folder: FilePath | None = None,
) -> Iterator[Round]:
    """The same for those who keep their loop: `for one in rounds(pruner, levels): train(...)`; set `one.result`."""
    return _Run(pruner, levels, estimate, rewind, lr, dropout, folder).rounds()


class _Run:
    """An iterative pruning, checked and ready to go on from where its folder ends."""

    def __init__(
        self,
        pruner: Pruner,
        levels: Iterable[float],
        estimate: Estimate | None,
        rewind: Callable[[], None] | None,
        lr: float | None,
        dropout: bool | Mapping[str, str],
        folder: FilePath | None,
    ) -> None:
        self._pruner, self._estimate, self._rewind, self._lr = pruner, estimate, rewind, lr
        self._levels = checked_levels(pruner, levels)
        if lr is not None and not lr > 0:
            raise ValueError(f"lr={lr!r}: the share of the learning rate must be above 0")
        if lr is not None and not pruner.optimizers:
            raise ValueError(f"lr={lr!r}: this Pruner has no optimizer, whose learning rate it could be")
        if rewind is not None and lr is not None:
            raise ValueError(f"lr={lr!r} and rewind={rewind!r} both set the learning rate: give one of them")
        self._rates = [copied(group["lr"]) for o in pruner.optimizers for group in o.param_groups]
        self._dropouts = _Dropouts(pruner, None if dropout is True else dropout) if dropout else None
        settings = {
            "lr": lr,
            "rewind": rewind is not None,
            "dropout": dropout if isinstance(dropout, bool) else dict(dropout),
        }
        self._folder = Folder(folder, plan(pruner, self._levels, estimate) | settings) if folder is not None else None
        self.done: list[Round] = []

    def rounds(self) -> Iterator[Round]:
        self._go_on()
        first = len(self.done)
        for index, level in enumerate(self._levels[first:], first + 1):
            one = Round(index, level, prune(self._pruner, level, self._estimate))
            self._prepare()
            yield one
            one.result = number(one.result, f"the training at {level}")
            self._save(one)
            self.done.append(one)

    def _prepare(self) -> None:
        """Make ready for training what was just pruned."""
        if self._rewind is not None:
            self._rewind()
            self._pruner.impose(self._pruner.masks)
        if self._lr is not None:
            groups = [group for optimizer in self._pruner.optimizers for group in optimizer.param_groups]
            for group, rate in zip(groups, self._rates, strict=True):
                for key in group.keys() & {"lr", "initial_lr"}:  # the next scheduler begins with the one of the last
                    set_(group, key, rate * self._lr)
        if self._dropouts is not None:
            self._dropouts.rescale_()

    def _go_on(self) -> None:
        """Go to the end of the last round that the folder holds, or to the start it holds, or keep that."""
        if self._folder is None:
            return
        last = self._folder.load(_name(0))
        if last is None:
            self._save(None)
            return
        while (state := self._folder.load(_name(len(self.done) + 1))) is not None:
            last = state
            self.done.append(Round(**{**state["round"], "report": as_report(state["round"]["report"])}))
        restore_(self._pruner, last)
        self._rates = last["rates"]
        if self._dropouts is not None:
            self._dropouts.start = last["dropouts"]
            self._dropouts.rescale_()

    def _save(self, one: Round | None) -> None:
        if self._folder is not None:
            state: State = {"round": None if one is None else asdict(one), "rates": self._rates}
            state["dropouts"] = [] if self._dropouts is None else self._dropouts.start
            self._folder.save(_name(0 if one is None else one.index), take(self._pruner) | state)


def checked_levels(pruner: Pruner, levels: Iterable[float]) -> tuple[float, ...]:
    """Levels that rise, and that the pattern can reach."""
    if not isinstance(levels, Iterable):
        raise TypeError(f"levels={levels!r}: give rising sparsities, such as (0.5, 0.75, 0.9)")
    levels = tuple(levels)
    check_levels(levels)
    most = getattr(pruner.pattern, "sparsity", None)
    if most is not None and levels[-1] > most:
        raise ValueError(f"the levels {levels} go beyond {most}, where {pruner.pattern!r} ends")
    return levels


def prune(pruner: Pruner, level: float, estimate: Estimate | None) -> Report:
    """Prune to a level, by fresh sigmas where these come from data."""
    own = pruner.uncertainty
    if estimate is not None:
        pruner.uncertainty = estimate()
    try:
        return pruner.prune(level)
    finally:
        pruner.uncertainty = own


def plan(pruner: Pruner, levels: Iterable[float], estimate: Estimate | None) -> dict[str, Any]:
    """What must be the same when a run goes on."""
    uncertainty = pruner.uncertainty
    given = estimate is not None or isinstance(uncertainty, Mapping)
    return {
        "levels": list(levels),
        "criterion": "default" if pruner.criterion is None else brief(pruner.criterion),
        "uncertainty": "given" if given else "default" if uncertainty is None else brief(uncertainty),
        "scope": brief(pruner.scope),
        "pattern": brief(pruner.pattern),
        "optimizers": [type(optimizer).__name__ for optimizer in pruner.optimizers],
        "weights": {name: list(tensor.shape) for name, tensor in pruner.targets().items()},
    }


def number(value: Any, what: str) -> float | None:
    """A result as a plain number, which any file can hold."""
    try:
        return None if value is None else float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} gave {type(value).__name__}, and should give a number, or None") from None


def _name(index: int) -> str:
    return f"round-{index:02}"


class _Dropouts:
    """The dropout modules of a model, each with the targets of the layer before it, whose outputs it drops.

    Han's C_i = N_i N_(i-1) counts the connections into the N_i neurons of a layer. `start` has for each module the rate
    it was given, and how many connections there were then.
    """

    def __init__(self, pruner: Pruner, layer_of: Mapping[str, str] | None) -> None:
        self._pruner = pruner
        layers: dict[str, list[str]] = {}
        for param in pruner.masks:
            layers.setdefault(param.rpartition(".")[0], []).append(param)
        modules: dict[str, Any] = dict(pruner.model.named_modules())
        dropouts = [name for name, module in modules.items() if isinstance(module, _DROPOUTS)]
        if layer_of is None:
            layer_of = {name: _nearest(name, list(modules), layers) for name in dropouts}
        if not layer_of:
            raise ValueError(f"dropout=True, but {type(pruner.model).__name__} has no dropout module to rescale")
        for name, layer in layer_of.items():
            if name not in dropouts or layer not in layers:
                raise ValueError(
                    f"dropout={{{name!r}: {layer!r}}}: give a dropout module, of {dropouts}, and the layer before it, "
                    f"of {list(layers)}"
                )
        self._modules = [(modules[name], layers[layer]) for name, layer in layer_of.items()]
        self.start = [[module.p, self._kept(params)] for module, params in self._modules]

    def rescale_(self) -> None:
        for (module, params), (rate, kept) in zip(self._modules, self.start, strict=True):
            module.p = rate * sqrt(self._kept(params) / max(kept, 1))

    def _kept(self, params: list[str]) -> int:
        masks = self._pruner.masks
        return sum(int(masks[name].sum()) for name in params)


def _nearest(name: str, modules: list[str], layers: Iterable[str]) -> str:
    """The last layer before a module, or the first after it."""
    at = modules.index(name)
    return next(near for near in (*reversed(modules[:at]), *modules[at:]) if near in layers)
