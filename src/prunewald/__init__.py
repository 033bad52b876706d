"""prunewald: prune neural networks by magnitude and uncertainty.

What everybody needs is here. The rest is reached under its module, which is loaded when it is first asked for:
`pw.strategies.iterative(...)`, `pw.uncertainty.FisherDiagonal()`, `pw.statistics.agreement(...)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import prunewald.baselines  # noqa: F401 (enters its criteria under their short names)
from prunewald.core.criteria import Magnitude, MagnitudeUncertainty, Random, Wald, tau
from prunewald.core.patterns import Block, Element, Filter, KeepNOfM
from prunewald.core.schedules import Cubic, Stairs
from prunewald.core.weights import WeightStats
from prunewald.model.layouts import Layout, register_layout
from prunewald.model.recalibrating import recalibrate
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report
from prunewald.statistics import wald_test
from prunewald.uncertainty import BatchMeans, PseudoBootstrap, SecondMoment

if TYPE_CHECKING:
    from prunewald import (
        baselines,
        companions,
        ensemble,
        export,
        figures,
        masks,
        quantisation,
        statistics,
        strategies,
        uncertainty,
        web,
    )
    from prunewald.lab.showing import page
    from prunewald.refitting import refit
    from prunewald.shrinking import shrink
    from prunewald.sparse import run_sparse
    from prunewald.storage import PackedFileError, load, save
    from prunewald.strategies.surgery import Surgery

__version__ = "0.1.0"

__all__ = [
    "BatchMeans",
    "Block",
    "Cubic",
    "Element",
    "Filter",
    "KeepNOfM",
    "Layout",
    "Magnitude",
    "MagnitudeUncertainty",
    "PackedFileError",
    "Pruner",
    "PseudoBootstrap",
    "Random",
    "Report",
    "SecondMoment",
    "Stairs",
    "Surgery",
    "Wald",
    "WeightStats",
    "baselines",
    "companions",
    "ensemble",
    "export",
    "figures",
    "load",
    "masks",
    "page",
    "quantisation",
    "recalibrate",
    "refit",
    "register_layout",
    "run_sparse",
    "save",
    "shrink",
    "statistics",
    "strategies",
    "tau",
    "uncertainty",
    "wald_test",
    "web",
]

# Where the names are that are loaded when asked for; all others of the list above are modules.
_LATE = {"PackedFileError": "storage", "Surgery": "strategies.surgery", "load": "storage", "save": "storage"}
_LATE |= {"page": "lab.showing", "refit": "refitting", "run_sparse": "sparse", "shrink": "shrinking"}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"prunewald.{_LATE[name]}"), name)
    if name in __all__:
        return import_module(f"prunewald.{name}")
    raise AttributeError(f"prunewald has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
