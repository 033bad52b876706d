"""How sure is each weight? One estimator a file."""

from prunewald.uncertainty.base import Estimate, Online
from prunewald.uncertainty.pseudo_bootstrap import PseudoBootstrap
from prunewald.uncertainty.second_moment import SecondMoment

__all__ = ["Estimate", "Online", "PseudoBootstrap", "SecondMoment"]
