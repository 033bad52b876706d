"""What the tests of the lab share."""

from collections.abc import Iterator

import pytest

from prunewald.lab.data import Rule
from prunewald.lab.data.splits import RULES


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and networks are thousands of small files, and none has to outlive a power failure."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def rules() -> Iterator[None]:
    """Splits for so few images as `helpers.raw` has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "fashion-mnist", Rule(val=20, per_class=14))
        patch.setitem(RULES, "mnist", Rule(val=20))
        yield
