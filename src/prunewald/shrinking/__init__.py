"""Real removal: the units that a structured pruning masked go from the model, with all that goes with them."""

from prunewald.shrinking.removing import shrink

__all__ = ["shrink"]
