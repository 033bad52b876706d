"""The examples in the docstrings of the statistics run, and every function has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

from prunewald import statistics

MODULES = [
    statistics.__name__,
    *(f"{statistics.__name__}.{one.name}" for one in pkgutil.iter_modules(statistics.__path__)),
]
FUNCTIONS = [name for name in statistics.__all__ if inspect.isfunction(getattr(statistics, name))]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_an_example(name):
    assert ">>>" in (getattr(statistics, name).__doc__ or "")
