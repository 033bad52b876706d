"""Reports in a packed file: what comes back, to nine digits."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from prunewald.pruning.report import Report, TensorReport
from prunewald.storage.report_json import from_json, to_json

ROW = TensorReport("fc.weight", (3, 4), 12, 5, 0.25, None, 0.5, 1.0)
REPORT = Report([ROW], "Magnitude()", "", "layer", notes=("mind this",), pattern="Block(2, 2)")


def again(report: Report) -> Report:
    return from_json(json.loads(json.dumps(to_json(report), allow_nan=False)))


def test_what_is_stored_comes_back() -> None:
    assert again(REPORT) == REPORT
    assert str(again(REPORT)) == str(REPORT)


def test_numbers_that_are_none() -> None:
    row = replace(ROW, threshold=None, dead=0.5, correlation=math.nan, overlap=math.nan)
    (found,) = again(replace(REPORT, rows=[row])).rows
    assert (found.threshold, found.dead) == (None, 0.5)
    assert math.isnan(found.correlation)
    assert math.isnan(found.overlap)


def test_numbers_have_nine_digits() -> None:
    (row,) = to_json(replace(REPORT, rows=[replace(ROW, threshold=1 / 3)]))["rows"]
    assert row[4] == 0.333333333


def test_strings_of_a_later_prunewald_are_ignored() -> None:
    assert from_json(to_json(REPORT) | {"weather": "fine"}) == REPORT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scope": 1}, "the report makes no sense"),
        ({"notes": [1]}, "the report makes no sense"),
        ({"rows": [["w", [2], 2, 3, None, None, 1, 1]]}, "row that makes no sense.*'w'"),
        ({"rows": [["w", [2], 0, 0, None, None, 1, 1]]}, "row that makes no sense.*'w'"),
        ({"rows": [["w", [2], 2, 1, True, None, 1, 1]]}, "'True' for a number"),
    ],
)
def test_what_is_no_report(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_json(to_json(REPORT) | change)


def test_where_a_schedule_stood_is_kept_and_nothing_where_it_was_done():
    standing = replace(REPORT, unfinished="the schedule stands at 45.00% of 90.00%, step 300 of 10,000")
    assert again(standing) == standing
    assert "unfinished" not in to_json(REPORT)
