"""What was trained."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from prunewald.ensemble.job import Make, Table, build
from prunewald.uncertainty import Estimate


@dataclass(frozen=True)
class Result:
    """Trained replicas, on the CPU; row r of every tensor belongs to seeds[r]."""

    make: Make = field(repr=False)
    seeds: tuple[int, ...]
    params: Table = field(repr=False)
    buffers: Table = field(repr=False)
    losses: Tensor = field(repr=False)  # (R, epochs): the mean over each epoch's samples, as they were seen
    second_moment: Table = field(repr=False)  # the optimizer's mean squared gradient, unbiased; empty for SGD
    estimates: tuple[dict[str, Estimate], ...] = field(repr=False)  # one for each of `collect`
    how: str

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def sigma(self) -> Table:
        """Sigma by the first of `collect`, (R, ...)."""
        return {name: estimate.sigma for name, estimate in self._first().items()}

    @property
    def frozen(self) -> dict[str, Tensor | None]:
        """Where no gradient arrived, by the first of `collect`."""
        return {name: estimate.frozen for name, estimate in self._first().items()}

    def _first(self) -> dict[str, Estimate]:
        if not self.estimates:
            raise ValueError("nothing was collected: call train_many(..., collect=PseudoBootstrap(last=200))")
        return self.estimates[0]

    @property
    def state(self) -> Table:
        """Parameters and buffers: what `start=` takes to train on."""
        return {**self.params, **self.buffers}

    def module(self, replica: int) -> nn.Module:
        """One replica as an ordinary model."""
        seed = self.seeds[replica]
        model = copy.deepcopy(self.make) if isinstance(self.make, nn.Module) else build(self.make, seed)
        own = dict((*model.named_parameters(), *model.named_buffers()))
        with torch.no_grad():
            for name, tensor in self.state.items():
                own[name].copy_(tensor[replica])
        return model


def joined(results: Sequence[Result]) -> Result:
    """Results of different replicas as one."""
    first = results[0]
    if len(results) == 1:
        return first
    return Result(
        make=first.make,
        seeds=tuple(seed for result in results for seed in result.seeds),
        params=_joined([result.params for result in results]),
        buffers=_joined([result.buffers for result in results]),
        losses=torch.cat([result.losses for result in results]),
        second_moment=_joined([result.second_moment for result in results]),
        estimates=tuple(_joined_estimates(each) for each in zip(*(r.estimates for r in results), strict=True)),
        how=first.how,
    )


def _joined(tables: Sequence[Table]) -> Table:
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def _joined_estimates(parts: Sequence[dict[str, Estimate]]) -> dict[str, Estimate]:
    return {name: _joined_estimate([part[name] for part in parts]) for name in parts[0]}


def _joined_estimate(rows: Sequence[Estimate]) -> Estimate:
    frozen = [row.frozen for row in rows if row.frozen is not None]
    return Estimate(torch.cat([row.sigma for row in rows]), torch.cat(frozen) if len(frozen) == len(rows) else None)
