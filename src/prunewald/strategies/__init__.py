"""Prune, train, and go on: rounds over rising levels, and the search for how far to go."""

from prunewald.strategies.checkpoint import Checkpoint
from prunewald.strategies.guarantee import certify_sparsity
from prunewald.strategies.rounds import Round, iterative, rounds
from prunewald.strategies.scan import Sensitivity, sensitivity
from prunewald.strategies.search import BudgetError, Candidate, Search, find_sparsity

__all__ = [
    "BudgetError",
    "Candidate",
    "Checkpoint",
    "Round",
    "Search",
    "Sensitivity",
    "certify_sparsity",
    "find_sparsity",
    "iterative",
    "rounds",
    "sensitivity",
]
