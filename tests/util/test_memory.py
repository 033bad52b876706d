"""Freed memory is given back, where there is somebody to ask."""

import ctypes
import os
import subprocess
import sys

import pytest

from prunewald.util import memory

SCRIPT = """
import torch
from prunewald.util.memory import give_back
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
kept, freed = [], []
for _ in range(200):
    freed.append(torch.ones(1 << 18))
    kept.append(torch.ones(1 << 10))
freed.clear()
before = resident()
give_back()
print(before - resident())
"""

FROM_THE_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}  # and kept there


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone is asked"
)
def test_what_lies_between_things_that_live_on_is_given_back():
    own = {**os.environ, **FROM_THE_HEAP}
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=own)
    assert int(found.stdout) > 100 << 20


def test_elsewhere_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "win32")
    memory._trim.cache_clear()
    try:
        assert memory._trim() is None
        memory.give_back()
    finally:
        memory._trim.cache_clear()
