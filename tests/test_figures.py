from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from prunewald.figures import Marks, accuracy_drop, effects, sensitivity, sigma_agreement, sigma_correlations, write
from prunewald.strategies import Sensitivity

METHODS = [
    Marks("one", [0.5, 0.9], [-0.1, -3.0], [-0.2, -4.0], [0.0, -2.0], "black", "x"),
    Marks("two", [0.5, 0.9], [0.1, -1.0], [-0.2, -2.0], [0.4, 0.0], "darkorange", "^"),
]


def test_figure_shows_every_method_level_and_interval() -> None:
    axes = accuracy_drop(METHODS, control=0.3, title="a title").axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["not pruned, trained on", "one", "two"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["50 %", "90 %"]
    for container, method in zip(axes.containers, METHODS, strict=True):
        marks, _, (bars,) = container
        assert list(marks.get_ydata()) == method.mean
        ends = [(low, high) for (_, low), (_, high) in bars.get_segments()]
        assert ends == [pytest.approx(pair) for pair in zip(method.low, method.high, strict=True)]
        assert (marks.get_color(), marks.get_marker()) == (method.color, method.marker)


def test_gains_have_a_panel_of_their_own_and_the_note_stands_below() -> None:
    figure = accuracy_drop(METHODS, gains=METHODS[1:], note="of what " * 40 + "\nand how", title="a title")
    drops, gains = figure.axes
    assert (len(drops.containers), len(gains.containers)) == (2, 1)
    assert list(gains.containers[0][0].get_ydata()) == METHODS[1].mean
    note = figure.get_supxlabel()
    assert note.split("\n")[-1] == "and how"
    assert len(note.split("\n")) > 2
    figure.draw_without_rendering()
    inside = figure.bbox.get_points()
    below: Any = figure._supxlabel  # type: ignore[attr-defined]
    for text in (below, drops.title, gains.xaxis.label):
        (left, low), (right, high) = text.get_window_extent().get_points()
        assert 0 <= left < right <= inside[1][0]
        assert 0 <= low < high <= inside[1][1]


def test_effects_are_side_by_side_at_one_scale() -> None:
    figure = effects({"first": METHODS, "second": METHODS[1:]}, title="a title", note="of what")
    first, second = figure.axes
    assert (first.get_title(), second.get_title(), figure.get_suptitle()) == ("first", "second", "a title")
    assert (len(first.containers), len(second.containers)) == (2, 1)
    assert first.get_ylim() == second.get_ylim()
    assert [label.get_text() for label in second.get_xticklabels()] == ["50 %", "90 %"]


def test_write_is_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(accuracy_drop(METHODS), tmp_path / "figure.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")
    figure = accuracy_drop(METHODS)

    def fail(file: BinaryIO, **_: object) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        write(figure, path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("figure.png", "old")]


def test_two_sigmas_that_agree_lie_on_the_diagonal():
    a = torch.rand(500, generator=torch.Generator().manual_seed(0)) + 0.01
    a[0] = torch.inf
    axes = sigma_agreement(a, a, ("one", "other")).axes[0]
    cloud, _, medians = axes.get_lines()
    assert len(cloud.get_xdata()) == 499
    assert list(medians.get_xdata()) == list(medians.get_ydata())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("other", "one")


def test_correlations_have_a_mark_for_every_layer_and_uncertainty():
    axes = sigma_correlations({"x": {"a": 0.5, "b": -0.1}, "y": {"a": 0.9, "b": 0.2}}, "z").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    assert [list(line.get_xdata()) for line in axes.get_lines()[:2]] == [[0.5, 0.9], [-0.1, 0.2]]


@pytest.mark.parametrize("count", [1, 2, 45])
def test_sensitivity_has_a_line_for_every_layer_and_one_for_the_dense_model(count):
    layers = {f"layer{at}.weight": (0.9, 0.8 - at / 100) for at in range(count)}
    figure = sensitivity(Sensitivity((0.5, 0.975), 0.95, layers), label="F1")
    axes = figure.axes[0]
    dense, *lines = axes.get_lines()
    assert list(dense.get_ydata()) == [0.95, 0.95]
    assert dense.get_linestyle() == "--"
    assert {line.get_label(): tuple(line.get_ydata()) for line in lines} == layers
    assert len({(line.get_marker(), tuple(line.get_color())) for line in lines}) == count
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["no layer pruned", *layers]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["50 %", "97.5 %"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("pruned weights of the layer", "F1")
