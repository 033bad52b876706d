"""A Trainer in two processes: every rank holds the same zeros, in a training and in one that is resumed."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import prunewald as pw
from tests.processes import free_port, leave
from tests.resuming import same

pytest.importorskip("transformers", reason="Transformers is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"),
]


def train_sparse(rank: int, port: int, folder: str) -> None:
    """Fine-tune a model that came with zeros, prune it further, stop, and take that up again."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    from prunewald.integrations.transformers import PrunerCallback
    from tests.trainers import llama, made, trainer

    def train(name, model, resumed=None):
        choices = {"schedule": pw.Cubic(0.8, begin=2, every=1), "uncertainty": pw.PseudoBootstrap(last=2)}
        callback = PrunerCallback(hold_zeros=resumed is None or None, **choices)
        saving = {"save_strategy": "steps", "save_steps": 3, "ddp_backend": "gloo"}
        one = trainer(model, f"{folder}/{name}", callback, **saving)
        one.train(resume_from_checkpoint=resumed)
        assert type(one.model_wrapped).__name__ == "DistributedDataParallel"
        return {"weights": dict(one.model.state_dict()), "pruner": callback.pruner.state_dict()}

    model = made(llama)
    pw.Pruner(model).prune(0.5)
    zeros = {name: param == 0 for name, param in model.named_parameters() if param.dim() == 2}
    whole = train("whole", model)
    kept = all(not whole["weights"][name][zero].any() for name, zero in zeros.items())
    again = train("again", made(llama, seed=1), resumed=f"{folder}/whole/checkpoint-3")
    found = {"kept": kept, "whole": whole, "again": again, "files": sorted(os.listdir(f"{folder}/whole/checkpoint-3"))}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


def test_every_rank_holds_the_zeros_and_resumes(tmp_path):
    multiprocessing.spawn(train_sparse, (free_port(), str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert {"pruner.pt", "pruner_1.pt"} <= set(first["files"])
    for one in (first, second):
        assert one["kept"], "what came as zero stays so"
        assert same(one["again"], one["whole"]), "resumed bit for bit"
    assert same(first["whole"]["weights"], second["whole"]["weights"])
    assert same(first["whole"]["pruner"]["masks"], second["whole"]["pruner"]["masks"])
    weights = [w for name, w in first["whole"]["weights"].items() if name in first["whole"]["pruner"]["masks"]]
    assert sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights) == pytest.approx(0.8, abs=1e-3)
