"""What the tests of the data share."""

import shutil
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import embedded
from tests.lab.data.helpers import write_idx


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no folder."""
    monkeypatch.delenv("PRUNEWALD_DATA", raising=False)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `folder` copies."""
    root, raw = tmp_path_factory.mktemp("idx"), embedded()
    for prefix, part in (("train", raw.train), ("t10k", raw.test)):
        x, y = torch.cat([part.x, part.x[::30]]), torch.cat([part.y, part.y[::30]])
        write_idx(root / f"{prefix}-images-idx3-ubyte.gz", x.squeeze(1))
        write_idx(root / f"{prefix}-labels-idx1-ubyte.gz", y.byte())
    return root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A folder in the idx form, with 620 training and 207 test images a class made of the embedded ones."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path
