"""A job on this machine: seeds, chunks, memory."""

import pytest
import torch

from prunewald.ensemble import local, trial_step
from prunewald.ensemble.vmap_trainer import VmapTrainer
from tests.ensemble.helpers import dropping, same

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_a_replica_depends_on_its_own_seed_only(how):
    whole = dropping(how=how, resample="bootstrap")
    same(dropping(how=how, resample="bootstrap", chunk=3), whole)
    same(dropping(how=how, resample="bootstrap", seeds=[7, 0]), whole.rows([3, 1]))
    assert not torch.equal(whole.params["4.weight"][0], whole.params["4.weight"][1])


def test_chunks_fit_into_memory(monkeypatch):
    whole, sizes = dropping(), []
    monkeypatch.setattr(trial_step, "footprint", lambda job: 1000)
    monkeypatch.setattr(local, "memory", lambda device: 2500)

    class Watched(VmapTrainer):
        def __init__(self, job):
            sizes.append(len(job.seeds))
            super().__init__(job)

    monkeypatch.setattr(local, "VmapTrainer", Watched)
    same(dropping(), whole)
    assert sizes == [2, 2]


def test_out_of_memory_halves_the_chunk(monkeypatch):
    whole = dropping()

    class Small(VmapTrainer):
        def __init__(self, job):
            if len(job.seeds) > 1:
                raise torch.cuda.OutOfMemoryError
            super().__init__(job)

    monkeypatch.setattr(local, "VmapTrainer", Small)
    same(dropping(), whole)
