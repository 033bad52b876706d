"""The settings of an experiment: one frozen dataclass is configuration, flags and the name of the results."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from prunewald.core.schedules import Cubic
from prunewald.util.arguments import real, whole

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class SettingsError(ValueError):
    """A setting that does not exist or is out of range."""


@dataclass(frozen=True)
class Settings:
    """One experiment. `rows` are methods as `lab.methods` spells them; `levels` the sparsities of the dense layers."""

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
    network: str = "paper"  # one of NETWORKS
    optimizer: str = "rmsprop"  # one of OPTIMIZERS
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0
    prune: str = "dense"  # which weights: those of dense layers, or "all" that a Pruner prunes by itself
    watch: int = 0  # epochs at the end of a training that running statistics are gathered over; 0: none
    calibration: int = 2048  # training images for what is computed at the trained network
    tries: int = 1  # of each row, of which validation images choose one
    tuning: int = 0  # networks that further tries are made on, the first of all; 0: every network
    tf32: bool = False  # whether a GPU multiplies the matrices of dense layers in TF32, as it does in convolutions
    gradual: bool = False  # the levels of an iterative run are steps towards the last, which alone is a result

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        _check_experiment(self.experiment)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise SettingsError(f"--{name} {getattr(self, name)!r}: give one of {', '.join(known)}")
        if self.experiment == "imagenet100" and self.side % 32:
            raise SettingsError(f"--side={self.side}: give a multiple of 32, such as 64 or 224")
        if not self.levels:
            raise SettingsError("--levels: give at least one, such as 0.9")
        if list(self.levels) != sorted(set(self.levels)):
            given = " ".join(f"{level:g}" for level in self.levels)
            raise SettingsError(f"--levels {given}: give rising levels, each once")
        if not self.rows:
            raise SettingsError("--rows: give at least one, such as abs")

    @property
    def seeds(self) -> range:
        """The seeds of the networks, one for each repetition."""
        return range(self.first_seed, self.first_seed + self.repetitions)

    def identity(self) -> dict[str, Any]:
        """What a single result depends on, besides its seed, row and level: not how many others there are."""
        apart = {"repetitions", "first_seed", "rows", "bootstrap_repetitions", "tries"}
        apart |= set() if self.iterative else {"levels"}
        apart |= set() if self.experiment == "imagenet100" else {"side"}
        # What came later is left out where it has its default, so that earlier results keep their names.
        apart |= {name for name in _LATER if getattr(self, name) == getattr(Settings, name)}
        return {name: value for name, value in asdict(self).items() if name not in apart}

    @property
    def name(self) -> str:
        """The name of the results' folder: the same for the same identity, and that of known settings in words."""
        own = self.identity()
        for preset, known in (("paper", PAPER), ("contest", CONTEST)):
            for title, one in known.items():
                if one.identity() == own:
                    return f"{title}-{preset}"
        first = self.experiment if self.network == "paper" else f"{self.experiment}-{self.network}"
        return f"{first}-{hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]}"


_LIMITS: dict[str, dict[str, Any]] = {
    "repetitions": {"least": 1},
    "epochs": {"least": 1},
    "retrain_epochs": {"least": 1},
    "levels": {"above": 0, "below": 1, "what": "a share of the weights (0.9 prunes 90 %)"},
    "last": {"least": 2},
    "replicas": {"least": 2, "most": 1000},  # the seeds of one network's replicas end where the next one's begin
    "lr": {"above": 0},
    "batch_size": {"least": 1},
    "dropout": {"least": 0, "below": 1},
    "side": {"least": 32},
    "momentum": {"least": 0, "below": 1},
    "weight_decay": {"least": 0},
    "watch": {"least": 0},
    "calibration": {"least": 2},
    "tries": {"least": 1, "most": 3},
    "tuning": {"least": 0},
}
NETWORKS = ("paper", "resnet", "transformer")
OPTIMIZERS = ("rmsprop", "adamw", "sgd")
_CHOICES = {"network": NETWORKS, "optimizer": OPTIMIZERS, "prune": ("dense", "all")}
_LATER = (
    "network",
    "optimizer",
    "momentum",
    "weight_decay",
    "prune",
    "watch",
    "calibration",
    "tuning",
    "tf32",
    "gradual",
)


