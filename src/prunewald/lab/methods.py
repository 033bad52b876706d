"""The methods that are compared: a criterion, and where its sigma comes from, spelled in a few letters.

A spelling names a row of the table, a flag of the command line and a folder of records:

`abs`, `random`, `dense` (nothing pruned, the same extra epochs), or `SIGMA:LAMBDA` with SIGMA one of `pseudo` (the last
B steps), `every` (B steps over the whole training), `moment`, `bootstrap` (independent initialisations),
`bootstrap-same`, `bootstrap-warm`; then, each after a colon, `formula` (the paper's, dead weights by the formula),
`permuted` (sigma shuffled among each layer's surviving weights) or `inverted` (the lowest scores are kept). Last, after
an @, how many each layer keeps, if it is not the same share of each: `moment:1@lamp`, `abs@erk`; and after a comma the
factor of the learning rate of retraining: `abs@lamp,lr=3`. The library's other names for the same parts are read too:
`magnitude` is `abs`, `second-moment:1` is `moment:1`; `moment:inf` is ABS.

Others' criteria are rows too: `taylor`, `obd`, `snip` and `wanda`, measured by a pass over training images at the
trained network; `movement` and `platon`, gathered over the last epochs of its training; `fisher:LAMBDA`, which is M&U
with the Fisher information's diagonal at labels of the network's own.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.core.allocation import LAMP
from prunewald.core.base import Allocation, Criterion
from prunewald.lab.settings import Settings, SettingsError
from prunewald.util.registry import names

REFERENCE, CONTROL = "abs", "dense"
SIGMAS = ("pseudo", "every", "moment", "bootstrap", "bootstrap-same", "bootstrap-warm", "fisher")
_EACH_ROUND = ("pseudo", "moment", "fisher")  # what is there after a retraining too, so that each round estimates anew
WATCHED = ("movement", "platon")  # scores that are gathered while a network trains
PASSED = ("taylor", "obd", "snip", "wanda")  # scores that a pass over training images gives
MEASURED = (*WATCHED, *PASSED)
_PLAIN = ("abs", "random", *MEASURED)  # with no number of their own
FACTORS = (1.0, 0.3, 3.0)  # of the tries of a row, in order: of its lambda*, else of the learning rate of retraining
_SCALED = ("moment", "fisher")  # sigmas that each layer scales for itself, infinite where no gradient came
_MARKS = ("formula", "permuted", "inverted")
EACH_ALIKE = "layer"  # the scope of the paper, which a spelling leaves out
_SCOPES: dict[str, Allocation | str] = {"layer": "layer", "lamp": "lamp", "erk": "erk", "global": "global"}
_SCOPES |= {"lamp-score": LAMP(of="score")}
_NAMES = {
    "abs": "ABS",
    "random": "random",
    "dense": "dense, extra epochs",
    "pseudo": "M&U pseudo bootstrap",
    "every": "M&U every k-th step",
    "moment": "M&U second moment",
    "bootstrap": "M&U bootstrap",
    "bootstrap-same": "M&U bootstrap, same start",
    "bootstrap-warm": "M&U bootstrap, warm start",
    "fisher": "M&U diagonal Fisher",
    "taylor": "Taylor |w g|",
    "obd": "OBD w² g²",
    "snip": "SNIP",
    "wanda": "Wanda",
    "movement": "movement",
    "platon": "PLATON",
}


@dataclass(frozen=True)
class Method:
    """One way to prune: the source of sigma, lambda*, and what else is done differently."""

    sigma: str  # one of SIGMAS; or abs, random, dense or one of MEASURED, which have none
    lam: float = 0.0
    marks: frozenset[str] = frozenset()  # some of formula, permuted, inverted
    scope: str = EACH_ALIKE  # one of _SCOPES
    rate: float = 1.0  # the learning rate of retraining over that of training

    @property
    def text(self) -> str:
        """The short spelling, the same for the same method."""
        lam = [_short(self.lam)] if self.sigma in SIGMAS else []
        own = ":".join([self.sigma, *lam, *(mark for mark in _MARKS if mark in self.marks)])
        return f"{own}{'' if self.scope == EACH_ALIKE else f'@{self.scope}'}{_rate(self.rate)}"

    @property
    def label(self) -> str:
        """The name in a table or a figure."""
        name = _NAMES[self.sigma] + (f" λ*={_short(self.lam)}" if self.sigma in SIGMAS else "")
        own = ", ".join([name, *(mark for mark in _MARKS if mark in self.marks)])
        return f"{own}{'' if self.scope == EACH_ALIKE else f' @{self.scope}'}{_rate(self.rate)}"

    @property
    def allocation(self) -> Allocation | str:
        """How many weights each layer keeps, as a Pruner takes it."""
        return _SCOPES[self.scope]

    @property
    def reference(self) -> str:
        """The spelling of ABS with the same allocation, which this method is compared with."""
        return Method(REFERENCE, scope="lamp" if self.scope == "lamp-score" else self.scope).text

    def tries(self, count: int) -> list["Method"]:
        """The first `count` variants that validation images choose from: by its lambda*, else by the learning rate."""
        if self.sigma == CONTROL:
            return [self]
        if self.lam:
            return [replace(self, lam=float(f"{factor * self.lam:.6g}")) for factor in FACTORS[:count]]
        return [replace(self, rate=float(f"{factor * self.rate:.6g}")) for factor in FACTORS[:count]]

    @property
    def bootstraps(self) -> bool:
        """Whether sigma is measured on bootstrap replicas, which have to be trained first."""
        return self.sigma.startswith("bootstrap")

    @property
    def start(self) -> str:
        """Where the replicas of a bootstrap start: "independent", "same" or "warm"."""
        return self.sigma.removeprefix("bootstrap").removeprefix("-") or "independent"

    def criterion(self, seed: int) -> Any:
        """The criterion that scores the weights of the network with this seed."""
        if self.sigma == "abs":
            return pw.Magnitude()
        if self.sigma == "random":
            return pw.Random(seed)
        if self.sigma in MEASURED:
            return self.sigma
        plain = pw.MagnitudeUncertainty(lam=self.lam, dead="formula" if "formula" in self.marks else "first")
        return Inverted(plain) if "inverted" in self.marks else plain


@dataclass(frozen=True)
class Inverted(Criterion):
    """Another criterion upside down, as a sanity check: what it would keep is pruned first."""

    of: Criterion
    uses_sigma: ClassVar[bool | None] = True

    def __call__(self, stats: pw.WeightStats) -> Tensor:
        """The negative of the other criterion's scores."""
        return self.of(stats).neg()


