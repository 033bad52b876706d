from pathlib import Path
from typing import Any

import pytest

from prunewald.lab.cache import Cache
from prunewald.lab.pieces import Over, Pieces


def test_pieces_grow_to_some_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("prunewald.lab.pieces.time.monotonic", lambda: clock[0])

    def sizes(seconds: float, *, each: int = 1, savings: int = 1, **given: Any) -> list[int]:
        found = []
        pieces = Pieces(Cache(tmp_path, None), **given)
        for piece, _ in pieces.of("any", range(200), lambda _: False, each=each, savings=savings):
            found.append(len(piece))
            clock[0] += seconds * len(piece)
        assert sum(found) == 200
        return found

    assert sizes(0.01) == [1, 4, 16, 64, 115]
    assert sizes(10)[:4] == [1, 4, 12, 12]  # of 120 seconds
    assert set(sizes(1000)) == {1}
    assert sizes(20, savings=10)[:5] == [1, 4, 16, 60, 60]
    assert sizes(0.01, least=16) == [16, 64, 120]
    assert sizes(0.01, most=50) == [1, 4, 16, 50, 50, 50, 29]
    assert sizes(0.01, most=500, each=100) == [1, 4, *[5] * 39]
    assert sizes(0.01, size=70) == [70, 70, 60]


def test_a_piece_has_a_folder_until_it_is_done(tmp_path: Path) -> None:
    pieces = Pieces(Cache(tmp_path, None), size=2)
    for some, folder in pieces.of("any", range(4), lambda _: False):
        assert folder.is_dir()
        assert len(some) == 2
    assert not any((tmp_path / "running").iterdir())


def test_a_piece_that_was_killed_comes_first_and_whole(tmp_path: Path) -> None:
    pieces = Pieces(Cache(tmp_path, None), size=3)
    first = pieces.of("any", range(10), lambda item: item < 2)
    assert next(first)[0] == [2, 3, 4]
    del first  # as if it had been killed: nothing is tidied up
    done = set(range(2))
    order = []
    for some, _ in Pieces(Cache(tmp_path, None), size=4).of("any", range(10), done.__contains__):
        order.append(some)
        done |= set(some)
    assert order == [[2, 3, 4], [5], [6, 7, 8, 9]]


def test_the_deadline_is_looked_at_before_each_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("prunewald.lab.pieces.time.monotonic", lambda: clock[0])
    done: list[int] = []

    def work() -> None:
        for some, _ in Pieces(Cache(tmp_path, None), size=1, deadline=25.0).of("any", range(9), lambda _: False):
            done.extend(some)
            clock[0] += 10

    with pytest.raises(Over):
        work()
    assert done == [0, 1, 2]
