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


def nn_prune(found: Numbers) -> bool:
    """Half of what is left, five times, is 31/32; a Pruner's 98 % is of the total."""
    sparsities = found["sparsity taken over"], found["sparsity"]
    return sparsities == pytest.approx((31 / 32, 0.98), abs=1e-3) and found["tau"] > found["magnitude"] + 0.01


def lightning_training(found: Numbers) -> bool:
    same = found["whole"] == found["resumed"] and found["zeros"] == found["resumed zeros"]
    return same and found["whole"] > 0.75 and found["zeros"] == pytest.approx(0.9, abs=1e-3)


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


def torch_pruning_importance(found: Numbers) -> bool:
    return found["wald, size"] < 0.35 and found["wald"] > found["dense"] - 0.03


def transformers_training(found: Numbers) -> bool:
    return found["dense"] > 0.5 and found["pruned"] > 0.6 and found["zeros"] == pytest.approx(0.8, abs=1e-3)


CHECKS = (
    accelerate_training,
    averaging,
    batchnorm,
    distillation,
    lightning_training,
    nn_prune,
    peft_training,
    quantisation,
    regularisation,
    torch_pruning_importance,
    transformers_training,
)
SHOWS: dict[str, Callable[[Numbers], bool]] = {check.__name__: check for check in CHECKS}
FRAMEWORKS = ("accelerate", "lightning", "peft", "torch_pruning", "transformers")  # which an example is named after


def needed(path: Path) -> str:
    return next((name for name in FRAMEWORKS if path.stem.startswith(name)), "torch")


def test_they_are_there() -> None:
    assert SHOWS.keys() <= {path.stem for path in EXAMPLES}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")  # at 90 % one of ten classes is cut off
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # Lightning's own
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_shows_what_it_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(needed(path), reason=f"pip install 'prunewald[{needed(path).replace('_', '-')}]'")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, "short enough to read from top to bottom"
    found = runpy.run_path(str(path))["main"]()
    assert found
    assert all(math.isfinite(number) for number in found.values())
    assert "%" in capsys.readouterr().out
    assert SHOWS.get(path.stem, bool)(found), found