def parse(text: str) -> Method:
    """The method that a spelling means; an unknown one is a SettingsError."""
    body, comma, rate = text.partition(",")
    own, at, scope = body.partition("@")
    scope = _scope(text, scope) if at else EACH_ALIKE
    factor = _factor(text, rate) if comma else 1.0
    head, *rest = own.split(":")
    head = next((name for name in _also(head) if name in _NAMES), head)
    if head == CONTROL and (at or comma):
        raise SettingsError(f"row {text!r}: nothing of it is pruned, leave out {text.removeprefix(own)}")
    if head in (*_PLAIN, CONTROL) and not rest:
        return Method(head, scope=scope, rate=factor)
    if head not in SIGMAS or not rest:
        known = ", ".join((*_PLAIN, CONTROL, *(f"{sigma}:LAMBDA" for sigma in SIGMAS)))
        raise SettingsError(
            f"unknown row {text!r}; known: {known}; then :{', :'.join(_MARKS)}; then @{'|'.join(_SCOPES)}; then "
            ",lr=FACTOR"
        )
    return Method(head, *_lambda_and_marks(text, head, rest, scope), scope, factor)


def _lambda_and_marks(text: str, head: str, rest: Sequence[str], scope: str) -> tuple[float, frozenset[str]]:
    """What stands behind the source of a sigma."""
    try:
        lam = float(rest[0])
    except ValueError:
        raise SettingsError(f"row {text!r}: {rest[0]!r} is no lambda*, give a number as in {head}:0.1") from None
    if not lam >= 0:
        raise SettingsError(f"row {text!r}: lambda* must be at least 0")
    if unknown := set(rest[1:]) - set(_MARKS):
        raise SettingsError(f"row {text!r}: unknown mark {sorted(unknown)[0]!r}; known: {', '.join(_MARKS)}")
    if head in _SCALED and "formula" in rest[1:]:
        raise SettingsError(f"row {text!r}: leave out formula, since this sigma is infinite where no gradient came")
    if scope == "global" and head in _SCALED:
        raise SettingsError(
            f"row {text!r}: this sigma is scaled layer by layer, so one order over all compares nothing"
        )
    return lam, frozenset(rest[1:])


