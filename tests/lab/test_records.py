import io
import json
import lzma
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prunewald.lab.records import (
    Key,
    Record,
    RecordFolder,
    ResultsError,
    data_of,
    experiment_of,
    export,
    import_,
    read_records,
    settings_of,
)
from prunewald.lab.settings import settings
from tests.storage.helpers import allocating

SETTINGS = settings("fashion-mnist", epochs=7)
ONE = Record(0, "moment:1", 0.9, 0.8, 0.5, 0.7, 0.7, 0.9, 5.0, 1.1, 0.6, 0.1, {"torch": "2"})


def folder(out: Path, *records: Record) -> Path:
    results = RecordFolder(out, SETTINGS, "some images")
    for record in records:
        results.write(record)
    return results.folder


def several(seeds: range) -> list[Record]:
    rows = ("abs", "moment:1", "dense", "pseudo:1e-4:formula")
    return [replace(ONE, seed=seed, row=row, level=level) for seed in seeds for row in rows for level in (0.5, 0.95)]


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_record_is_one_file_named_by_what_it_is_of(tmp_path: Path) -> None:
    root = folder(tmp_path, ONE)
    assert sorted(files(root)) == ["records/moment_1/00000-0.9.json", "settings.json"]
    assert read_records(root) == [ONE]
    results = RecordFolder(tmp_path, SETTINGS, "some images")
    assert results.has(ONE.key)
    assert not results.has(Key(1, "moment:1", 0.9))
    assert experiment_of(root) == "fashion-mnist"


def test_a_record_that_is_there_stays(tmp_path: Path) -> None:
    root = folder(tmp_path, ONE, replace(ONE, retrained=0.1))
    assert read_records(root) == [ONE]


def test_a_number_that_is_none_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder(tmp_path, replace(ONE, retrained=float("nan")))
    assert list(files(tmp_path / SETTINGS.name)) == ["settings.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no record"),
        (b'{"seed": 0', "is no record"),
        (b"[1]", "is no record"),
        (b'{"seed": 0}', "missing"),
        (b"\xff\xfe\x00", "is no record"),
        (json.dumps(vars(ONE) | {"retrained": None}).encode(), "retrained is None"),
        (json.dumps(vars(ONE) | {"pruned": float("nan")}).encode(), "pruned is nan"),
        (json.dumps(vars(ONE) | {"level": "high"}).encode(), "level is 'high'"),
        (json.dumps(vars(ONE) | {"retrained": 17.0}).encode(), "retrained is 17.0, no share"),
        (json.dumps(vars(ONE) | {"frozen": "x"}).encode(), "is no record"),
        (json.dumps(vars(ONE) | {"environment": 3}).encode(), "environment is 3"),
        (json.dumps(vars(ONE) | {"row": "new:1"}).encode(), "unknown row 'new:1'"),
        (json.dumps(vars(ONE) | {"row": 5}).encode(), "row is 5"),
        (json.dumps(vars(ONE) | {"row": ["abs"]}).encode(), "row is ['abs']"),
        (json.dumps(vars(ONE) | {"row": "moment:\n1"}).encode(), "row is 'moment:\\n1', not 'moment:1'"),
        (json.dumps(vars(ONE) | {"seed": 0.5}).encode(), "seed is 0.5"),
        (json.dumps(vars(ONE) | {"seed": -1}).encode(), "seed is -1"),
        (json.dumps(vars(ONE) | {"seed": 10**400}).encode(), "seed is 1000"),
        (json.dumps(vars(ONE) | {"seed": None}).encode(), "seed is None"),
        (json.dumps(vars(ONE) | {"level": True}).encode(), "level is True"),
        (json.dumps(vars(ONE) | {"frozen": True}).encode(), "frozen is True"),
        (json.dumps(vars(ONE) | {"speedup": 10**400}).encode(), "speedup is 1000"),
        (json.dumps(vars(ONE) | {"speedup": 1e308}).encode(), "speedup is 1e+308"),
        (json.dumps(vars(ONE)).replace("0.9", "9" * 9000).encode(), "is no record"),
        (b"[" * 60_000, "is no record"),
        (b'{"a":' * 9_000, "is no record"),
        (json.dumps(vars(ONE) | {"seed": 4}).encode(), "holds the record of records/moment_1/00004-0.9.json"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    root = folder(tmp_path, ONE)
    path = root / ONE.key.path
    path.write_bytes(content)
    with pytest.raises(ResultsError) as error:
        read_records(root)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "delete it to compute it again" in str(error.value)


def test_what_a_killed_writer_leaves_is_no_record(tmp_path: Path) -> None:
    root = folder(tmp_path, ONE)
    (root / "records/moment_1/.prunewald-0123.tmp").write_text('{"seed"')
    assert read_records(root) == [ONE]


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    root = folder(tmp_path, ONE)
    before = files(root)
    with pytest.raises(ResultsError, match="its data is 'some images', not 'other images'; give another --out"):
        RecordFolder(tmp_path, SETTINGS, "other images")
    for old, new, message in (
        ("prunewald results 1", "prunewald results 9", "written by other code"),
        ('"epochs": 7', '"epochs": 8', "its epochs is 8, not 7"),
        ('"epochs": 7', '"epochs": 7, "new": 1', "its new is 1, not None"),
    ):
        (root / "settings.json").write_bytes(before["settings.json"].replace(old.encode(), new.encode()))
        with pytest.raises(ResultsError, match=message):
            RecordFolder(tmp_path, SETTINGS, "some images")
    strange = before["settings.json"].replace(b'"fashion-mnist"', b'"foo"')
    nameless = before["settings.json"].replace(b'"experiment"', b'"trial"')
    listed = before["settings.json"].replace(b'"fashion-mnist"', b'["fashion-mnist"]')
    for content in (b"", b"{}", b"[]", b"\xff", b"[" * 60_000, strange, nameless, listed):
        (root / "settings.json").write_bytes(content)
        with pytest.raises(ResultsError, match="settings.json"):
            RecordFolder(tmp_path, SETTINGS, "some images")
        with pytest.raises(ResultsError, match="settings.json"):
            read_records(root)
    (root / "settings.json").unlink()
    with pytest.raises(ResultsError, match="has records and no settings.json: give another --out"):
        RecordFolder(tmp_path, SETTINGS, "some images")
    del before["settings.json"]
    assert files(root) == before
    with pytest.raises(ResultsError, match="is no results folder"):
        read_records(tmp_path)


def test_a_folder_with_files_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / SETTINGS.name).mkdir()
    (tmp_path / SETTINGS.name / "table.txt").write_text("mine")
    with pytest.raises(ResultsError, match=r"has table.txt and no settings.json: give another --out"):
        RecordFolder(tmp_path, SETTINGS, "some images")
    assert list(files(tmp_path)) == [f"{SETTINGS.name}/table.txt"]


