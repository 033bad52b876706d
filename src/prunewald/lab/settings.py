"""The settings of an experiment: one frozen dataclass is configuration, flags and the name of the results."""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
Preset = Literal["paper", "quick"]


class SettingsError(ValueError):
    """A setting that does not exist or is out of range."""


@dataclass(frozen=True)
class Settings:
    """One experiment. `rows` are methods as `lab.rows` spells them; `levels` the sparsities of the dense layers."""

    experiment: str
    repetitions: int
    epochs: int
    retrain_epochs: int
    rows: tuple[str, ...]
    levels: tuple[float, ...] = LEVELS
    first_seed: int = 0
    iterative: bool = False
    last: int = 200  # B, the snapshots of a pseudo bootstrap
    replicas: int = 100  # of a bootstrap
    bootstrap_repetitions: int = 100  # only so many have bootstrap rows
    lr: float = 1e-3
    batch_size: int = 128
    dropout: float = 0.1
    images: int = 0  # of a network's training part; 0: all
    side: int = 64  # of ImageNet's images

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _typed(field, getattr(self, field.name)))
        if self.experiment not in EXPERIMENTS:
            raise SettingsError(f"unknown experiment {self.experiment!r}; known: {', '.join(EXPERIMENTS)}")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise SettingsError(f"{_flag(name)} {getattr(self, name)}: give {least} or more")
        if self.replicas > 1000:
            raise SettingsError(f"--replicas {self.replicas}: give 1000 or fewer, since each has a seed of its own")
        if not 0 < self.lr < math.inf:
            raise SettingsError(f"--lr {self.lr}: give a number above 0")
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"--dropout {self.dropout}: give a share from 0 to below 1")
        if self.experiment == "imagenet100" and self.side % 32:
            raise SettingsError(f"--side {self.side}: give a multiple of 32, such as 64 or 224")
        _check_levels(self.levels)
        if not self.rows:
            raise SettingsError("--rows: give at least one, such as abs")

    @property
    def seeds(self) -> range:
        """One for each repetition."""
        return range(self.first_seed, self.first_seed + self.repetitions)

    def identity(self) -> dict[str, Any]:
        """What a single result depends on, besides its seed, row and level: not how many others there are."""
        apart = {"repetitions", "first_seed", "rows", "bootstrap_repetitions"}
        apart |= set() if self.iterative else {"levels"}
        apart |= set() if self.experiment == "imagenet100" else {"side"}
        return {name: value for name, value in asdict(self).items() if name not in apart}

    @property
    def name(self) -> str:
        """Of the results' folder: the same for the same identity, and `paper` for the paper's."""
        if self.identity() == PAPER[self.experiment].identity():
            return f"{self.experiment}-paper"
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{self.experiment}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_LEAST = {
    "repetitions": 1,
    "epochs": 1,
    "retrain_epochs": 1,
    "first_seed": 0,
    "last": 2,
    "replicas": 2,
    "bootstrap_repetitions": 0,
    "batch_size": 1,
    "images": 0,
    "side": 32,
}


def _typed(field: Any, value: Any) -> Any:
    """A value of the field's type: a TOML file may hold 1 for 1.0, but not "1"."""
    if field.name in ("levels", "rows"):
        many = value if isinstance(value, list | tuple) else (value,)
        return tuple(_one(field.name, float if field.name == "levels" else str, each) for each in many)
    return _one(field.name, field.type, value)


