"""`Result`: the replicas that were trained, and what was collected of them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from prunewald.core.base import Estimate
from prunewald.ensemble import carry, evaluation
from prunewald.ensemble.estimates import Estimates, merged
from prunewald.ensemble.evaluation import EvaluationOptions, Metric, correct
from prunewald.ensemble.job import TensorDict
from prunewald.ensemble.replicas import Make, build, tensors


@dataclass(frozen=True)
class Result:
    """Trained replicas, on the CPU. Row r of every tensor belongs to seeds[r].

    - `params`, `buffers`: by name, (R, ...).
    - `losses`: (R, epochs), the mean loss over the samples of each epoch, each at the step in which it was seen.
    - `second_moment`: the optimizer's mean squared gradient by parameter name, unbiased; empty for SGD.
    - `estimates`: for each estimator in `collect` its sigma and its dead weights by parameter name.
    - `how`: in which way they were trained, and if by a plain loop, why.
    - `optimizer_state`: by parameter name, then by torch's key; empty without keep_optimizer=True.
    """

    make: Make = field(repr=False)
    seeds: tuple[int, ...]
    params: TensorDict = field(repr=False)
    buffers: TensorDict = field(repr=False)
    losses: Tensor = field(repr=False)
    second_moment: TensorDict = field(repr=False)
    estimates: tuple[Estimates, ...] = field(repr=False)
    how: str
    optimizer_state: dict[str, TensorDict] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def sigma(self) -> TensorDict:
        """The sigma of each weight by parameter name, (R, ...), from the first estimator in `collect`."""
        return {name: estimate.sigma for name, estimate in self._first().items()}

    @property
    def dead(self) -> dict[str, Tensor | None]:
        """Where no gradient arrived, by parameter name, (R, ...), from the first in `collect`; None where unknown."""
        return {name: estimate.dead for name, estimate in self._first().items()}

    def _first(self) -> Estimates:
        if not self.estimates:
            raise ValueError("nothing was collected: call train_many(..., collect=PseudoBootstrap(last=200))")
        return self.estimates[0]

    @property
    def state(self) -> TensorDict:
        """Parameters and buffers by name, (R, ...): what `evaluate` takes, and `start=` for a new optimizer."""
        return {**self.params, **self.buffers}

    def rows(self, index: Sequence[int] | Tensor, seeds: Sequence[int] | None = None) -> "Result":
        """Some of the replicas, in the order of `index`, which may repeat one: what a next training can start from.

        They keep their seeds, unless `seeds` gives them new ones.
        """
        at = torch.as_tensor(index, dtype=torch.long, device="cpu")
        if bad := [r for r in at.tolist() if not -len(self) <= r < len(self)]:
            raise IndexError(f"row {bad[0]}: there are {len(self)} replicas")
        if seeds is not None and len(seeds) != len(at):
            raise ValueError(f"seeds: {len(seeds)} for {len(at)} replicas: give one for each")
        return replace(
            self,
            seeds=tuple(self.seeds[r] for r in at.tolist()) if seeds is None else tuple(seeds),
            params=_rows(self.params, at),
            buffers=_rows(self.buffers, at),
            losses=self.losses[at],
            second_moment=_rows(self.second_moment, at),
            estimates=tuple({name: _estimate_rows(e, at) for name, e in table.items()} for table in self.estimates),
            optimizer_state={name: _rows(table, at) for name, table in self.optimizer_state.items()},
        )

    def accuracy(self, x: Tensor, y: Tensor, **options: Unpack[EvaluationOptions]) -> Tensor:
        """The share of samples that each replica gets right, (R,); with the options of `evaluate`."""
        return evaluation.accuracies(self.make, self.state, x, y, **options)

    def evaluate(self, x: Tensor, y: Tensor, metric: Metric = correct, **options: Unpack[EvaluationOptions]) -> Tensor:
        """A metric of each replica and sample, (R, N); with the options of `evaluate`."""
        return evaluation.evaluate(self.make, self.state, x, y, metric, **options)

    def module(self, replica: int) -> nn.Module:
        """One replica as an ordinary model."""
        seed = self.seeds[replica]
        model = copy.deepcopy(self.make) if isinstance(self.make, nn.Module) else build(self.make, seed)
        own = tensors(model)
        with torch.no_grad():
            for name, tensor in self.state.items():
                own[name].copy_(tensor[replica])
        return model


def joined(results: Sequence[Result]) -> Result:
    """The results of several groups of replicas as one."""
    first = results[0]
    if len(results) == 1:
        return first
    sizes = [len(result) for result in results]
    return Result(
        make=first.make,
        seeds=tuple(seed for result in results for seed in result.seeds),
        params=_joined([result.params for result in results]),
        buffers=_joined([result.buffers for result in results]),
        losses=torch.cat([result.losses for result in results]),
        second_moment=carry.joined_rows([result.second_moment for result in results], sizes),
        estimates=tuple(_joined_estimates(each) for each in zip(*(r.estimates for r in results), strict=True)),
        how=first.how,
        optimizer_state=carry.joined([result.optimizer_state for result in results], sizes),
    )


def _rows(table: TensorDict, at: Tensor) -> TensorDict:
    return {name: tensor[at] for name, tensor in table.items()}


def _estimate_rows(estimate: Estimate, at: Tensor) -> Estimate:
    return Estimate(estimate.sigma[at], None if estimate.dead is None else estimate.dead[at])


def _joined(tables: Sequence[TensorDict]) -> TensorDict:
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def _joined_estimates(tables: Sequence[Estimates]) -> Estimates:
    return {name: merged([table[name] for table in tables], torch.cat) for name in tables[0]}
