"""What several tests of the core share."""

from typing import NoReturn

import pytest

from prunewald.core.ranking import Scores


class Unscored(Scores):
    """Shapes alone: who asks for a score or a weight fails."""

    def __getitem__(self, name: str) -> NoReturn:
        pytest.fail(f"asked for the scores of {name}")

    def weight(self, name: str) -> NoReturn:
        pytest.fail(f"asked for the weights of {name}")
