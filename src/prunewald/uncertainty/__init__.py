"""How sure is each weight? One estimator a file."""

from prunewald.core.base import Estimate, Offline, Online
from prunewald.uncertainty.analytic import InverseFisher, Sandwich, SGDAsymptotic
from prunewald.uncertainty.batch_means import BatchMeans
from prunewald.uncertainty.bootstrap import Bootstrap
from prunewald.uncertainty.fisher_diagonal import FisherDiagonal
from prunewald.uncertainty.given import Given
from prunewald.uncertainty.layer_gram import LayerGram
from prunewald.uncertainty.layer_least_squares import LayerLeastSquares
from prunewald.uncertainty.pseudo_bootstrap import PseudoBootstrap
from prunewald.uncertainty.second_moment import SecondMoment

__all__ = [
    "BatchMeans",
    "Bootstrap",
    "Estimate",
    "FisherDiagonal",
    "Given",
    "InverseFisher",
    "LayerGram",
    "LayerLeastSquares",
    "Offline",
    "Online",
    "PseudoBootstrap",
    "SGDAsymptotic",
    "Sandwich",
    "SecondMoment",
]
