import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from prunewald.lab.data import DataError, embedded


def test_embedded_size_and_licence() -> None:
    folder = files("prunewald.lab").joinpath("embedded")
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 3_000_000
    assert "Copyright (c) 2017 Zalando SE" in folder.joinpath("LICENSE").read_text()


def test_embedded_damage_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(str(files("prunewald.lab").joinpath("embedded")))
    shutil.copytree(source, tmp_path / "embedded")
    damaged = bytearray((source / "test.xz").read_bytes())
    damaged[5000] ^= 1
    (tmp_path / "embedded" / "test.xz").write_bytes(damaged)
    monkeypatch.setattr("prunewald.lab.data.carried.files", lambda _: tmp_path)
    with pytest.raises(DataError, match=r"test\.xz does not match its checksum"):
        embedded()
