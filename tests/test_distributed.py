"""Several processes, over real gloo groups."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import prunewald as pw
from tests.processes import free_port, join, leave
from tests.resuming import same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"),
]
CRITERIA = ("magnitude", "magnitude-uncertainty", "taylor", "movement", "obd", "platon", "wanda", "random")


def prune_alike(rank: int, port: int, folder: str) -> None:
    """By each criterion: train on data of one's own, prune, train on; keep masks and weights."""
    join(rank, port)
    found = {criterion: pruned(rank, criterion) for criterion in CRITERIA}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


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


def tell_each_other_what_is_dead(rank: int, port: int, folder: str) -> None:
    """Each rank has an input that the other never sees, and a third is seen by none."""
    join(rank, port)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.01)
    pruner = pw.Pruner(model, optimizer, uncertainty="pseudo-bootstrap")
    x = torch.eye(4)[[rank, 2]]
    for _ in range(200):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    watched = pruner.dead()["weight"]
    pruner.prune(0.5)
    pruner.observe([(x, torch.ones(2, 3))], "squared_error")
    dead = pruner.dead()["weight"]
    pruner.detach()
    torch.save((watched, dead), f"{folder}/{rank}.pt")
    leave()


def refuse_shards(rank: int, port: int, folder: str) -> None:
    join(rank, port)
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(8, 8)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    try:
        pw.Pruner(model, criterion="magnitude")
    except TypeError as error:
        torch.save(str(error), f"{folder}/{rank}.pt")
    leave()


def shard_later(rank: int, port: int, folder: str) -> None:
    """Shard a model after its Pruner was attached, before and after a pruning; keep what each use of both says."""
    join(rank, port)
    found = {f"{when}, {how}": said(when, how, folder) for when in ("attached", "pruned") for how in ("all", "a part")}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


def said(when: str, how: str, folder: str) -> dict[str, str]:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer)
    x = torch.ones(2, 8)
    model(x).sum().backward()
    optimizer.step()
    if when == "pruned":
        pruner.prune(0.8)
    state = pruner.state_dict()
    fully_shard(model if how == "all" else model[2], mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    uses = {
        "step": optimizer.step,
        "prune": lambda: pruner.prune(0.9),
        "dry_run": lambda: pruner.prune(0.9, dry_run=True),
        "set_masks": lambda: pruner.set_masks(pruner.masks),
        "apply_": pruner.apply_,
        "sigma": pruner.sigma,
        "sparsity": lambda: pruner.sparsity,
        "state_dict": pruner.state_dict,
        "load_state_dict": lambda: pruner.load_state_dict(state),
        "save": lambda: pw.save(pruner, f"{folder}/{dist.get_rank()}.pw"),
        "repr": lambda: raised(repr(pruner)),
    }
    if when == "pruned":  # with a new optimizer, a forward pass is the first that can tell
        uses["forward"] = lambda: model(x)
    return {name: refusal(use) for name, use in uses.items()}


def raised(text: str) -> None:
    raise TypeError(text)


def refusal(use: Callable[[], object]) -> str:
    try:
        use()
    except TypeError as error:
        return str(error)
    return "not refused"


def detach_first(rank: int, port: int, folder: str) -> None:
    """What the refusal advises: detach, shard, train on."""
    join(rank, port)
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with pw.Pruner(model, criterion="magnitude") as pruner:
        pruner.prune(0.8)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 8)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(True, f"{folder}/{rank}.pt")
    leave()


def checkpoint(rank: int, port: int, folder: str) -> None:
    """Save by torch.distributed.checkpoint from every rank, and load into fresh objects."""
    join(rank, port)
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    def attached(seed: int) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, pw.Pruner]:
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
        model = DistributedDataParallel(plain)
        return model, plain, optimizer, pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=4))

    model, inside, optimizer, pruner = attached(0)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()
        if step == 5:
            pruner.prune(0.7)
    save({"model": inside.state_dict(), "pruner": pruner.state_dict()}, checkpoint_id=f"{folder}/saved")
    _, other, _, fresh = attached(1)
    state = {"model": other.state_dict(), "pruner": fresh.state_dict()}
    load(state, checkpoint_id=f"{folder}/saved")
    other.load_state_dict(state["model"])
    fresh.load_state_dict(state["pruner"])
    equal = same(fresh.state_dict(), pruner.state_dict()) and fresh.sparsity == pruner.sparsity
    torch.save(equal and same(other.state_dict(), inside.state_dict()), f"{folder}/{rank}.pt")
    leave()


def test_every_rank_prunes_alike_by_every_criterion(tmp_path):
    multiprocessing.spawn(prune_alike, (free_port(), str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for criterion in CRITERIA:
        (masks, weights), (others, other) = first[criterion], second[criterion]
        assert list(masks) == ["0.weight", "2.weight"], "names are those of the plain model"
        assert all(torch.equal(mask, others[name]) for name, mask in masks.items()), criterion
        assert all(torch.equal(tensor, other[name]) for name, tensor in weights.items()), criterion


def test_every_rank_knows_what_is_dead_on_all(tmp_path):
    multiprocessing.spawn(tell_each_other_what_is_dead, (free_port(), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        for dead in torch.load(tmp_path / f"{rank}.pt"):
            assert dead.tolist() == [[False, False, False, True]] * 3


def test_sharded_parameters_are_refused_in_one_sentence(tmp_path):
    multiprocessing.spawn(refuse_shards, (free_port(), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        assert "'weight' is sharded" in torch.load(tmp_path / f"{rank}.pt")


def test_a_model_that_is_sharded_later_is_refused_in_one_sentence(tmp_path):
    multiprocessing.spawn(shard_later, (free_port(), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        for case, messages in torch.load(tmp_path / f"{rank}.pt").items():
            name = "'0.weight'" if case.endswith("all") else "'2.weight'"
            for use, message in messages.items():
                assert f"{name} " in message, (case, use)
                assert " sharded over processes" in message, (case, use)
                assert "fully_shard()" in message, (case, use)
            assert "0%" not in messages["repr"]


def test_a_detached_pruner_lets_the_model_be_sharded(tmp_path):
    multiprocessing.spawn(detach_first, (free_port(), str(tmp_path)), nprocs=2)
    assert torch.load(tmp_path / "0.pt")


def test_every_rank_loads_a_checkpoint_into_a_fresh_pruner(tmp_path):
    multiprocessing.spawn(checkpoint, (free_port(), str(tmp_path)), nprocs=2)
    assert all(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
