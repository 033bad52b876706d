"""Tests of several processes: how one of them joins a gloo group, and leaves it."""

import os
import socket

import torch
import torch.distributed as dist


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def join(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)


def leave() -> None:
    """End the group and this process at once: torch's own threads abort one in three that end in the usual way."""
    dist.destroy_process_group()
    os._exit(0)
