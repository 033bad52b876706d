"""What a table or a figure is of, in words that stand with it: network, data, training, pruning, seeds."""

from collections.abc import Sequence

import torch

from prunewald.lab.data import RULES, counted
from prunewald.lab.methods import SIGMAS, parse
from prunewald.lab.networks import model_of
from prunewald.lab.settings import Settings

INTERVALS = "marks: means over n networks, with 95 % t intervals that are not adjusted for how many there are"

_TOLD = {"experiment", "epochs", "retrain_epochs", "lr", "batch_size", "dropout", "images", "levels", "iterative"}
_TOLD |= {"last", "replicas", "prune", "network", "gradual"}


def heading(settings: Settings, data: str, rows: Sequence[str]) -> list[str]:
    """The lines above a table."""
    return [
        f"network: {_network(settings)}",
        f"data: {data}{_parts(settings, data)}; pixels from 0 to 1",
        f"training: {_training(settings)}",
        f"pruning: {_pruning(settings)}{_sources(settings, rows)}",
    ]


def note(settings: Settings, data: str, rows: Sequence[str]) -> str:
    """The same below a figure, as one text."""
    return "\n".join([*heading(settings, data, rows), INTERVALS])


def classes(settings: Settings) -> int:
    """How many classes an experiment has, which its data say too, where they are at hand."""
    return 100 if settings.experiment == "imagenet100" else 10


def _network(settings: Settings) -> str:
    with torch.device("meta"):  # only to be counted
        model = model_of(settings, classes(settings))()
    total = sum(param.numel() for param in model.parameters())
    dense = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    return f"{type(model).__name__}, {total:,} parameters, of which {dense:,} are weights of dense layers"


def _parts(settings: Settings, data: str) -> str:
    """How many images are used; nothing where the data do not say how many there are."""
    rule, images = RULES[settings.experiment], counted(data)
    if images is None:
        return ""
    drawn = images[0] if rule.per_class is None else 10 * rule.per_class
    rest = drawn - rule.held_out(drawn)
    train = min(settings.images or rest, rest)
    return f"; used: {train:,} to train, {drawn - rest:,} to validate, drawn by seed, {images[1]:,} to test"


def _training(settings: Settings) -> str:
    own = settings.identity()
    optimizer = {"rmsprop": "RMSprop", "adamw": "AdamW", "sgd": "SGD"}[own.pop("optimizer", "rmsprop")]
    others = [f", {name.replace('_', ' ')} {value}" for name, value in own.items() if name not in _TOLD]
    after = "step" if settings.gradual else "pruning"
    return (
        f"{settings.epochs:,} epochs, and {settings.retrain_epochs:,} after each {after}; {optimizer}, "
        f"lr {settings.lr:g}, equal batches of at most {settings.batch_size}, dropout {settings.dropout:g}"
        + "".join(others)
    )


def _pruning(settings: Settings) -> str:
    layers = "the dense layers" if settings.prune == "dense" else "all layers"
    if settings.gradual:
        return f"{layers}, in {len(settings.levels)} steps to the last level; the dense control is trained on along"
    if settings.iterative:
        return f"{layers}, in rounds from level to level; the dense control is trained on along"
    return f"{layers}, at once to each level; the dense control is trained on as long"


def _sources(settings: Settings, rows: Sequence[str]) -> str:
    """How much each sigma is estimated from."""
    used = {parse(row).sigma for row in rows} & set(SIGMAS)
    last = f"; sigma of {settings.last} steps" if used & {"pseudo", "every"} else ""
    return last + (f"; {settings.replicas} bootstrap replicas" if any("bootstrap" in one for one in used) else "")
