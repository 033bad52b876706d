"""The data of the paper's experiments, as tensors of bytes, read from the layouts their publishers use."""

from prunewald.lab.data.carried import EMBEDDED, embedded
from prunewald.lab.data.catalogue import NAMES, VARIABLE, load
from prunewald.lab.data.fashion import fashion_mnist
from prunewald.lab.data.images import DataError, Dataset, Images, Raw, counted, scaled
from prunewald.lab.data.splits import RULES, Rule, Split, split

__all__ = [
    "EMBEDDED",
    "NAMES",
    "RULES",
    "VARIABLE",
    "DataError",
    "Dataset",
    "Images",
    "Raw",
    "Rule",
    "Split",
    "counted",
    "embedded",
    "fashion_mnist",
    "load",
    "scaled",
    "split",
]
