import os
import pickle
import stat

import pytest
import torch

from prunewald.util.files import read_torch, replacing


def test_a_file_is_there_whole_once_all_went_well(tmp_path):
    path = tmp_path / "model.pw"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model.pw"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_where_writing_fails_the_old_file_stays_and_no_draft(tmp_path, error):
    path = tmp_path / "model.pw"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.pw"]


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path):
    path, link = tmp_path / "model.pw", tmp_path / "latest.pw"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


posix = pytest.mark.skipif(os.name != "posix", reason="modes, owners and pipes")


def drafts(folder):
    return [path for path in folder.iterdir() if path.suffix == ".tmp"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_the_draft_of_a_file_that_is_there_is_for_its_owner_alone(tmp_path, mode):
    path = tmp_path / "secret.pw"
    path.write_bytes(b"old")
    path.chmod(mode)
    with replacing(path) as file:
        (draft,) = drafts(tmp_path)
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        with replacing(tmp_path / "new.pw") as file:
            file.write(b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.pw").stat().st_mode) == 0o640


@posix
@pytest.mark.parametrize("allowed", [True, False])
def test_the_owner_stays_where_that_is_allowed(tmp_path, monkeypatch, allowed):
    path, given = tmp_path / "theirs.pw", []
    path.write_bytes(b"old")
    owner = path.stat().st_uid, path.stat().st_gid

    def chown(file, *to):
        given.append(to)
        if not allowed:
            raise PermissionError("not yours")

    monkeypatch.setattr("os.chown", chown)
    with replacing(path) as file:
        file.write(b"new")
    assert given == [owner]
    assert path.read_bytes() == b"new"


@posix
def test_only_a_regular_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    before = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for name in ("pipe", "folder", "link"):
        with pytest.raises(OSError, match=f"{name}.*another name"), replacing(tmp_path / name):
            pytest.fail("nothing may be written")
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == before


@posix
def test_a_device_is_left_alone():
    with pytest.raises(OSError, match="/dev/null.*another name"), replacing("/dev/null"):
        pytest.fail("nothing may be written")


@posix
def test_what_appears_while_the_draft_is_written_is_not_replaced_unless_it_is_a_regular_file(tmp_path):
    with pytest.raises(OSError, match="late.*another name"), replacing(tmp_path / "late") as file:  # noqa: PT012
        file.write(b"new")
        os.mkfifo(tmp_path / "late")
    assert os.listdir(tmp_path) == ["late"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there/model.pw.*no folder"), replacing(tmp_path / "there/model.pw"):
        pass


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("newer", [False, True])
def test_what_torch_save_wrote_comes_back(tmp_path, mapped, newer):
    saved = {"weight": torch.randn(3), "steps": 7}
    torch.save(saved, tmp_path / "state.pt", _use_new_zipfile_serialization=newer)
    found = read_torch(tmp_path / "state.pt", "state", "save it again", mapped=mapped)
    assert torch.equal(found["weight"], saved["weight"])
    assert found["steps"] == 7


class Code:
    """Unpickled, it would run a function."""

    def __reduce__(self):
        return os.mkdir, ("here",)


class NoState(ValueError):
    """An error of the caller's own."""


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kind", ["empty", "noise", "cut", "code", "pickle"])
def test_what_is_no_such_file_is_an_error_with_the_remedy(tmp_path, monkeypatch, kind, mapped):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "state.pt"
    torch.save(Code() if kind == "code" else {"weight": torch.randn(300)}, path)
    changed = {"empty": b"", "noise": b"\x93noise" * 9, "cut": path.read_bytes()[:700], "pickle": pickle.dumps([1])}
    path.write_bytes(changed.get(kind, path.read_bytes()))
    with pytest.raises(NoState, match=r"state.pt' is no state \(.*\): save it again$"):
        read_torch(path, "state", "save it again", NoState, mapped=mapped)
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="state.pt"):
        read_torch(tmp_path / "state.pt", "state", "save it again")
