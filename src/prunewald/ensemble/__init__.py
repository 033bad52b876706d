"""Many models trained and evaluated at once."""

from prunewald.ensemble.evaluation import accuracies, correct, evaluate
from prunewald.ensemble.many import train_many
from prunewald.ensemble.recipes import SGD, Adam, AdamW, Recipe, RMSprop
from prunewald.ensemble.result import Result

__all__ = ["SGD", "Adam", "AdamW", "RMSprop", "Recipe", "Result", "accuracies", "correct", "evaluate", "train_many"]
