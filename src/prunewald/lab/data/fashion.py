"""Fashion-MNIST in tensors, ready to train on, for examples and benchmarks."""

from pathlib import Path

from prunewald.lab.data.carried import embedded
from prunewald.lab.data.catalogue import load
from prunewald.lab.data.images import Dataset, scaled
from prunewald.lab.data.splits import split


def fashion_mnist(seed: int, folder: str | Path | None = None, *, verify: bool = True) -> Dataset:
    """The data of the paper's first experiment: 5,400 training and 600 validation images, balanced.

    The split is drawn anew for each seed, from the 6,000 embedded images or, with `folder`, from all 60,000;
    the test part is always whole (2,000 embedded images, or 10,000). Pixels lie in [0, 1].
    """
    raw = embedded() if folder is None else load("fashion-mnist", folder, verify=verify)
    rows = split(raw, seed)
    return Dataset(train=scaled(raw.train, rows.train), val=scaled(raw.train, rows.val), test=scaled(raw.test))
