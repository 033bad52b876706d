"""The kernel is built where it can be, kept, and shared; where it cannot, that is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.sparse import compiler, native
from prunewald.sparse.backends import missing
from prunewald.sparse.compiler import Library, library

BUILDS = not isinstance(library(), str)
needs_c = pytest.mark.skipif(not BUILDS, reason="no C compiler here")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A process that has built nothing yet, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.cache_clear()
    yield tmp_path / "cache" / "prunewald"
    library.cache_clear()


@needs_c
def test_it_is_built_once_and_kept(fresh, monkeypatch):
    assert isinstance(library(), Library)
    (kept,) = fresh.iterdir()
    library.cache_clear()
    monkeypatch.setattr(compiler, "_compiled", lambda *_: pytest.fail("it was there already"))
    assert isinstance(library(), Library)
    assert [*fresh.iterdir()] == [kept]
    assert kept.stat().st_mode & 0o777 == 0o700


@needs_c
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_one_that_is_broken_is_built_again(fresh, content):
    fresh.mkdir(mode=0o700, parents=True)
    kept = fresh / f"kernel-{compiler._fingerprint(compiler._compiler())}.so"
    kept.write_bytes(content)
    assert isinstance(library(), Library)
    assert len(kept.read_bytes()) > 1000


@needs_c
def test_what_others_can_write_to_is_not_run(fresh):
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    assert isinstance(library(), Library)
    assert [*fresh.iterdir()] == []


@needs_c
def test_without_a_folder_to_keep_it_in_it_is_built_for_the_process(tmp_path, monkeypatch, fresh):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert isinstance(library(), Library)


@needs_c
@pytest.mark.slow
def test_two_processes_may_build_at_once(tmp_path):
    code = (
        "import torch; from prunewald.sparse.compiler import library; from prunewald.sparse.native import *;"
        "from prunewald.sparse.compressed import Compressed;"
        "print(Program([Step(Compressed.of(torch.eye(3), None), 'rows', False)], 0, 1, library())(torch.ones(1, 3)))"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in both:
        out, err = one.communicate(timeout=300)
        assert "1., 1., 1." in out, err
    assert len([*(tmp_path / "prunewald").iterdir()]) == 1


@pytest.mark.parametrize("named", ["", "no-such-compiler"])
def test_without_a_compiler_everything_works_and_the_report_says_so(fresh, monkeypatch, tmp_path, named, one_thread):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", named)
    assert "no C compiler was found" in str(library())
    assert native.kinds() == []
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))
    model[2].weight.data *= torch.rand(512, 512) > 0.99
    fast = pw.run_sparse(model, torch.randn(1, 64))
    assert "no C compiler was found" in str(fast.report)
    assert not [way for row in fast.report.layers for way in row.tried if way.startswith("C,")]
    x = torch.randn(3, 64)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@needs_c
def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch, tmp_path):
    script = tmp_path / "failing"
    script.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'kernel.c: error: no such luck' >&2\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    assert "no such luck" in str(library())
    assert "not tried" in missing(("c",))[0]


@needs_c
def test_options_in_cc_are_kept(fresh, monkeypatch):
    monkeypatch.setenv("CC", f"{shutil.which('cc') or shutil.which('gcc') or shutil.which('clang')} -DNDEBUG")
    assert isinstance(library(), Library)


@needs_c
@pytest.mark.parametrize("options", [["-O3"], ["-O3", "-mavx2", "-mfma"]])
def test_the_plain_paths_are_right_too(tmp_path, monkeypatch, options, one_thread):
    """As on a machine without AVX-512, and without OpenMP."""
    if "-mavx2" in options and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2 here")
    out = tmp_path / "kernel.so"
    subprocess.run([*compiler._compiler(), *options, "-shared", "-fPIC", "-o", out, compiler.SOURCE], check=True)
    plain = Library(str(out))
    assert not plain.tiles
    assert not plain.threads
    weight, x = torch.randn(33, 70) * (torch.rand(33, 70) > 0.8), torch.randn(70, 70)
    packed = native.Compressed.of(weight, None)
    for kind, width in (("rows", 0), ("cols", 0), ("rows", 16), ("rows", 32), ("rows", 64)):
        got = native.Program([native.Step(packed, kind, False)], width, 4, plain)(x)
        torch.testing.assert_close(got, x @ weight.t(), rtol=1e-4, atol=1e-4)


@needs_c
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_was_forked_runs_with_one_thread():
    code = (
        "import os, torch; torch.set_num_threads(2)\n"
        "from prunewald.sparse.backends import *; from prunewald.sparse.compressed import Compressed\n"
        "run = kernel(Compressed.of(torch.eye(64), None), Way('c', 'rows', 0, 2), 1)\n"
        "x = torch.randn(1, 64); assert torch.equal(run(x), x)\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if torch.equal(run(x), x) else 1)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "0", done.stderr
