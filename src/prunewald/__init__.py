"""prunewald: prune neural networks by magnitude and uncertainty."""

from prunewald.allocation import Global, Layer
from prunewald.criteria import Magnitude, MagnitudeUncertainty, Random, Wald, tau
from prunewald.inference import agreement, critical_value, discoveries, p_value, wald_test
from prunewald.patterns import Element
from prunewald.pruner import Pruner
from prunewald.report import Report
from prunewald.storage import PackedFileError, load, save
from prunewald.uncertainty import (
    BatchMeans,
    Bootstrap,
    FisherDiagonal,
    InverseFisher,
    LayerLeastSquares,
    PseudoBootstrap,
    Sandwich,
    SecondMoment,
    SgdAsymptotic,
)
from prunewald.weights import WeightStats

__version__ = "0.1.0"

__all__ = [
    "BatchMeans",
    "Bootstrap",
    "Element",
    "FisherDiagonal",
    "Global",
    "InverseFisher",
    "Layer",
    "LayerLeastSquares",
    "Magnitude",
    "MagnitudeUncertainty",
    "PackedFileError",
    "Pruner",
    "PseudoBootstrap",
    "Random",
    "Report",
    "Sandwich",
    "SecondMoment",
    "SgdAsymptotic",
    "Wald",
    "WeightStats",
    "agreement",
    "critical_value",
    "discoveries",
    "load",
    "p_value",
    "save",
    "tau",
    "wald_test",
]