def test_folders_of_two_machines_merge_by_copying(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "a", *several(range(3))), folder(tmp_path / "b", *several(range(3, 5)))
    whole = folder(tmp_path / "c", *several(range(5)))
    shutil.copytree(other, one, dirs_exist_ok=True)
    assert files(one) == files(whole)
    assert read_records(one) == read_records(whole)


def test_export_and_import(tmp_path: Path) -> None:
    root = folder(tmp_path / "a", *several(range(2)))
    (root / "networks").mkdir()
    (root / "networks" / "big.pt").write_bytes(b"0" * 1000)
    (root / "table.txt").write_text("a table")
    assert export(root, tmp_path / "a.tar.xz") == 16
    again = folder(tmp_path / "b", *reversed(several(range(2))))
    export(again, tmp_path / "b.tar.xz")
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()
    found, new = import_(tmp_path / "a.tar.xz", tmp_path / "new" / "place")
    assert (found, new) == (tmp_path / "new" / "place" / SETTINGS.name, 16)
    assert files(found) == files(again)
    assert import_(tmp_path / "a.tar.xz", tmp_path / "new" / "place") == (found, 0)


def test_import_merges_and_changes_nothing_that_is_there(tmp_path: Path) -> None:
    mine = replace(ONE, seed=0, row="abs", level=0.5, retrained=0.123)
    here = folder(tmp_path / "a", mine, *several(range(1, 2)))
    export(folder(tmp_path / "b", *several(range(3))), tmp_path / "b.tar.xz")
    assert import_(tmp_path / "b.tar.xz", tmp_path / "a") == (here, 15)
    assert mine in read_records(here)
    assert len(read_records(here)) == 24


def forged(seeds: range, dense: float, rows: tuple[str, ...]) -> list[Record]:
    """Records of a run whose networks have these accuracies."""
    return [replace(ONE, seed=seed, row=row, dense=dense) for seed in seeds for row in rows]


