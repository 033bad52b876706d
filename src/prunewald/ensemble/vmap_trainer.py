"""Many replicas in one step: vmap over stacked weights, one optimizer, and on a GPU one CUDA graph a step."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from prunewald.ensemble import carry, estimates
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.start import initial, ready_model
from prunewald.ensemble.swap import Swap
from prunewald.ensemble.trainer import Trainer
from prunewald.uncertainty import Online
from prunewald.uncertainty.base import State

_WARM = 3  # steps of a batch size before it is captured: libraries set themselves up in the first ones


class VmapTrainer(Trainer):
    """Replicas as rows of stacked tensors."""

    how = "vmap"

    def __init__(self, job: Job) -> None:
        model = ready_model(job)
        state = initial(job)
        trained = {name for name, param in model.named_parameters() if param.requires_grad}
        params = {name: state[name].contiguous().requires_grad_() for name in state if name in trained}
        fixed = {name: tensor for name, tensor in state.items() if name not in trained}
        alive = {name: mask.to(job.device) for name, mask in job.masks.items() if name in trained}
        cuda = job.device.type == "cuda"
        carried = carry.stacked(job.optimizer_state, job.optimizer)
        super().__init__(job, model, params, fixed, alive, carried, fast=cuda)
        self.fast = cuda
        self.stream = torch.cuda.Stream(job.device) if cuda else None
        self.graphs: dict[int, Graph] = {}
        self.seen: Counter[int] = Counter()
        self.no_graph = "" if cuda else "not on a GPU"

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of each replica."""
        batch = [data.index_select(0, rows.flatten()).unflatten(0, rows.shape) for data in (self.x, self.y)]
        losses: Tensor = vmap(self._one, randomness="error")(self.params, self.fixed, self.key, *batch)
        return losses

    def _one(self, params: TensorDict, fixed: TensorDict, key: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with Swap(key, self.count, self.fast):
            return self.job.loss(functional_call(self.model, (params, fixed), (x,)), y)

    def step(self, rows: Tensor) -> None:
        """One optimizer step of all, replayed from a CUDA graph once its batch size is known."""
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

    def begin(self, epoch: int) -> None:
        """Nothing: noise that is not drawn here is an error under vmap."""

    def estimate(self, recipe: Online, state: State) -> Estimates:
        """Of all at once."""
        return estimates.of_replicas(recipe, state, self.params, self.alive, self.optimizer)

    def stacked(self, table: TensorDict) -> TensorDict:
        """They are, but for the step counts of the optimizer."""
        return {name: t if t.dim() else t.repeat(len(self.job.seeds)) for name, t in table.items()}

    def context(self) -> AbstractContextManager[Any]:
        """Capturing needs a stream of its own, and what is captured must have run there."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.job.device))
        return torch.cuda.stream(self.stream)


class Graph(NamedTuple):
    """A captured step: where it reads its rows, and where it leaves its gradients."""

    graph: Any
    rows: Tensor
    grads: dict[str, Tensor | None]

    def replay(self, rows: Tensor, params: TensorDict) -> None:
        """Take the step with these rows."""
        self.rows.copy_(rows)
        self.graph.replay()
        for name, grad in self.grads.items():
            params[name].grad = grad