def _factor(text: str, rate: str) -> float:
    """The factor of the learning rate, as in lr=3."""
    name, _, value = rate.partition("=")
    with suppress(ValueError):
        if name == "lr" and 0 < float(value) < float("inf"):
            return float(value)
    raise SettingsError(f"row {text!r}: {rate!r} after the comma, give a factor of the learning rate as in lr=3")


def _rate(rate: float) -> str:
    return "" if rate == 1 else f",lr={_short(rate)}"


def _also(head: str) -> list[str]:
    """All names of what a row begins with, as the library knows it."""
    return [*names("criterion", head), *names("uncertainty", head)]


def _scope(text: str, scope: str) -> str:
    if scope not in _SCOPES:
        raise SettingsError(f"row {text!r}: unknown allocation {scope!r}; known: {', '.join(_SCOPES)}")
    return scope


def methods_of(settings: Settings) -> list[Method]:
    """The methods of an experiment, after the dense control, which is always there."""
    methods = [parse(text) for text in settings.rows]
    if twice := [method for place, method in enumerate(methods) if method in methods[:place]]:
        raise SettingsError(f"--rows {' '.join(settings.rows)}: {twice[0].text} is there twice")
    for method in methods:
        if settings.iterative and method.sigma in SIGMAS and method.sigma not in _EACH_ROUND:
            raise SettingsError(
                f"row {method.text!r} in an iterative run, which estimates sigma anew in each round: give "
                f"{' or '.join(_EACH_ROUND)}"
            )
        if method.sigma in WATCHED and not settings.watch:
            raise SettingsError(f"row {method.text!r} is gathered over the last epochs: say of how many, --watch 5")
    return [Method(CONTROL), *(method for method in methods if method.sigma != CONTROL)]


def tried(settings: Settings) -> list[Method]:
    """All tries of all methods, each once: first those without which a row has nothing, then the others."""
    each = [method.tries(settings.tries) for method in methods_of(settings)]
    more = sorted(
        (method for tries in each for method in tries[1:]), key=lambda method: (method.rate != 1, method.rate)
    )
    return list(dict.fromkeys([*(tries[0] for tries in each), *more]))


def choose(
    method: Method,
    model: nn.Module,
    level: float,
    seed: int,
    table: Mapping[str, Tensor],
    alive: Any,
    prune: str = "dense",
) -> Any:
    """The masks of one network pruned to a level, and the report.

    `table` are the sigmas, or the scores where the method measures these; `alive` the masks of an earlier round, or
    None.
    """
    given: dict[str, Any] = {"criterion": method.criterion(seed), "scope": method.allocation} | targets_of(prune)
    if method.sigma in MEASURED:
        given["criterion"] = lambda stats: table[stats.name]
    if method.sigma in SIGMAS:
        given["uncertainty"] = _permuted(table, seed, alive) if "permuted" in method.marks else dict(table)
    pruner = pw.Pruner(model, **given)
    if alive is not None:
        pruner.set_masks(alive)
    masks, report = pruner.choose(level)
    pruner.detach()
    return masks, report


def targets_of(prune: str) -> dict[str, Any]:
    """What a Pruner is told of its targets: the dense layers, or nothing, so that it takes all weights."""
    return {"targets": [nn.Linear]} if prune == "dense" else {}


def prepared(method: Method, sigma: Tensor, dead: Tensor | None) -> Tensor:
    """Sigma as the method takes it: unless the formula decides, what no gradient reached is wholly uncertain."""
    if dead is None or "formula" in method.marks:
        return sigma
    # An infinite sigma gives tau = 0, and ties are broken by |w|: dead first, as the Pruner's own estimators do.
    return sigma.masked_fill(dead, torch.inf)


def _permuted(sigma: Mapping[str, Tensor], seed: int, alive: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shuffled = {}
    for name, own in sigma.items():
        flat = own.flatten().clone()
        living = torch.arange(flat.numel()) if alive is None else alive[name].flatten().nonzero().flatten()
        flat[living] = flat[living[torch.randperm(len(living), generator=generator)]]
        shuffled[name] = flat.view_as(own)
    return shuffled


def _short(number: float) -> str:
    """0.01, 1e-4: the shortest spelling."""
    plain = repr(number).removesuffix(".0")
    if number == float("inf"):
        return plain
    mantissa, _, power = f"{number:e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return short if float(short) == number and len(short) < len(plain) else plain
