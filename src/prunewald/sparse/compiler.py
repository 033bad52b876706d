"""Our kernel in C: compiled once by the machine's own compiler, kept in the user's cache folder, loaded by ctypes.

No compiler is no error: `library()` says why there is none, and whoever asked goes another way.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from prunewald.util.files import replacing

SOURCE = Path(__file__).with_name("kernel.c")
_COMPILERS = ("cc", "gcc", "clang")
_ALWAYS = ["-O3", "-shared", "-fPIC", "-std=gnu11"]
# From what is wanted to what every compiler knows: threads are left out where there is no OpenMP.
_WAYS: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native"],
    ["-mcpu=native"],
    [],
)
_SECONDS = 120
_NONE = "no C compiler was found (cc, gcc or clang on the PATH, or what the variable CC names)"


class Library:
    """The compiled kernel: `run` is its one function; `tiles` and `threads` say what it can do here."""

    def __init__(self, path: str) -> None:
        loaded = ctypes.CDLL(path)
        self.run = loaded.prunewald_run
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
        self.run.restype = ctypes.c_int
        abilities = loaded.prunewald_abilities()
        self.tiles, self.threads = bool(abilities & 1), bool(abilities & 2)


@cache
def library() -> Library | str:
    """The kernel for this machine, or in words why there is none; decided once in a process."""
    if not (compiler := _compiler()):
        return _NONE
    said = ""
    for folder in _folders():
        try:
            return _kept(compiler, folder)
        except (OSError, AttributeError, subprocess.SubprocessError) as error:  # the next folder may let us
            said = _last_line(error)
    return f"{compiler[0]!r} could not build the kernel: {said}"


def _compiler() -> list[str]:
    """The command that compiles: what CC names, or else the first that is on the PATH; empty where there is none."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named if shutil.which(named[0]) else []
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), [])


def _folders() -> Iterator[Path]:
    """Where the kernel may be kept: the user's cache folder if only they can write to it, or else one for a moment."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    with suppress(OSError, RuntimeError):  # read-only, or no home at all
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "prunewald"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _ours(folder):
            yield folder
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="prunewald-", ignore_cleanup_errors=True) as own:
        yield Path(own)  # a library that is loaded stays so when its file goes


def _ours(path: Path) -> bool:
    """Whether nobody else can write here: what lies here is run."""
    found = path.stat()
    mine = found.st_uid == os.getuid() if hasattr(os, "getuid") else True
    return mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _kept(compiler: list[str], folder: Path) -> Library:
    """The library in a folder, which is built where it is missing or broken. Others may build it at the same time."""
    file = folder / f"kernel-{_fingerprint(compiler)}.so"
    if file.exists() and _ours(file):
        with suppress(OSError, AttributeError):
            return Library(str(file))
    content = _compiled(compiler)
    with replacing(file) as draft:
        draft.write(content)
    file.chmod(0o700)
    return Library(str(file))


def _compiled(compiler: list[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="prunewald-") as folder:
        out = Path(folder) / "kernel.so"
        for more in _WAYS:
            try:
                _run([*compiler, *_ALWAYS, *more, "-o", str(out), str(SOURCE)])
                return out.read_bytes()
            except subprocess.CalledProcessError as error:
                said = error
    raise said


def _fingerprint(compiler: list[str]) -> str:
    """Of all that the library depends on: the source, the compiler, and the processor, which homes may be shared by."""
    version = _run([*compiler, "--version"])
    parts = [SOURCE.read_text(), repr((_ALWAYS, _WAYS, compiler)), version, platform.platform(), *_processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> list[str]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        return [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return [platform.processor(), platform.node()]


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
    ).stdout


def _last_line(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    lines = [line for line in (said or str(error)).splitlines() if "error" in line] or [str(error)]
    return lines[0][:200]