def test_rows_of_different_networks_are_not_merged(tmp_path: Path) -> None:
    """As when two machines trained the same seed, and one has ABS of it and the other the second moment."""
    here = folder(tmp_path / "a", *forged(range(3), 0.8, ("abs",)), *forged(range(1), 0.8, ("moment:1",)))
    before = files(here)
    export(folder(tmp_path / "b", *forged(range(1, 3), 0.82, ("moment:1",))), tmp_path / "b.tar.xz")
    with pytest.raises(ResultsError) as error:
        import_(tmp_path / "b.tar.xz", tmp_path / "a")
    for part in ("b.tar.xz", "seed 1 ", "abs at 90%", "80.00%", "moment:1 at 90%", "82.00%"):
        assert part in str(error.value)
    assert files(here) == before
    shutil.copytree(tmp_path / "b" / SETTINGS.name, here, dirs_exist_ok=True)  # merged by hand
    with pytest.raises(ResultsError, match="seed 1 .*different networks.*80.00%.*82.00%"):
        read_records(here)
    with pytest.raises(ResultsError, match="seed 1 .*different networks"):
        export(here, tmp_path / "c.tar.xz")


@pytest.mark.parametrize("images", [10_000, 2_000])
def test_a_network_that_another_machine_measured_is_the_same(tmp_path: Path, images: int) -> None:
    results = RecordFolder(tmp_path, SETTINGS, f"pictures (6,000 + {images:,} images)")
    for row, more in (("abs", 0), ("moment:1", 2)):
        results.write(replace(ONE, row=row, dense=0.8 + more / images))
    assert len(results.read()) == 2
    results.write(replace(ONE, row="random", dense=0.8 + 3 / images))
    with pytest.raises(ResultsError, match="different networks"):
        results.read()


def test_the_settings_of_a_folder_are_those_of_its_run(tmp_path: Path) -> None:
    root = folder(tmp_path, ONE)
    assert settings_of(root).identity() == SETTINGS.identity()
    file = root / "settings.json"
    for name, value in (("epochs", 0), ("news", 1)):
        stored = json.loads(file.read_text())
        stored["identity"][name] = value
        file.write_text(json.dumps(stored))
        with pytest.raises(ResultsError, match="written by other code"):
            settings_of(root)


