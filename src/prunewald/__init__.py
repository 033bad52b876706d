"""prunewald: prune neural networks by magnitude and uncertainty."""

from prunewald.allocation import Global, Layer
from prunewald.criteria import Magnitude, MagnitudeUncertainty, Random, Wald, tau
from prunewald.inference import wald_test
from prunewald.patterns import Element
from prunewald.pruner import Pruner
from prunewald.report import Report
from prunewald.storage import PackedFileError, load, save
from prunewald.uncertainty import PseudoBootstrap, SecondMoment
from prunewald.weights import WeightStats

__version__ = "0.1.0"

__all__ = [
    "Element",
    "Global",
    "Layer",
    "Magnitude",
    "MagnitudeUncertainty",
    "PackedFileError",
    "Pruner",
    "PseudoBootstrap",
    "Random",
    "Report",
    "SecondMoment",
    "Wald",
    "WeightStats",
    "load",
    "save",
    "tau",
    "wald_test",
]
