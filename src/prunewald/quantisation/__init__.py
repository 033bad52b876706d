"""Trained quantisation: after any pruning, the survivors learn on while they take only a few values."""

from prunewald.quantisation.linear import LinearValues
from prunewald.quantisation.shared import SharedValues

__all__ = ["LinearValues", "SharedValues"]
