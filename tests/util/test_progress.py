import sys

import pytest

from prunewald.util.progress import note, progress_bar


def test_bar_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(total=2, unit="epoch") as bar:
        bar.set_description_str("seed 0")
        bar.update()
        bar.update()
    assert "seed 0" in (shown := capsys.readouterr().err)
    assert "2/2" in shown


def test_silent_without_tqdm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with progress_bar(total=2) as bar:
        bar.set_description_str("seed 0")
        bar.update()
    assert capsys.readouterr().err == ""


def test_silent_where_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(total=2, show=False) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_a_note_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    note("hello")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    note("hello")
    assert capsys.readouterr().err == "hello\nhello\n"
