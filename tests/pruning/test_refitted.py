"""The report of a refit: its words, and the way to plain data and back."""

import json
import math
from dataclasses import replace

import pytest

from prunewald.pruning.refitted import LayerRefit, Refit
from prunewald.pruning.report import Report
from prunewald.storage.report_json import from_json, to_json

LAYERS = [
    LayerRefit("a.weight", 800, (0.01,), 0.5, 0.25),
    LayerRefit("b.weight", 800, (0.001, 0.1), 0.5, 0.25),
    LayerRefit("c.weight", 0, (), None, None, "recurrent layers are not refitted"),
]
REFIT = Refit(LAYERS, 800, 200, "loss", 0.5, 0.25, 1.0, 2.5, ("mind this",))


def test_it_says_what_was_done_and_that_the_examples_have_chosen():
    lines = str(REFIT).splitlines()
    assert lines[0] == "mind this"
    assert lines[1] == "refitted 2 of 3 layers on 800 examples, 200 held back; loss on them 0.5 -> 0.25; 2.5 s"
    assert "a certificate needs other ones" in lines[2]
    assert "0.001 to 0.1" in str(REFIT)
    assert "recurrent" in lines[-1]
    assert "half" not in str(REFIT)
    assert "went 0.5 of the way" in str(replace(REFIT, step=0.5))
    assert "all weights are as they were" in str(replace(REFIT, step=0.0))
    assert REFIT._repr_html_().count("<tr>") == 4


def test_only_layers_with_other_values_count_as_changed():
    assert [layer.changed for layer in LAYERS] == [True, True, False]
    assert not LayerRefit("a", 1, (), 0.5, 0.5, "no better").changed


def test_plain_data_and_back():
    assert Refit.from_dict(json.loads(json.dumps(REFIT.to_dict(), allow_nan=False))) == REFIT
    endless = replace(REFIT, before=math.inf)
    assert math.isnan(Refit.from_dict(json.loads(json.dumps(endless.to_dict(), allow_nan=False))).before)
    report = Report([], "Magnitude()", "", "layer", refit=REFIT)
    assert from_json(json.loads(json.dumps(to_json(report)))).refit == REFIT
    assert Report.from_dict({**vars(report), "refit": REFIT.to_dict()}).refit == REFIT
    assert report.to_dict()["refit"] == REFIT.to_dict()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 3}, "makes no sense"),
        ({"layers": [3]}, "a layer that makes no sense"),
        ({"notes": [1]}, "makes no sense"),
        ({"held": "many"}, "'many'"),
        ({"before": "x"}, "'x' for a number"),
        ({"step": True}, "'True' for a number"),
    ],
)
def test_what_is_no_refit(change, said):
    with pytest.raises(ValueError, match=said):
        from_json(to_json(Report([], "Magnitude()", "", "layer")) | {"refit": {**REFIT.to_dict(), **change}})
