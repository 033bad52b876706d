"""Killed in the middle of a round or of a file, and taken up by a new process: bit for bit the uninterrupted run."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from prunewald.pruning.resuming import unpacked
from tests.resuming import same
from tests.strategies.runs import CASES, KINDS, LEVELS, go

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.strategies.runs", str(folder)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    return folder


@cache
def uninterrupted(kind: str) -> dict[str, Any]:
    return go(kind, None)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_killed_run_goes_on_exactly(kind, point, outcomes):
    at = CASES.index((kind, point))
    found = torch.load(outcomes / f"outcome-{at}", weights_only=True)
    for part, expected in uninterrupted(kind).items():
        assert same(found[part], expected), part


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_that_are_killed_do_what_they_should(kind):
    """Guards the test above: rounds were trained, and two runs from other starts differ."""
    state, other = uninterrupted(kind), go(kind, None, seed=1)
    assert not same(state["model"], other["model"])
    sparsity = 1 - float(torch.cat([m.flatten() for m in unpacked(state["pruner"]["masks"]).values()]).float().mean())
    assert LEVELS[0] < sparsity + 0.05
    assert len(state["trained"]) >= 3
    assert state["dropout"] == pytest.approx(0.2 * 0.2**0.5 if kind == "tuned" else 0.2, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_changes_nothing(kind, tmp_path):
    assert same(go(kind, tmp_path), uninterrupted(kind))
