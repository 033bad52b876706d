"""What all tests share."""

import os
from collections.abc import Iterator
from contextlib import suppress

# Before torch first multiplies bfloat16 matrices, since oneDNN reads it once: plain AVX-512, not the AMX units, so that
# results do not depend on what a virtual machine passes on.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

with suppress(ImportError):  # a machine with a GPU may have no more than torch and pytest
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)  # a busy machine is no bug
    settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core: a second thread would only wait for the other process
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tiny models: two threads that wait for each other are a hundred times slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