def _checked(field: Any, value: Any) -> Any:
    """A value of the field's type and in its range: a TOML file may hold 1 for 1.0, but not "1"."""
    many = {"levels": float, "rows": str}
    if field.name in many:
        each = value if isinstance(value, list | tuple) else (value,)
        return tuple(_one(field.name, many[field.name], one) for one in each)
    return _one(field.name, field.type, value)


def _one(name: str, kind: type, value: Any) -> Any:
    flag, limits = f"--{name.replace('_', '-')}", _LIMITS.get(name, {})
    try:
        if kind is int:
            return whole(flag, value, **limits)
        if kind is float:
            number = real(flag, value, **limits)
            if name != "levels":
                return number
            return real(flag, round(number, 6), **limits)  # as a record's name can hold it
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if type(value) is not kind:
        raise SettingsError(f"{flag}={value!r}: give {'true or false' if kind is bool else 'text'}")
    return value


def _check_experiment(name: str) -> None:
    if name not in EXPERIMENTS:
        raise SettingsError(f"unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}")


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
# The contest, `prunewald compare`. It was fixed, seeds and all, before any test figure of it was read.
_BASELINES = ("random", "wanda", "obd", "taylor", "platon", "movement", "snip", "pseudo:0.1", "fisher:1")
CONTEST_ROWS = (
    *("abs@lamp", "moment:1@lamp", "abs", "moment:1", "abs@erk", "moment:1@erk", "moment:1@lamp-score"),
    *(f"{row}@lamp" for row in _BASELINES),
)
_CONTEST: dict[str, Any] = {"first_seed": 2000, "tries": 3, "watch": 5, "rows": CONTEST_ROWS}
_FEW = ("abs@lamp", "moment:1@lamp", "abs", "moment:1", "random@lamp", "wanda@lamp", "obd@lamp")
_FIRST = Settings(
    "fashion-mnist",
    repetitions=20,
    epochs=500,
    retrain_epochs=200,
    levels=(0.9, 0.95),
    dropout=0.25,
    **_CONTEST,
)
_LATER_NETWORK: dict[str, Any] = {
    "repetitions": 10,
    "tuning": 3,
    "tf32": True,
    "prune": "all",
    "optimizer": "adamw",
    "weight_decay": 0.01,
}
CONTEST: dict[str, Settings] = {
    "fashion-mnist": _FIRST,
    "fashion-mnist-sgd": replace(
        _FIRST,
        epochs=200,
        retrain_epochs=100,
        tuning=5,
        optimizer="sgd",
        lr=0.02,
        momentum=0.9,
        weight_decay=5e-4,
    ),
    "mnist": Settings(
        "mnist",
        repetitions=20,
        epochs=40,
        retrain_epochs=5,
        levels=(0.95, 0.99),
        dropout=0.0,
        tuning=5,
        tf32=True,
        **_CONTEST,
    ),
    "cifar10": Settings(
        "cifar10",
        repetitions=10,
        epochs=30,
        retrain_epochs=2,
        levels=(0.9, 0.95),
        dropout=0.25,
        tuning=3,
        tf32=True,
        **_CONTEST,
    ),
    "resnet": replace(_FIRST, network="resnet", epochs=40, retrain_epochs=6, dropout=0.0, **_LATER_NETWORK),
    "transformer": replace(
        _FIRST,
        network="transformer",
        epochs=100,
        retrain_epochs=20,
        dropout=0.1,
        **_LATER_NETWORK,
    ),
    "vgg": replace(
        PAPER["imagenet100"],
        repetitions=3,
        epochs=20,
        retrain_epochs=5,
        levels=(0.9, 0.95),
        **_CONTEST | {"rows": _FEW, "watch": 1},
    ),
}