def test_export_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear")
    with pytest.raises(ResultsError, match="is there already: give another name"):
        export(folder(tmp_path, ONE), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "dear"


def packed(path: Path, entries: dict[str, Any]) -> Path:
    with tarfile.open(path, "w:xz") as tar:
        for name, content in entries.items():
            entry = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            entry.name, entry.size = name, len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def link(kind: bytes, to: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo()
    entry.type, entry.linkname = kind, to
    return entry


GOOD = json.dumps(vars(ONE)).encode()
PLACE = ONE.key.path


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"../PLACE": GOOD}, "does not hold one results folder"),
        ({"x/../../evil.json": GOOD}, "holds the record of"),
        ({"/etc/x": GOOD}, "does not hold one results folder"),
        ({"x/records/moment_1/../../../00000-0.9.json": GOOD}, "holds the record of"),
        ({"x/table.txt": b"a table"}, "'table.txt' is no record"),
        ({f"x/{PLACE}": b'{"seed": 1}'}, "is no record"),
        ({f"x/{PLACE}": b"not json"}, "is no record"),
        ({f"x/{PLACE}": json.dumps(vars(ONE) | {"row": "../.."}).encode()}, "unknown row"),
        ({f"x/{PLACE}": json.dumps(vars(ONE) | {"seed": 7}).encode()}, "holds the record of"),
        ({f"x/{PLACE}": link(tarfile.SYMTYPE, "/etc/passwd")}, "no plain file"),
        ({f"x/{PLACE}": link(tarfile.LNKTYPE, "x/settings.json")}, "no plain file"),
        ({f"x/{PLACE}": link(tarfile.FIFOTYPE, "")}, "no plain file"),
        ({"x/records": link(tarfile.DIRTYPE, "")}, "no plain file"),
        ({f"x/{PLACE}": b"0" * 100_000}, "at most 65,536 bytes"),
        ({f"y/{PLACE}": GOOD}, "does not hold one results folder"),
        ({"x/settings.json": b"{}"}, "written by other code"),
        ({"x/settings.json": b"[" * 60_000}, "is damaged"),
        ({f"x/{PLACE}": b"[" * 60_000}, "is no record"),
        ({f"x/{PLACE}": json.dumps(vars(ONE) | {"speedup": 10**400}).encode()}, "speedup is 1000"),
        ({f"x/{PLACE}": json.dumps(vars(ONE) | {"row": 5}).encode()}, "row is 5"),
        ({f"x/{PLACE}": json.dumps(vars(ONE) | {"seed": 10**300}).encode()}, "seed is 1000"),
        ({"x" * 200: GOOD}, "no plain file"),  # its name is in a header of its own
        ({"x/settings.json": b"{"}, "is damaged"),
    ],
)
def test_hostile_archives_are_refused_and_nothing_is_written(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    right = (folder(tmp_path / "a", ONE) / "settings.json").read_bytes()
    archive = packed(tmp_path / "bad.tar.xz", {"x/settings.json": right, **entries})
    (tmp_path / "out").mkdir()
    with pytest.raises(ResultsError) as error:
        import_(archive, tmp_path / "out")
    assert message in str(error.value)
    assert str(archive) in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A header of pax may say 6 GiB, and compressed it is a megabyte."""
    header = tarfile.TarInfo("x/pax")
    header.type, header.size = tarfile.XHDTYPE, 20_000_000
    with lzma.open(tmp_path / "bad.tar.xz", "wb", preset=0) as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(header.size) + bytes(1024))
    with allocating(5_000_000), pytest.raises(ResultsError, match="x/pax.*no plain file"):
        import_(tmp_path / "bad.tar.xz", tmp_path / "out")


def test_an_archive_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(folder(tmp_path / "a", *several(range(2))), tmp_path / "a.tar.xz")
    for limit, value, message in (("_MOST", 16, "more than 16 files"), ("_LARGEST_SUM", 2000, "more than 2,000 bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(f"prunewald.lab.records.{limit}", value)
            with pytest.raises(ResultsError, match=f"a.tar.xz.*{message}"):
                import_(tmp_path / "a.tar.xz", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert import_(tmp_path / "a.tar.xz", tmp_path / "out")[1] == 16


def test_the_same_file_again_and_again_counts_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunewald.lab.records._MOST", 100)
    with tarfile.open(tmp_path / "bad.tar.xz", "w:xz") as tar:
        for _ in range(101):
            tar.addfile(tarfile.TarInfo("x/settings.json"))
    with pytest.raises(ResultsError, match="more than 100 files"):
        import_(tmp_path / "bad.tar.xz", tmp_path / "out")


def test_what_the_data_are_called_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    root = RecordFolder(tmp_path, SETTINGS, "\x1b[2Jimages\n").folder
    assert data_of(root) == "\\x1b[2Jimages\\n"


def test_a_folder_that_would_steer_the_terminal_is_refused(tmp_path: Path) -> None:
    right = (folder(tmp_path / "a", ONE) / "settings.json").read_bytes()
    archive = packed(tmp_path / "bad.tar.xz", {"\x1b[2J/settings.json": right})
    with pytest.raises(ResultsError) as error:
        import_(archive, tmp_path / "out")
    assert "'\\x1b[2J/settings.json'" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_archives_that_are_none(tmp_path: Path) -> None:
    export(folder(tmp_path / "a", *several(range(9))), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    bad = [b"", b"text", whole[: len(whole) // 2], bytes(broken), lzma.compress(b"text"), lzma.compress(b"")]
    for number, content in enumerate(bad):
        path = tmp_path / f"{number}.tar.xz"
        path.write_bytes(content)
        with pytest.raises(ResultsError, match=f"{number}.tar.xz is no archive of results"):
            import_(path, tmp_path / "out")
    with pytest.raises(ResultsError, match="none.tar.xz is no archive"):
        import_(tmp_path / "none.tar.xz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_of_other_settings_is_refused(tmp_path: Path) -> None:
    export(folder(tmp_path / "a", ONE), tmp_path / "a.tar.xz")
    there = RecordFolder(tmp_path / "b", SETTINGS, "other images").folder
    before = files(there)
    with pytest.raises(ResultsError, match="its data is 'other images', not 'some images'"):
        import_(tmp_path / "a.tar.xz", tmp_path / "b")
    assert files(there) == before
