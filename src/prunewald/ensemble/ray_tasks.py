"""Chunks of replicas as Ray tasks, on this machine or a cluster; a task whose worker dies is run again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from prunewald.ensemble.job import Job
from prunewald.ensemble.result import Result, joined
from prunewald.util.progress import note

_RETRIES = 3  # of a task whose worker has died


def spread(
    job: Job,
    work: Callable[[Job], Result],
    chunk: int | None,
    address: str | None,
    tick: Callable[[int], object],
) -> Result:
    """Let each worker do some of the replicas; the result does not depend on how many workers there are.

    `tick` is told how many epochs of replicas are done, each time that a worker has finished.
    """
    ray = _ray(address)
    kind = "GPU" if job.device.type == "cuda" else "CPU"
    workers = max(1, int(ray.cluster_resources().get(kind, 1)))
    size = chunk or -(-len(job.seeds) // workers)
    parts = [job.rows(first, first + size) for first in range(0, len(job.seeds), size)]
    task = ray.remote(max_retries=_RETRIES, **{f"num_{kind.lower()}s": 1})(_task)
    x, y = ray.put(job.x.cpu()), ray.put(job.y.cpu())
    nothing = job.x[:0]
    tasks = {task.remote(work, replace(part, x=nothing, y=nothing), x, y): part for part in parts}
    waiting = list(tasks)
    while waiting:
        done, waiting = ray.wait(waiting)
        tick(sum(len(tasks[one].seeds) for one in done) * job.epochs)
    result = joined(ray.get(list(tasks)))
    if result.how.startswith("loop"):
        note(f"prunewald: {result.how}")  # what a worker prints is not seen here
    return result


def _task(work: Callable[[Job], Result], job: Job, x: Tensor, y: Tensor) -> Result:
    return work(replace(job, x=x, y=y))


def _ray(address: str | None) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("executor='ray' needs Ray: pip install 'prunewald[ray]'") from error
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    return ray
