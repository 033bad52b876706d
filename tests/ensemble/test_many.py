"""The front door: what can be given, and what is wrong."""

import inspect

import pytest
import torch

from prunewald.ensemble import SGD, Adam, train_many
from prunewald.ensemble import many as front
from prunewald.uncertainty import PseudoBootstrap
from tests.ensemble.helpers import SEEDS, N, close, dropping, many, plain

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_rows_of_each_replica_may_be_given():
    rows = torch.randint(0, N, (3, 40), generator=torch.Generator().manual_seed(2))
    result = many(Adam(), resample=rows)
    for r, seed in enumerate(SEEDS):
        model = plain(seed, Adam(), sample=rows[r])[0]
        close(result.params["fc.weight"][r], model.fc.weight.detach())


def test_the_seeds_of_a_result_are_the_default():
    first = many(SGD(lr=0.1), epochs=1)
    on = many(SGD(lr=0.1), epochs=1, start=first.rows([1, 1, 2]), seeds=None)
    assert on.seeds == (11, 11, 4)
    assert torch.equal(on.params["fc.weight"][0], on.params["fc.weight"][1])


def test_progress_is_shown(capsys):
    dropping(progress=True, epochs=2)
    assert "8/8" in capsys.readouterr().err


def test_progress_may_be_told_to_a_function(capsys):
    told = []
    dropping(progress=told.append, epochs=2, chunk=3)
    assert told == [3, 3, 1, 1]
    assert not capsys.readouterr().err


def test_every_argument_is_documented():
    given = list(inspect.signature(train_many).parameters)[:-1]
    run = list(inspect.signature(front._run).parameters)[1:]
    assert run == list(front.RunOptions.__annotations__)
    for name in (*given, *run):
        assert f"`{name}" in train_many.__doc__, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "seeds is empty.*range"),
        ({"seeds": [-1]}, "seed=-1"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0.5}, "batch_size=0.5"),
        ({"resample": "jackknife"}, "resample='jackknife'.*'bootstrap'"),
        ({"resample": torch.zeros(3, 50, dtype=torch.long)}, r"resample has shape \(3, 50\).*\(4, m\)"),
        ({"collect": PseudoBootstrap(last=10)}, "last=10.*total_steps=9"),
        ({"collect": "jackknife"}, "'jackknife'.*pseudo-bootstrap"),
        ({"executor": "dask"}, "executor='dask'.*'ray'"),
        ({"how": "fast"}, "how='fast'.*'vmap'"),
        ({"chunk": 0}, "chunk=0"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        dropping(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collect": "bootstrap"}, "collect='bootstrap'.*PseudoBootstrap"),
        ({"collect": {"4.weight": torch.ones(6, 12)}}, "(?s)={'4.weight'.*(PseudoBootstrap|SecondMoment)"),
        ({"collect": 3}, "=3.*SecondMoment"),
        ({"hwo": "loop"}, "hwo"),
    ],
)
def test_arguments_of_the_wrong_kind(options, message):
    with pytest.raises(TypeError, match=message):
        dropping(**options)
