"""The paper's pseudo bootstrap: the standard deviation of each weight over the last B optimizer steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import PATIENCE, Estimate, Online, State, Weights
from prunewald.core.weights import Weight
from prunewald.model.optimizers import master, step_taken
from prunewald.uncertainty.streaming import collect_, merged, new_block, shift_to_, unmoved
from prunewald.util.arguments import whole
from prunewald.util.notices import warn
from prunewald.util.registry import brief, uncertainty


@uncertainty("pseudo-bootstrap", "pseudo")
@dataclass(frozen=True)
class PseudoBootstrap(Online):
    """std of each weight over the last `last` steps.  Ko, Oehmcke & Gieseke (2019), Algorithm 1.

    - `last=B, total_steps=N`: exactly steps N - B + 1 to N, counted from attaching and anew from each prune().
    - `last=B` alone, for training of unknown length: a rolling window, its length right to 10 %, kept in sub-blocks.
    - `every=k`: only each k-th step, over the whole training, or the last B of those if `last` is given too.

    Three float32 vectors of the tracked weights; the rolling window takes 13 (15 where a fused optimizer may skip
    steps, as under GradScaler).
    `compiled=True` fuses the update by torch.compile (on a CPU this needs a C++ compiler).
    """

    last: int | None = None
    every: int | None = None
    total_steps: int | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.last is None and self.every is None:
            object.__setattr__(self, "last", 200)
        for name, value, least in (
            ("last", self.last, 2),
            ("every", self.every, 1),
            ("total_steps", self.total_steps, 2),
        ):
            if value is not None:
                whole(name, value, least)
        steps = (self.last or 2) * (self.every or 1)
        if self.total_steps is not None and steps > self.total_steps:
            raise ValueError(
                f"{brief(self)} looks at {steps} steps, but total_steps={self.total_steps!r}: "
                "lower `last` or `every`, or train for longer"
            )

    def init(self, weights: Weights) -> State:
        """Nothing is stored until the window begins."""
        return {"calls": 0, "step": 0, "shift": {}, "blocks": []}

    def init_marked(self, weights: Weights) -> State:
        """Blocks are marked with where a gradient arrived."""
        return {**self.init(weights), "marked": True}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Take in the weights after one step."""
        took = step_taken(optimizer)
        state["calls"] += 1
        state["step"] = state["step"] + (1 if took is None else took)
        # `step` lives on the device where steps may be skipped; `calls` bounds it from above without waiting for it.
        due = self._due(state["step"]) if isinstance(state["step"], int) else self._due_on_device(state, took)
        if due is False:
            return
        snapshot = {name: master(optimizer, weight) for name, weight in weights.items()}
        block = self._block(state, snapshot)
        grads = {name: weight.grad for name, weight in weights.items()}
        collect_(state["shift"], block, snapshot, grads, None if due is True else due, self.compiled)
        block["seen"] += self.every or 1 if due is True else 1
        self._forget_oldest(state["blocks"])

    def _due(self, step: Any) -> Any:
        """Whether a step is recorded; works on ints and on tensors alike."""
        every = self.every or 1
        if self.total_steps is None:
            return step % every == 0
        left = self.total_steps - step
        inside = left >= 0 if self.last is None else (left >= 0) & (left < self.last * every)
        return inside & (left % every == 0)

    def _due_on_device(self, state: State, took: Tensor | None) -> Tensor | bool:
        first = 0 if self.total_steps is None or self.last is None else self.total_steps - self.last * (self.every or 1)
        if state["calls"] <= first:
            return False
        due: Tensor = self._due(state["step"])
        return due.long() if took is None else due * took

    @property
    def _block_length(self) -> int | None:
        """A rolling window is made of blocks, of a length that leaves it right to 10 %; else it is one block."""
        return None if self.last is None or self.total_steps is not None else 2 * (self.last // 10) + 1

    def _block(self, state: State, snapshot: Mapping[str, Tensor]) -> State:
        """The block to add to: a new one at the start and whenever the last one has seen its share of steps."""
        blocks: list[State] = state["blocks"]
        full = math.inf if self._block_length is None else self._block_length * (self.every or 1)
        if not blocks or blocks[-1]["seen"] >= full:
            shift_to_(state["shift"], blocks, snapshot)
            blocks.append({"seen": 0, **new_block(snapshot, self._block_length == 1, state.get("marked", False))})
        return blocks[-1]

    def _forget_oldest(self, blocks: list[State]) -> None:
        """Drop the oldest block once the window is nearer to its length without it."""
        # A count on the device is not waited for: steps may have been skipped, so one block more is kept.
        spare = isinstance(blocks[-1]["count"], Tensor)
        if self._too_long([block["seen"] for block in blocks[spare:]], self.every or 1):
            del blocks[0]

    def _too_long(self, lengths: list[int], scale: int) -> bool:
        if self._block_length is None or self.last is None or not lengths:
            return False
        return 2 * sum(lengths) - lengths[0] > 2 * self.last * scale

    def _window(self, state: State) -> list[State]:
        """The blocks that make up the window, by what they really hold."""
        blocks = [block for block in state["blocks"] if int(block["count"])]
        while self._too_long([int(block["count"]) for block in blocks], 1):
            del blocks[0]
        return blocks

    def check(self, state: State, weights: Weights) -> None:
        """Two snapshots are needed; a window that is not the one asked for is a warning."""
        count, step = sum(int(block["count"]) for block in self._window(state)), int(state["step"])
        if count < 2:
            raise ValueError(
                f"{brief(self)} has {count} snapshot(s) after {step} step(s) since it was attached or last pruned, and "
                "needs two: train on before prune(), or correct total_steps"
            )
        if self.total_steps is not None and step != self.total_steps:
            warn(f"prune() at step {step}, but total_steps={self.total_steps}: sigma is over {count} snapshots")
        elif self.last is not None and count < (self.last if self._block_length is None else 0.9 * self.last):
            warn(f"sigma is over {count} snapshots, fewer than last={self.last}")

    @property
    def least(self) -> int:
        """Two snapshots make a standard deviation."""
        return 2 * (self.every or 1)

    @property
    def patience(self) -> int:
        """The whole window, at least."""
        return max(PATIENCE, (self.last or 0) * (self.every or 1))

    @property
    def horizon(self) -> int | None:
        """Where the fixed window ends."""
        return self.total_steps

    def with_horizon(self, steps: int | None) -> Self:
        """With the fixed window that ends at step `steps`, or with None the rolling one."""
        return replace(self, total_steps=steps)

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The standard deviation over the window, with n - 1."""
        blocks = self._window(state)
        count, m2 = merged(blocks, weight.name)
        return Estimate((m2 / (count - 1)).sqrt_().to(weight.param.device), unmoved(blocks, weight))

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """As for a single model, since a weight's deviation depends on that weight alone."""
        return self.sigma(state, weight, optimizer)
