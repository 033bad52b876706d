"""The methods that are compared: a criterion, and where its sigma comes from, spelled in a few letters.

A spelling names a row of the table, a flag of the command line and a folder of records:

`abs`, `random`, `dense` (nothing pruned, the same extra epochs), or `SIGMA:LAMBDA` with SIGMA one of `pseudo` (the last
B steps), `every` (B steps over the whole training), `moment`, `bootstrap` (independent initialisations),
`bootstrap-same`, `bootstrap-warm`; then, each after a colon, `formula` (the paper's, dead weights by the formula),
`permuted` (sigma shuffled among each layer's surviving weights) or `inverted` (the lowest scores are kept). Last, after
an @, how many each layer keeps, if it is not the same share of each: `moment:1@lamp`, `abs@erk`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.core.allocation import LAMP
from prunewald.core.base import Allocation, Criterion
from prunewald.lab.settings import Settings, SettingsError

REFERENCE, CONTROL = "abs", "dense"
SIGMAS = ("pseudo", "every", "moment", "bootstrap", "bootstrap-same", "bootstrap-warm")
_EACH_ROUND = ("pseudo", "moment")  # what a retraining collects, so that an iterative run can estimate anew
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
}


@dataclass(frozen=True)
class Method:
    """One way to prune: the source of sigma, lambda*, and what else is done differently."""

    sigma: str  # one of SIGMAS; or abs, random, dense, which have none
    lam: float = 0.0
    marks: frozenset[str] = frozenset()  # some of formula, permuted, inverted
    scope: str = EACH_ALIKE  # one of _SCOPES

    @property
    def text(self) -> str:
        """The short spelling, the same for the same method."""
        lam = [_short(self.lam)] if self.sigma in SIGMAS else []
        own = ":".join([self.sigma, *lam, *(mark for mark in _MARKS if mark in self.marks)])
        return own if self.scope == EACH_ALIKE else f"{own}@{self.scope}"

    @property
    def label(self) -> str:
        """The name in a table or a figure."""
        name = _NAMES[self.sigma] + (f" λ*={_short(self.lam)}" if self.sigma in SIGMAS else "")
        own = ", ".join([name, *(mark for mark in _MARKS if mark in self.marks)])
        return own if self.scope == EACH_ALIKE else f"{own} @{self.scope}"

    @property
    def allocation(self) -> Allocation | str:
        """How many weights each layer keeps, as a Pruner takes it."""
        return _SCOPES[self.scope]

    @property
    def reference(self) -> str:
        """The spelling of ABS with the same allocation, which this method is compared with."""
        return Method(REFERENCE, scope=self.scope).text

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
    own, at, scope = text.partition("@")
    scope = _scope(text, scope) if at else EACH_ALIKE
    head, *rest = own.split(":")
    if head == CONTROL and at:
        raise SettingsError(f"row {text!r}: nothing of it is pruned, leave out @{scope}")
    if head in (REFERENCE, CONTROL, "random") and not rest:
        return Method(head, scope=scope)
    if head not in SIGMAS or not rest:
        known = ", ".join((REFERENCE, "random", CONTROL, *(f"{sigma}:LAMBDA" for sigma in SIGMAS)))
        raise SettingsError(
            f"unknown row {text!r}; known: {known}; then :{', :'.join(_MARKS)}; then @{'|'.join(_SCOPES)}"
        )
    try:
        lam = float(rest[0])
    except ValueError:
        raise SettingsError(f"row {text!r}: {rest[0]!r} is no lambda*, give a number as in {head}:0.1") from None
    if not 0 <= lam < float("inf"):
        raise SettingsError(f"row {text!r}: lambda* must be at least 0")
    if unknown := set(rest[1:]) - set(_MARKS):
        raise SettingsError(f"row {text!r}: unknown mark {sorted(unknown)[0]!r}; known: {', '.join(_MARKS)}")
    if head == "moment" and "formula" in rest[1:]:
        raise SettingsError(f"row {text!r}: leave out formula, since this sigma is infinite where no gradient came")
    if scope == "global" and head == "moment":
        raise SettingsError(
            f"row {text!r}: this sigma is scaled layer by layer, so one order over all compares nothing"
        )
    return Method(head, lam, frozenset(rest[1:]), scope)


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
    return [Method(CONTROL), *(method for method in methods if method.sigma != CONTROL)]


def choose(method: Method, model: nn.Module, level: float, seed: int, sigma: Mapping[str, Tensor], alive: Any) -> Any:
    """The masks of one network pruned to a level, and the report. `alive`: the masks of an earlier round, or None."""
    given: dict[str, Any] = {
        "targets": [nn.Linear],
        "criterion": method.criterion(seed),
        "scope": method.allocation,
    }
    if method.sigma in SIGMAS:
        given["uncertainty"] = _permuted(sigma, seed, alive) if "permuted" in method.marks else dict(sigma)
    pruner = pw.Pruner(model, **given)
    if alive is not None:
        pruner.set_masks(alive)
    masks, report = pruner.choose(level)
    pruner.detach()
    return masks, report


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
    mantissa, _, power = f"{number:e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return short if float(short) == number and len(short) < len(plain) else plain
