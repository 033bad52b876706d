import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.util.notices import warn


def line_of(text):
    """The number of the one line of this file that ends in a marker."""
    (number,) = [at for at, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# " + text)]
    return number


def test_a_warning_names_the_line_that_called():
    with pytest.warns(UserWarning, match="look here") as caught:
        warn("look here")  # called directly
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("called directly"))


def test_a_warning_from_deep_inside_names_the_users_line():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=50))
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="last=50") as caught:
        pruner.prune(0.5)  # called through the library
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("called through the library"))


def test_a_warning_from_a_hook_that_torch_calls_names_the_users_line():
    model = nn.Linear(4, 3)
    pw.Pruner(model, criterion="magnitude").prune(0.5)
    model.weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="'weight'") as caught:
        model.eval()(torch.randn(2, 4))  # called through torch
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("called through torch"))


def test_a_warning_is_shown_once_for_each_line_of_the_user():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("again")
        warn("again")
    assert len(caught) == 2
