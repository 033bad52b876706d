"""Output rows that lose their last weight are noted, and are a warning where that is not to be expected."""

import logging
import warnings
from dataclasses import asdict

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.pruning.report import Report

pytestmark = pytest.mark.usefixtures("one_thread")


class Conv1D(nn.Module):
    """GPT-2's: its weight is (in, out)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def weak(model: nn.Module, rows: dict[str, list[int]], *, dim: int = 0) -> nn.Module:
    """Make some output rows so weak that they are the first to go."""
    with torch.no_grad():
        for name, which in rows.items():
            model.get_parameter(name).index_fill_(dim, torch.tensor(which), 1e-6)
    return model


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def row_notes(report: Report) -> list[str]:
    return [note for note in report.notes if "output rows" in note]


def test_lost_rows_of_a_hidden_layer_are_one_note():
    model = weak(net(), {"0.weight": [3, 5, 7], "2.weight": [1]})
    report = pw.Pruner(model, criterion="magnitude").prune(0.5)
    (note,) = row_notes(report)
    assert "0.weight 3 of 32, 2.weight 1 of 32" in note
    assert "scope='row'" in note
    assert [(loss.name, loss.lost, loss.grave) for loss in report.lost_rows] == [
        ("0.weight", 3, False),
        ("2.weight", 1, False),
    ]


def test_the_note_names_only_some_of_many_layers():
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(12)])
    weak(model, {f"{at}.weight": [0] for at in range(11)})
    (note,) = row_notes(pw.Pruner(model, criterion="magnitude").prune(0.5))
    assert "(11 in all)" in note
    assert "10.weight" not in note


def test_a_lost_output_of_the_model_is_a_warning_and_the_remedy_works():
    model = weak(net(), {"4.weight": [2, 4]})
    pruner = pw.Pruner(model, criterion="magnitude")
    with pytest.warns(UserWarning, match=r"4.weight 2 of 10.*scope='row'"):
        pruner.prune(0.5)
    model = weak(net(), {"4.weight": [2, 4]})
    report = pw.Pruner(model, criterion="magnitude", scope="row").prune(0.5)
    assert not row_notes(report)


def test_a_dry_run_notes_and_does_not_warn():
    pruner = pw.Pruner(weak(net(), {"4.weight": [2]}), criterion="magnitude")
    assert row_notes(pruner.prune(0.5, dry_run=True))


def test_a_layer_that_is_nearly_closed_is_a_warning():
    model = weak(net(), {"0.weight": list(range(30))})
    with pytest.warns(UserWarning, match="0.weight 30 of 32"):
        pw.Pruner(model, criterion="magnitude", targets="0").prune(0.94)


def test_short_rows_at_a_high_sparsity_are_no_alarm():
    torch.manual_seed(0)
    report = pw.Pruner(nn.Linear(8, 4), criterion="magnitude").prune(0.9)
    assert row_notes(report)
    assert not any(loss.grave for loss in report.lost_rows)


@pytest.mark.parametrize("pattern", [pw.Filter(), pw.Block(rows=2, cols=8)], ids=repr)
def test_patterns_that_take_rows_on_purpose_say_nothing(pattern):
    report = pw.Pruner(weak(net(), {"4.weight": [2, 3]}), criterion="magnitude", pattern=pattern).prune(0.5)
    assert not row_notes(report)
    assert not report.lost_rows


def test_rows_that_were_empty_before_are_nothing_new():
    model = net()
    with torch.no_grad():
        model[4].weight[2] = 0
    pruner = pw.Pruner(model, criterion="magnitude")
    assert not row_notes(pruner.prune(0.5))
    assert not row_notes(pruner.prune(0.6))


def test_a_loss_is_told_once():
    pruner = pw.Pruner(weak(net(), {"0.weight": [3]}), criterion="magnitude")
    assert row_notes(pruner.prune(0.5))
    assert not row_notes(pruner.prune(0.55))


def test_an_emptied_layer_is_not_told_by_rows_too():
    model = weak(net(), {"0.weight": list(range(32))})
    pruner = pw.Pruner(model, criterion="magnitude", scope="global")
    with pytest.warns(UserWarning, match="0.weight lost all"):
        report = pruner.prune(0.7)
    assert not any(loss.name == "0.weight" for loss in report.lost_rows)


def test_rows_go_by_the_layout():
    torch.manual_seed(0)
    for model, dim in ((Conv1D(12, 64), 1), (nn.ConvTranspose2d(16, 12, 3), 1), (nn.Conv2d(16, 12, 3), 0)):
        weak(model, {"weight": [0, 5, 6]}, dim=dim)
        with pytest.warns(UserWarning, match="weight 3 of 12"):
            pw.Pruner(model, criterion="magnitude").prune(0.5)


def test_vectors_and_parts_of_a_parameter_have_no_rows():
    model = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 10))
    pw.Pruner(model, criterion="magnitude", targets=["0.weight", "1.weight[:5]"]).prune(0.9)
    pw.Pruner(nn.LayerNorm(20), criterion="magnitude", targets="weight").prune(0.9)


def test_by_a_schedule_it_is_logged_each_time_and_a_warning_once(caplog):
    model = weak(net(), {"4.weight": [2]})
    with torch.no_grad():
        model[4].weight[3] *= 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", scope="layer", schedule={1: 0.1, 2: 0.2, 3: 0.5}.get)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()

    with caplog.at_level(logging.INFO, logger="prunewald"):
        with pytest.warns(UserWarning, match="4.weight 1 of 10"):
            step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step()
            step()
    assert pruner.report is not None
    assert row_notes(pruner.report)
    said = [record.message for record in caplog.records if "output rows" in record.message]
    assert len(said) == 2
    assert "step 1: " in said[0]
    assert "4.weight 2 of 10" in said[1]


def test_a_report_as_plain_data_keeps_them():

    report = pw.Pruner(weak(net(), {"0.weight": [3]}), criterion="magnitude").prune(0.5)
    again = Report.from_dict(asdict(report))
    assert again.lost_rows == report.lost_rows
    assert again == report
