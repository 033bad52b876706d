"""Several processes, over real gloo groups."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import prunewald as pw

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"),
]
CRITERIA = ("magnitude", "magnitude-uncertainty", "taylor", "movement", "obd", "platon", "wanda", "random")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def join(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)


def prune_alike(rank: int, port: int, folder: str) -> None:
    """By each criterion: train on data of one's own, prune, train on; keep masks and weights."""
    join(rank, port)
    found = {criterion: pruned(rank, criterion) for criterion in CRITERIA}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def pruned(rank: int, criterion: str):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer, criterion=criterion)
    data = torch.Generator().manual_seed(rank + 1)
    for step in range(8):
        x = torch.randn(8, 12, generator=data) * torch.arange(1.0, 13.0) ** (rank * 2 - 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step == 4:
            pruner.prune(0.7)
    return pruner.masks, dict(model.module.state_dict())


def refuse_shards(rank: int, port: int, folder: str) -> None:
    join(rank, port)
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(8, 8)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    try:
        pw.Pruner(model, criterion="magnitude")
    except TypeError as error:
        torch.save(str(error), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_every_rank_prunes_alike_by_every_criterion(tmp_path):
    multiprocessing.spawn(prune_alike, (free_port(), str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for criterion in CRITERIA:
        (masks, weights), (others, other) = first[criterion], second[criterion]
        assert list(masks) == ["0.weight", "2.weight"], "names are those of the plain model"
        assert all(torch.equal(mask, others[name]) for name, mask in masks.items()), criterion
        assert all(torch.equal(tensor, other[name]) for name, tensor in weights.items()), criterion


def test_sharded_parameters_are_refused_in_one_sentence(tmp_path):
    multiprocessing.spawn(refuse_shards, (free_port(), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        assert "'weight' is sharded" in torch.load(tmp_path / f"{rank}.pt")
