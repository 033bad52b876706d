"""Prune, train, and go on: rounds over rising levels, and the search for how far to go.

`iterative` prunes and trains through rising levels. `find_sparsity` looks for the highest sparsity within a budget,
`certify_sparsity` does so with a guarantee, and `sensitivity` tells how much each layer bears on its own. All of them
call functions of the user's to train and to evaluate, and leave the loop to them. `Surgery` prunes and
splices while the user's own loop runs. `optimal_brain_surgeon` is a baseline for small models.
"""

from prunewald.strategies.brain_surgeon import optimal_brain_surgeon
from prunewald.strategies.checkpoint import Checkpoint
from prunewald.strategies.guarantee import Certificate, certify_sparsity
from prunewald.strategies.rounds import Round, iterative
from prunewald.strategies.scan import Sensitivity, sensitivity
from prunewald.strategies.search import BudgetError, Candidate, Search, find_sparsity
from prunewald.strategies.surgery import Surgery

__all__ = [
    "BudgetError",
    "Candidate",
    "Certificate",
    "Checkpoint",
    "Round",
    "Search",
    "Sensitivity",
    "Surgery",
    "certify_sparsity",
    "find_sparsity",
    "iterative",
    "optimal_brain_surgeon",
    "sensitivity",
]
