"""One browser for all tests of pages."""

from collections.abc import Iterator

import pytest

from tests.web.browsing import Browser, chromium, missing


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium; without one, tests that need it are skipped with a word."""
    if reason := missing():
        pytest.skip(reason)
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found
