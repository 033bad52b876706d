"""What a checkpoint of a Pruner takes: the table in the guide, measured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.core.base import Online
from prunewald.util.registry import known, make, name_of

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:sigma is over", "ignore:standard errors from"),
]
WEIGHTS = 64 * 128
# By the words of the guide: the optimizer, the choices of the Pruner, and after how many steps there is most to keep.
ROWS: dict[str, tuple[str, dict[str, Any], int]] = {
    "the default, after Adam or RMSprop": ("Adam", {}, 102),
    '`"magnitude"`, `"random"`, `"snip"`': ("Adam", {"criterion": "magnitude"}, 3),
    '`"wanda"`': ("Adam", {"criterion": "wanda"}, 3),
    '`"taylor"`': ("SGD", {"criterion": "taylor"}, 3),
    '`"obd"`': ("SGD", {"criterion": "obd"}, 3),
    '`"movement"`': ("SGD", {"criterion": "movement"}, 3),
    '`"platon"`': ("SGD", {"criterion": "platon"}, 3),
    "`SecondMoment()` with SGD": ("SGD", {"uncertainty": pw.SecondMoment()}, 102),
    "`PseudoBootstrap(last=200, total_steps=1000)`": (
        "SGD",
        {"uncertainty": pw.PseudoBootstrap(last=200, total_steps=201)},
        202,
    ),
    "`PseudoBootstrap(last=200)`, rolling": ("SGD", {"uncertainty": pw.PseudoBootstrap(last=200)}, 450),
    "`BatchMeans()`": ("SGD", {"uncertainty": pw.BatchMeans(length=3)}, 104),
}


def attached(optimizer: str, choices: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer, pw.Pruner]:
    torch.manual_seed(0)
    model = nn.Linear(128, 64)
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
    return model, made, pw.Pruner(model, made, **choices)


def size(tree: Any) -> int:
    """The bytes of all tensors, each memory once: what torch.save writes for them."""
    found: dict[int, int] = {}

    def look(tree: Any) -> None:
        if isinstance(tree, Tensor):
            found[tree.untyped_storage().data_ptr()] = tree.untyped_storage().nbytes()
        elif isinstance(tree, dict | list | tuple):
            for value in tree.values() if isinstance(tree, dict) else tree:
                look(value)

    look(tree)
    return sum(found.values())


def most(optimizer: str, choices: dict[str, Any], steps: int) -> tuple[float, pw.Pruner]:
    """The most bytes a weight over so many steps, and the Pruner then."""
    model, stepping, pruner = attached(optimizer, choices)
    sizes = []
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, 128)).square().sum().backward()
        stepping.step()
        sizes.append(size(pruner.state_dict()))
    return max(sizes) / WEIGHTS, pruner


def table() -> dict[str, float]:
    """The rows of the guide."""
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    lines = guide.partition("| a checkpoint of a Pruner with |")[2].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {words: float(number) for words, number, *_ in rows}


def test_the_guide_has_every_row():
    assert list(table()) == list(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_checkpoint_takes_what_the_guide_says_and_as_much_after_resuming(row):
    optimizer, choices, steps = ROWS[row]
    bytes_, pruner = most(optimizer, choices, steps)
    assert bytes_ == pytest.approx(table()[row], abs=0.06)
    *_, again = attached(optimizer, choices)
    again.load_state_dict(pruner.state_dict())
    assert size(again.state_dict()) == size(pruner.state_dict())


def test_the_guide_has_every_part_that_gathers_anything():
    watching = {name for name in known("criterion") if make("criterion", name).statistic is not None}
    learning = {name for name, part in known("uncertainty").items() if issubclass(part, Online)}
    parts = [choices for _, choices, _ in ROWS.values()]
    assert watching <= {choice.get("criterion") for choice in parts}
    assert learning <= {name_of("uncertainty", choice["uncertainty"]) for choice in parts if "uncertainty" in choice}