def _one(name: str, kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise SettingsError(f"{_flag(name)} {value!r}: give {words[kind]}")
    return round(value, 6) if name == "levels" else value  # as a record's name can hold it


def _check_levels(levels: tuple[float, ...]) -> None:
    if not levels:
        raise SettingsError("--levels: give at least one, such as 0.9")
    for level in levels:
        if not 0 < level < 1:
            raise SettingsError(f"level {level:g}: give a fraction of the weights between 0 and 1, such as 0.9")
    if list(levels) != sorted(set(levels)):
        raise SettingsError(f"levels {' '.join(f'{level:g}' for level in levels)}: give rising levels, each once")


EXPERIMENTS = ("fashion-mnist", "cifar10", "mnist", "imagenet100")
_SANITY = ("random", "moment:1:permuted", "moment:1:inverted")
PAPER: dict[str, Settings] = {}  # filled below, since a Settings asks it for its name
PAPER |= {
    "fashion-mnist": Settings(
        "fashion-mnist",
        repetitions=100,
        epochs=500,
        retrain_epochs=200,
        dropout=0.5,  # of those tried nearest to the paper's dense accuracy on validation images
        rows=(
            "abs",
            *("pseudo:1e-4:formula", "pseudo:0", "every:0", "moment:0.1"),  # lambda* of the last chosen on such images
            *("bootstrap:0.1:formula", "bootstrap-same:0", "bootstrap-warm:0"),
            *("random", "moment:0.1:permuted", "moment:0.1:inverted"),
        ),
    ),
    "cifar10": Settings(
        "cifar10",
        repetitions=20,
        epochs=1000,
        retrain_epochs=200,
        rows=("abs", "pseudo:1:formula", "pseudo:1", "moment:1", *_SANITY),
    ),
    "mnist": Settings(
        "mnist",
        repetitions=20,
        epochs=1000,
        retrain_epochs=200,
        iterative=True,
        rows=("abs", "pseudo:1:formula", "pseudo:1", "moment:1", "moment:10", *_SANITY),
    ),
    "imagenet100": Settings(
        "imagenet100",
        repetitions=10,
        epochs=100,
        retrain_epochs=40,
        levels=(0.5, 0.7, 0.8, 0.9, 0.95, 0.99),
        lr=1e-4,  # at 1e-3 the first steps throw VGG-11 far off
        dropout=0.5,
        rows=("abs", "pseudo:1e-3:formula", "pseudo:1e-3", "moment:1", *_SANITY),
    ),
}
_QUICK: dict[str, dict[str, Any]] = {
    "fashion-mnist": {
        "repetitions": 4,
        "epochs": 20,
        "retrain_epochs": 3,
        "levels": (0.5, 0.8, 0.9, 0.95),
        "dropout": 0.1,  # with more of it so few epochs teach little
    },
    "cifar10": {"levels": (0.9,), "rows": ("abs", "pseudo:1:formula", "moment:1")},
    "mnist": {"levels": (0.8, 0.95, 0.99)},
    # Its network is so large that minutes need fewer images too.
    "imagenet100": {
        "epochs": 1,
        "levels": (0.9,),
        "rows": ("abs", "pseudo:1e-3:formula", "moment:1"),
        "images": 2560,
        "side": 32,
    },
}


def settings(experiment: str, preset: str = "quick", **given: Any) -> Settings:
    """The settings of a preset, with what is given instead."""
    if experiment not in PAPER:
        raise SettingsError(f"unknown experiment {experiment!r}; known: {', '.join(EXPERIMENTS)}")
    if preset not in ("paper", "quick"):
        raise SettingsError(f"unknown preset {preset!r}; known: paper, quick")
    base = PAPER[experiment]
    if preset == "quick":
        short: dict[str, Any] = {"repetitions": 2, "epochs": 2, "retrain_epochs": 1}
        short["rows"] = tuple(row for row in base.rows if not row.startswith("bootstrap"))
        base = replace(base, **(short | _QUICK[experiment]))
    _check_known(given, "setting")
    return replace(base, **given)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Settings from a file, by the names of the flags."""
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # of TOML or of UTF-8
        raise SettingsError(f"{path}: {error}") from error
    given = {key.replace("-", "_"): value for key, value in found.items()}
    _check_known(given, f"{path}: setting")
    return given


def _check_known(given: Mapping[str, Any], what: str) -> None:
    known = [field.name for field in fields(Settings) if field.name != "experiment"]
    for name in given:
        if name not in known:
            raise SettingsError(f"{what} {name!r} is not known; known: {', '.join(known)}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
