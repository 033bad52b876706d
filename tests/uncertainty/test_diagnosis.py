import pickle
import re
from dataclasses import replace

import pytest
import torch

from prunewald.uncertainty.diagnosis import BlockDiagnosis, Diagnosis, Sigmas

BLOCK = BlockDiagnosis(("a", "b", "c", "d"), size=1200, rank=1100, condition=1e7, negative=3, score=0.25)


def test_a_diagnosis_reads_as_lines():
    assert str(Diagnosis(60_000, (BLOCK,), {"b": 1000})).splitlines() == [
        "60,000 samples",
        "a, b, c, ... (4 in all): rank 1,100 of 1,200, condition 1.0e+07, 3 negative variances, "
        "mean score 0.25 standard errors from 0",
        "no standard error for 1,000 entries of b",
    ]


def test_sigmas_are_a_dict_that_travels_with_its_diagnosis():
    sigmas = Sigmas(a=torch.ones(2))
    sigmas.diagnosis = Diagnosis(5, (BLOCK,), {})
    assert (sigmas.notes, sigmas.degrees, sigmas.untested) == ((), None, "")
    sigmas.notes, sigmas.degrees, sigmas.untested = ("nominal only",), 3.0, "damped"
    again = pickle.loads(pickle.dumps(sigmas))
    assert isinstance(again, dict)
    assert torch.equal(again["a"], sigmas["a"])
    assert vars(again) == vars(sigmas)


GOOD = BlockDiagnosis(("a",), size=5, rank=5, condition=1e3, negative=0, score=0.1)


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({}, None),
        ({"rank": 4, "condition": torch.inf}, "a is singular, of rank 4 of 5"),
        ({"condition": 2e9}, "condition 2e+09"),
        ({"error": 0.05}, "share of 5e-02"),
        ({"rank": 3, "untold": 2}, "nothing of 2 weights"),
        ({"rank": 0, "untold": 5, "condition": torch.inf, "error": torch.inf}, "nothing of 5 weights"),
        ({"negative": 2}, "2 variances of a are negative"),
        ({"score": 6.5}, "6.5 standard errors from 0.*train on"),
    ],
)
def test_each_reason_for_doubt_has_its_note(changed, note):
    notes = replace(GOOD, **changed).notes()
    assert len(notes) == (note is not None)
    assert all(re.search(note.replace("+", "[+]"), text) for text in notes)
