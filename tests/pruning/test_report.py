"""A report as text, as HTML, as plain data and as a frame."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.pruning.report import Report, TensorReport

ROWS = [
    TensorReport("fc1.weight", (20, 50), 1000, 250, 0.12345678, 0.1, 0.87654, 0.9),
    TensorReport("fc2.weight[0]", (), 1, 1, None, None, float("nan"), 1.0),
]
REPORT = Report(ROWS, "Wald()", "SecondMoment()", "layer", ["a note"])


def test_text():
    note, title, head, rule, *rows, _, total = str(REPORT).splitlines()
    assert note == "a note"
    assert title == "pruned by Wald(), sigma from SecondMoment(), scope layer"
    assert head.split()[:6] == ["layer", "shape", "weights", "kept", "sparsity", "threshold"]
    assert set(rule) == {"-"}
    assert rows[0].split() == ["fc1.weight", "20x50", "1,000", "250", "75.00%", "0.1235", "10.0%", "0.877", "90.0%"]
    assert rows[1].split() == ["fc2.weight[0]", "1", "1", "0.00%", "-", "-", "-", "100.0%"]
    assert total.split() == ["total", "1,001", "251", "74.93%"]


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"dry_run": True}, "would prune by Wald(), sigma from SecondMoment(), scope layer"),
        ({"uncertainty": ""}, "pruned by Wald(), scope layer"),
        ({"pattern": "Filter()"}, "pruned by Wald(), sigma from SecondMoment(), scope layer, pattern Filter()"),
    ],
    ids=str,
)
def test_the_title(change, title):
    assert str(replace(REPORT, **change)).splitlines()[1] == title


def test_html_is_the_same_table():
    page = REPORT._repr_html_()
    for words in ("<p>a note</p>", "<td", "fc1.weight", "0.1235", "<tfoot>", "1,001"):
        assert words in page


def test_names_and_notes_that_contain_markup_are_escaped():
    row = replace(ROWS[0], name="<b>fc</b>")
    report = Report([row], "<script>", "a & b", "layer", ["<img src=x>"])
    page = report._repr_html_()
    for markup in ("<b>", "<script>", "<img", "a & b"):
        assert markup not in page
    for text in ("&lt;b&gt;fc&lt;/b&gt;", "&lt;script&gt;", "a &amp; b", "&lt;img src=x&gt;"):
        assert text in page
    assert "<b>fc</b>" in str(report), "in text they stay as they are"


def test_a_layer_whose_name_is_markup():
    model = nn.ModuleDict({"<i>": nn.Linear(3, 3)})
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    assert "<i>" not in pruner._repr_html_()
    assert "&lt;i&gt;.weight" in pruner._repr_html_()


def test_data():
    data = json.loads(json.dumps(REPORT.to_dict(), allow_nan=False))
    assert [layer["name"] for layer in data["layers"]] == ["fc1.weight", "fc2.weight[0]"]
    assert data["total"] == {"weights": 1001, "kept": 251, "sparsity": 1 - 251 / 1001}
    assert data["layers"][1]["correlation"] is None
    assert (data["notes"], data["dry_run"], data["pattern"]) == (["a note"], False, "Element()")


def test_there_and_back():
    whole = replace(REPORT, rows=ROWS[:1])  # no NaN is equal to itself
    assert Report.from_dict(asdict(whole)) == whole


def test_a_frame():
    frame = REPORT.to_frame()
    assert frame.loc["fc1.weight", "kept"] == 250
    assert list(frame.index) == ["fc1.weight", "fc2.weight[0]"]


def test_totals():
    assert (REPORT.weights, REPORT.kept, REPORT.emptied) == (1001, 251, [])
    assert replace(REPORT, rows=[replace(ROWS[0], kept=0)]).emptied == ["fc1.weight"]


def test_nothing_pruned_of_nothing():
    empty = replace(REPORT, rows=[])
    assert empty.sparsity == 0
    assert str(empty).splitlines()[-1].split() == ["total", "0", "0", "0.00%"]
    assert json.loads(json.dumps(empty.to_dict(), allow_nan=False))["total"]["sparsity"] == 0
    assert replace(ROWS[0], weights=0, kept=0).sparsity == 0


def test_a_report_is_json_whatever_it_says():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.constant_(model[0].weight, 0.5)
    sigma = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    report = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma).prune(0.5)
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.to_dict()["layers"][0]["correlation"] is None
    assert str(report)
