"""prunewald: prune neural networks by magnitude and uncertainty."""

from prunewald import baselines, companions, masks
from prunewald.core.criteria import Magnitude, MagnitudeUncertainty, Random, Wald, tau
from prunewald.core.patterns import Block, Element, Filter, KeepNOfM
from prunewald.core.schedules import Cubic, Stairs
from prunewald.core.weights import WeightStats
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report
from prunewald.statistics import wald as inference
from prunewald.statistics.concordance import agreement
from prunewald.statistics.wald import wald_test
from prunewald.storage import PackedFileError, load, save
from prunewald.strategies import (
    BudgetError,
    Checkpoint,
    certify_sparsity,
    find_sparsity,
    iterative,
    sensitivity,
)
from prunewald.strategies.surgery import Surgery
from prunewald.uncertainty import (
    BatchMeans,
    Bootstrap,
    FisherDiagonal,
    InverseFisher,
    LayerLeastSquares,
    PseudoBootstrap,
    Sandwich,
    SecondMoment,
    SGDAsymptotic,
)

__version__ = "0.1.0"

__all__ = [
    "BatchMeans",
    "Block",
    "Bootstrap",
    "BudgetError",
    "Checkpoint",
    "Cubic",
    "Element",
    "Filter",
    "FisherDiagonal",
    "InverseFisher",
    "KeepNOfM",
    "LayerLeastSquares",
    "Magnitude",
    "MagnitudeUncertainty",
    "PackedFileError",
    "Pruner",
    "PseudoBootstrap",
    "Random",
    "Report",
    "SGDAsymptotic",
    "Sandwich",
    "SecondMoment",
    "Stairs",
    "Surgery",
    "Wald",
    "WeightStats",
    "agreement",
    "baselines",
    "certify_sparsity",
    "companions",
    "find_sparsity",
    "inference",
    "iterative",
    "load",
    "masks",
    "save",
    "sensitivity",
    "tau",
    "wald_test",
]