def _chains(name: str, epochs: int) -> dict[str, Settings]:
    """Chains through the levels of one network, and gradual pruning by a cubic from half its training on.

    The latter has as many epochs in all as a training and a retraining.
    """
    own = replace(
        CONTEST[name],
        iterative=True,
        tuning=CONTEST[name].repetitions // 4,
        rows=("abs@lamp", "moment:1@lamp", "platon@lamp", "wanda@lamp"),
    )
    cubic, half = Cubic(0.95, begin=0, end=10, every=1), own.epochs // 2
    steps = tuple(float(cubic(step) or 0) for step in range(1, 11))
    each = (half + own.retrain_epochs) // len(steps)
    return {
        f"{name}-iterative": replace(own, retrain_epochs=epochs, levels=(0.5, 0.8, 0.9, 0.95)),
        f"{name}-gradual": replace(own, gradual=True, epochs=half, retrain_epochs=each, levels=steps),
    }


CONTEST |= _chains("fashion-mnist", 50) | _chains("transformer", 20)
_QUICK_CONTEST: dict[str, Any] = {
    "repetitions": 2,
    "epochs": 2,
    "retrain_epochs": 1,
    "levels": (0.9,),
    "rows": ("abs@lamp", "moment:1@lamp", "abs", "wanda@lamp", "platon@lamp"),
    "tries": 2,
    "watch": 1,
    "images": 400,
    "calibration": 200,
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
# What `prunewald demo` runs. Of 0, 0.001, 0.01, 0.1, 1 for the pseudo bootstrap and 0, 0.1, 1, 10 for the second moment
# these lambda* had the best mean validation accuracy over 80, 90 and 95 % of each layer, on six networks of other seeds
# (docs/reproduction.md, "Choosing lambda*").
_DEMO: dict[str, Any] = {
    "repetitions": 6,
    "epochs": 30,
    "retrain_epochs": 5,
    "levels": (0.5, 0.8, 0.9, 0.95),
    "dropout": 0.1,
    "rows": ("abs", "abs@lamp", "pseudo:0.01@lamp", "moment:1@lamp"),  # per layer, and by LAMP what the criterion adds
}


def _quick(paper: Settings) -> dict[str, Any]:
    """The same code as the paper's experiment in minutes: what is shorter, and no bootstrap."""
    rows = tuple(row for row in paper.rows if not row.startswith("bootstrap"))
    return {"repetitions": 2, "epochs": 2, "retrain_epochs": 1, "rows": rows} | _QUICK[paper.experiment]


# By preset and experiment, what differs from the paper's settings.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {name: {} for name in EXPERIMENTS},
    "quick": {name: _quick(paper) for name, paper in PAPER.items()},
    "demo": {"fashion-mnist": _DEMO},
}


def settings(experiment: str, preset: str = "quick", **given: Any) -> Settings:
    """The settings of a preset, with what is given instead."""
    _check_experiment(experiment)
    known = [name for name, of in PRESETS.items() if experiment in of]
    if preset not in known:
        raise SettingsError(f"unknown preset {preset!r} of {experiment}; known: {', '.join(known)}")
    _check_known(given, "setting")
    return replace(PAPER[experiment], **(PRESETS[preset][experiment] | given))


def contest(network: str, preset: str = "contest", **given: Any) -> Settings:
    """The settings of one network of the contest, or of its "quick" form, with what is given instead."""
    if network not in CONTEST:
        raise SettingsError(f"unknown network {network!r}; known: {', '.join(CONTEST)}")
    if preset not in ("contest", "quick"):
        raise SettingsError(f"unknown preset {preset!r} of the contest; known: contest, quick")
    _check_known(given, "setting")
    return replace(CONTEST[network], **((_QUICK_CONTEST if preset == "quick" else {}) | given))


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
