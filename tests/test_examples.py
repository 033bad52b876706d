"""Every file in examples/ runs, is short, and shows what it says."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
Numbers = dict[str, float]


def accelerate_training(found: Numbers) -> bool:
    """The second half went on where the first stood."""
    return 0.7 < found["sparsity, half 1"] < found["sparsity, half 2"] == pytest.approx(0.9) and found["accuracy"] > 0.8


def averaging(found: Numbers) -> bool:
    """The copy that was told has the model's zeros, the other none of them."""
    kept = found["averaged zeros"] == found["model zeros"] == pytest.approx(0.9, abs=1e-3)
    return kept and found["untold zeros"] < 0.01 and found["averaged"] > 0.75


def batchnorm(found: Numbers) -> bool:
    return found["dense"] > 0.75 and found["recalibrated"] > found["pruned"] + 0.1


def distillation(found: Numbers) -> bool:
    return found["distilled"] > 0.78 and found["distilled"] > max(found["pruned"] + 0.02, found["alone"])


def peft_training(found: Numbers) -> bool:
    kept = found["masked, merged zeros"] == pytest.approx(0.9) and found["masked, outputs moved by"] < 1e-4
    filled = found["unmasked, merged zeros"] < 0.5
    return kept and filled and found["masked, adapted"] > found["pruned"] + 0.2


def quantisation(found: Numbers) -> bool:
    few = found["32 values, distinct"] <= 32 and found["2 values, distinct"] <= 2 and found["4 bits, distinct"] <= 15
    return few and found["2 values, trained"] > found["2 values"] + 0.03 and found["32 values"] > 0.78


def regularisation(found: Numbers) -> bool:
    weights = found["weights, L1"] > found["weights, no penalty"]
    return weights and found["units, group lasso"] > found["units, no penalty"]


SHOWS: dict[str, Callable[[Numbers], bool]] = {
    check.__name__: check
    for check in (
        accelerate_training,
        averaging,
        batchnorm,
        distillation,
        peft_training,
        quantisation,
        regularisation,
    )
}


def test_they_are_there() -> None:
    assert SHOWS.keys() <= {path.stem for path in EXAMPLES}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")  # at 90 % one of ten classes is cut off
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_shows_what_it_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, "short enough to read from top to bottom"
    if path.stem.endswith("_training"):
        pytest.importorskip(path.stem.removesuffix("_training"), reason="the framework is not installed")
    found = runpy.run_path(str(path))["main"]()
    assert found
    assert all(math.isfinite(number) for number in found.values())
    assert "%" in capsys.readouterr().out
    assert SHOWS.get(path.stem, bool)(found), found
