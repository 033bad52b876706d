"""how="vmap": many replicas in one step, by vmap over stacked weights; on a GPU the step is a CUDA graph."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from prunewald.core.base import Online, State
from prunewald.ensemble import carry, estimates
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.start import initial, ready_model
from prunewald.ensemble.swap import Swap
from prunewald.ensemble.trainer import Trainer

_WARM = 3  # steps with a batch size before it is captured: libraries set themselves up in the first ones


class VmapTrainer(Trainer):
    """Trains all replicas of a job together, as rows of stacked tensors."""

    way = "vmap"

    def __init__(self, job: Job) -> None:
        model = ready_model(job)
        state = initial(job)
        trained = {name for name, param in model.named_parameters() if param.requires_grad}
        params = {name: state[name].contiguous().requires_grad_() for name in state if name in trained}
        alive = {name: mask.to(job.device) for name, mask in job.masks.items() if name in trained}
        self.fixed = {name: tensor for name, tensor in state.items() if name not in trained}
        self.fast = job.device.type == "cuda"
        super().__init__(job, model, params, alive, carry.stacked(job.optimizer_state, job.optimizer), self.fast)
        self.stream = torch.cuda.Stream(job.device) if self.fast else None
        self.graphs: dict[int, Graph] = {}  # by batch size
        self.seen: Counter[int] = Counter()  # steps by batch size
        self.no_graph = "" if self.fast else "not on a GPU"  # why steps are not captured

    def untrained(self) -> TensorDict:
        """Buffers and fixed parameters, which vmap changes in place."""
        return self.fixed

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of each replica, (R,), by one vectorised forward pass."""
        batch = [data.index_select(0, rows.flatten()).unflatten(0, rows.shape) for data in (self.x, self.y)]
        losses: Tensor = vmap(self._one, randomness="error")(self.params, self.fixed, self.key, *batch)
        return losses

    def _one(self, params: TensorDict, fixed: TensorDict, key: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with Swap(key, self.count, self.fast):
            return self.job.loss(functional_call(self.model, (params, fixed), (x,)), y)

    def step(self, rows: Tensor) -> None:
        """Take one optimizer step with all replicas, from a CUDA graph once one is captured for this batch size."""
        size = rows.shape[1]
        self.seen[size] += 1
        if size not in self.graphs and self.seen[size] > _WARM and not self.no_graph:
            self._capture(rows)
        if size in self.graphs:
            self.graphs[size].replay(rows, self.params)
        else:
            super().step(rows)

    def _capture(self, rows: Tensor) -> None:
        graph, static = torch.cuda.CUDAGraph(), rows.clone()
        pool = next(iter(self.graphs.values())).graph.pool() if self.graphs else None
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                super().step(static)
        except RuntimeError as error:
            self.no_graph = str(error).splitlines()[0]
            self.how = f"vmap, without a CUDA graph: {self.no_graph}"
            return
        self.how = "vmap, in a CUDA graph"
        grads = {name: param.grad for name, param in self.params.items()}
        self.graphs[rows.shape[1]] = Graph(graph, static, grads)

    def estimate(self, estimator: Online, state: State) -> Estimates:
        """What the estimator says of all replicas."""
        return estimates.of_replicas(estimator, state, self.params, self.alive, self.optimizer)

    def stacked(self, tensors: TensorDict) -> TensorDict:
        """The tensors, which have rows already; only the optimizer's step counts are repeated for each replica."""
        return {name: t if t.dim() else t.repeat(len(self.job.seeds)) for name, t in tensors.items()}

    def context(self) -> AbstractContextManager[Any]:
        """On a GPU a stream of its own: capturing needs one, and what is captured must have run there before."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.job.device))
        return torch.cuda.stream(self.stream)


class Graph(NamedTuple):
    """A captured step: the graph, the tensor that it reads its rows from, and the gradients that it fills."""

    graph: Any
    rows: Tensor
    grads: dict[str, Tensor | None]

    def replay(self, rows: Tensor, params: TensorDict) -> None:
        """Take the step with these rows, and leave its gradients at the parameters."""
        self.rows.copy_(rows)
        self.graph.replay()
        for name, grad in self.grads.items():
            params[name].grad = grad
