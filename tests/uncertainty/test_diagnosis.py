import pickle

import torch

from prunewald.uncertainty.diagnosis import BlockDiagnosis, Diagnosis, Sigmas

BLOCK = BlockDiagnosis(("a", "b", "c", "d"), size=1200, rank=1100, condition=1e7, negative=3, score=0.25)


def test_a_diagnosis_reads_as_lines():
    assert str(Diagnosis(60_000, (BLOCK,), {"b": 1000})).splitlines() == [
        "60,000 samples",
        "a, b, c, ...: rank 1,100 of 1,200, condition 1.0e+07, 3 negative variances, "
        "mean score 0.25 standard errors from 0",
        "no standard error for 1,000 entries of b",
    ]


def test_sigmas_are_a_dict_that_travels_with_its_diagnosis():
    sigmas = Sigmas(a=torch.ones(2))
    sigmas.diagnosis = Diagnosis(5, (BLOCK,), {})
    assert sigmas.notes == ()
    sigmas.notes = ("nominal only",)
    again = pickle.loads(pickle.dumps(sigmas))
    assert isinstance(again, dict)
    assert torch.equal(again["a"], sigmas["a"])
    assert (again.diagnosis, again.notes) == (sigmas.diagnosis, sigmas.notes)
