"""Pictures of a report and of a Pruner, for a notebook."""

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.colors import to_hex
from torch import nn

import prunewald as pw
from prunewald.util import colours
from tests.web.helpers import trained

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    matplotlib.use("agg")
    yield
    pyplot.close("all")


def test_a_report_draws_what_each_layer_keeps() -> None:
    report = trained().prune(0.9)
    axes = report.plot()
    assert [bar.get_width() for bar in axes.containers[0]] == [row.kept / row.weights for row in report.rows]
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.name for row in report.rows]
    assert {to_hex(bar.get_facecolor()) for bar in axes.patches} == {colours.BAR}
    assert report.plot(axes) is axes


def test_a_pruner_draws_a_plane_with_what_changes_sides() -> None:
    pruner = trained()
    report = pruner.choose(0.9)[1]
    row = max(report.rows, key=lambda row: row.weights)
    axes = pruner.plot()
    assert axes.get_title(loc="left").startswith(f"{row.name}: {row.kept:,} of {row.weights:,} stay")
    drawn = {line.get_label(): line for line in axes.lines}
    changed = row.kept - round(row.overlap * row.kept)
    alone = [np.size(drawn[f"kept by {what} alone"].get_xdata()) for what in ("tau", "|w|")]
    assert alone == [changed, changed]
    assert changed
    assert drawn["kept by tau alone"].get_color() == colours.METHODS["moment"]
    assert drawn["kept by |w| alone"].get_color() == colours.METHODS["abs"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "95.0%" in pruner.plot("0.weight", sparsity=0.95).get_title(loc="left")


def test_after_a_pruning_it_draws_what_is_left() -> None:
    pruner = trained()
    report = pruner.prune(0.9)
    axes = pruner.plot("6.weight")
    assert f"{report.rows[2].kept} of {report.rows[2].weights} stay" in axes.get_title(loc="left")
    assert [line.get_label() for line in axes.lines] == ["kept by both"]


def test_what_cannot_be_drawn_says_why() -> None:
    pruner = trained()
    with pytest.raises(ValueError, match=r"'head' is no target.*0\.weight"):
        pruner.plot("head")
    pruner.prune(0.9)
    with pytest.raises(ValueError, match=r"0\.5.*higher"):
        pruner.plot(sparsity=0.5)
    with pytest.raises(ValueError, match=r"'weight' has no sigma.*SecondMoment"):
        pw.Pruner(nn.Linear(4, 4), criterion="magnitude").plot()


def test_the_page_has_the_same_colours() -> None:
    style = (Path(pw.__file__).parent / "web/static/page.css").read_text()
    light = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", style.partition("@media")[0]))
    own = {"bar": colours.BAR, "both": colours.BOTH, "faint": colours.FAINT, "muted": colours.MUTED}
    assert {name: light[name] for name in own} == own
    assert (light["grid"], light["ground"]) == (colours.GRID, colours.LIGHT)
    assert f"--ground: {colours.DARK};" in style
    assert f"--ink: {colours.PALE_INK};" in style


def test_drawing_changes_nothing() -> None:
    pruner = trained()
    before = {name: param.clone() for name, param in pruner.model.named_parameters()}
    pruner.plot()
    assert all(torch.equal(before[name], param) for name, param in pruner.model.named_parameters())
    assert pruner.sparsity == 0
