"""Frameworks of others: missing, too old, too new."""

import pytest

from prunewald.integrations import framework as module
from prunewald.integrations.framework import framework


def test_a_missing_framework_is_an_error_that_says_what_to_install(monkeypatch):
    def missing(name):
        raise module.PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    with pytest.raises(
        ImportError, match=r"torch_pruning needs torch-pruning>=1\.6,<2: pip install 'prunewald\[torch-"
    ):
        framework("torch_pruning")


@pytest.mark.parametrize("found", ["2.5.9", "3.0.0", "1.9.0.post1"])
def test_another_version_is_an_error_with_both_numbers(monkeypatch, found):
    monkeypatch.setattr(module, "version", lambda name: found)
    with pytest.raises(ImportError, match=rf"lightning {found} is installed, .* lightning>=2\.6,<3"):
        framework("lightning")


@pytest.mark.parametrize("found", ["2.6", "2.6.6", "2.10.0rc1"])
def test_a_version_within_the_range_is_imported(monkeypatch, found):
    monkeypatch.setattr(module, "version", lambda name: found)
    monkeypatch.setattr(module, "import_module", lambda name: f"module {name}")
    assert framework("lightning") == "module lightning"
