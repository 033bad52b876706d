"""Optimal Brain Surgeon: each weight that goes is made up for by all that stay.  Hassibi & Stork (1993)."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.core.allocation import Layer, Row
from prunewald.core.patterns import Element
from prunewald.core.ranking import Ranked
from prunewald.model.modules import evaluating
from prunewald.model.slices import Slice, layer_of
from prunewald.pruner import Pruner
from prunewald.pruning.plan import Sparsity
from prunewald.pruning.report import Report, TensorReport
from prunewald.strategies.checks import check_pruner
from prunewald.uncertainty.analytic import by_block
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.curvature import Problem, pose
from prunewald.uncertainty.information import BlockMatrices
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.arguments import real
from prunewald.util.registry import name_of

MOST = 5_000  # parameters whose inverse Hessian is held and changed for each weight that goes


class _Pool(NamedTuple):
    """Weights that compete with each other, and how many of them go."""

    places: Tensor
    gone: int


def optimal_brain_surgeon(
    pruner: Pruner, batches: Batches, loss: Loss, sparsity: Sparsity, *, damping: float = 0.1
) -> Report:
    """Prune one weight after the other, the cheapest, and move all others to where the loss is lowest.

    Weight j costs w_j² / (2 [H^-1]_jj), and the others move by -w_j / [H^-1]_jj · H^-1 e_j: exact where the loss is
    quadratic and the model at its minimum. H is the Fisher information about all parameters that take gradients, biases
    too, on these `batches`; `damping` adds a share of itself to each entry of its diagonal (0: none), since steps along
    what the data hardly tell are too long otherwise. What no gradient reaches goes first. H is computed once a call:
    call it with rising sparsities to have it anew.

    Each target loses as many weights as the Pruner's `scope` says; with "global" one order decides over all, but where
    `sparsity` is a dict, what it names has its own count and the rest loses none. For models of up to 5,000 parameters.
    On any error the model is as it was.
    """
    _check(pruner, damping)
    _, asked = pruner.choose(sparsity)
    before = pruner.masks
    with evaluating(pruner.model):
        problem = pose(pruner.model, batches, loss, before, passes=1)
        if (size := sum(int(alive.sum()) for alive in problem.alive.values())) > MOST:
            raise ValueError(
                f"{size:,} parameters: Optimal Brain Surgeon holds an inverse Hessian of up to {MOST:,}; "
                "criterion='wald' with FisherDiagonal() has its order by the diagonal, for models of any size"
            )
        if fixed := [name for name in before if name not in problem.alive]:
            raise ValueError(f"{fixed[0]!r} does not require gradients, so nothing tells its loss: ignore={fixed[0]!r}")
        (block,) = by_block(problem, observed=False)
    point = torch.cat([param[problem.alive[name]].double() for name, param in problem.params.items()])
    pools = _pools(pruner, asked, _places(problem), by_name=isinstance(sparsity, Mapping))
    removed = _remove_(point, _inverse(block, damping), block.told, pools)
    sizes = [int(alive.sum()) for alive in problem.alive.values()]
    masks = pruner.masks
    for (name, alive), gone in zip(problem.alive.items(), removed.split(sizes), strict=True):
        if name in masks:
            masks[name][alive] = ~gone
    report = _report(pruner, masks, asked.scope)
    with torch.no_grad():
        for (name, alive), values in zip(problem.alive.items(), point.split(sizes), strict=True):
            param = pruner.model.get_parameter(name)
            param[alive] = values.to(param)
    pruner.set_masks(masks)
    pruner.report = report
    return report


def _check(pruner: Pruner, damping: float) -> None:
    check_pruner(pruner)
    real("damping", damping, least=0)
    if pruner.at_work:
        raise ValueError(f"this Pruner is in the middle of a {pruner.at_work}: finish it, or make a new Pruner")
    if not pruner.pattern.single or isinstance(pruner.scope, Row):
        scope = "" if pruner.scope is None else f" and scope={name_of('scope', pruner.scope)!r}"
        raise ValueError(
            "Optimal Brain Surgeon takes single weights of whole tensors, and this Pruner has "
            f"{pruner.pattern!r}{scope}: use pattern='element' and scope='layer'"
        )


def _inverse(block: BlockMatrices, damping: float) -> Tensor:
    """The inverse of the Hessian; of the identity for what the data tell nothing of."""
    found = block.spectrum.inverted("damped" if damping else "inverse", damping).whole()
    if bool(found.isnan().any()):
        raise ValueError(
            f"the information about {int(block.told.sum()):,} parameters is singular (rank {block.spectrum.rank:,}): "
            "give a damping, such as damping=0.1"
        )
    inverse = torch.eye(len(block.told), dtype=found.dtype, device=found.device)
    told = block.told.nonzero()[:, 0]
    inverse[told[:, None], told] = found
    return inverse


def _places(problem: Problem) -> dict[str, Tensor]:
    """For each parameter, where its entries are among all that are alive; -1 where they are not."""
    places, start = {}, 0
    for name, alive in problem.alive.items():
        places[name] = torch.full(alive.shape, -1, device=alive.device)
        count = int(alive.sum())
        places[name][alive] = torch.arange(start, start + count, device=alive.device)
        start += count
    return places


def _pools(pruner: Pruner, asked: Report, places: dict[str, Tensor], *, by_name: bool) -> list[_Pool]:
    """Which weights compete, and how many of them are to go: by the Pruner's scope, or each target `by_name`."""
    scope = pruner.scope or Layer()  # by default each tensor has its own count

    def group(part: Slice) -> str:
        if by_name:  # each has its own share, and what is not named loses nothing
            return part.name
        return "" if scope.together else layer_of(part) if scope.whole_layers else part.name

    pools: dict[str, _Pool] = {}
    for part, row in zip(pruner.slices, asked.rows, strict=True):
        own = part.take(places[part.param]).flatten()
        own = own[own >= 0]
        old = pools.get(group(part), _Pool(own[:0], 0))
        pools[group(part)] = _Pool(torch.cat([old.places, own]), old.gone + len(own) - row.kept)
    return list(pools.values())


def _remove_(point: Tensor, inverse: Tensor, told: Tensor, pools: Sequence[_Pool]) -> Tensor:
    """Take away one weight after the other, and move the point and the inverse Hessian along; True where one went."""
    removed, left = torch.zeros_like(told), [pool.gone for pool in pools]
    pool_of = torch.full(told.shape, len(pools), device=told.device)
    for at, pool in enumerate(pools):
        pool_of[pool.places] = at
    closed = torch.tensor([not gone for gone in left] + [True], device=told.device)
    for _ in range(sum(left)):
        saliency = point.square() / (2 * inverse.diagonal().clamp(min=torch.finfo(point.dtype).tiny))
        # What the data tell nothing of costs nothing: it goes first, in the order of |w|.
        order = torch.where(told, saliency, -1 / (1 + point.abs()))
        at = int(order.masked_fill_(removed | closed[pool_of], torch.inf).argmin())
        column = inverse[:, at].clone()
        point -= column * (point[at] / column[at])
        inverse.addr_(column, column, alpha=-1 / float(column[at]))
        inverse[at, :] = inverse[:, at] = point[at] = 0.0
        removed[at] = True
        left[int(pool_of[at])] -= 1
        closed[pool_of[at]] = left[int(pool_of[at])] == 0
    return removed


def _report(pruner: Pruner, masks: Mapping[str, Tensor], scope: str) -> Report:
    """What these masks are; before anything is moved, so that magnitudes are those that there were."""
    rows, weights, before = [], pruner.targets(), pruner.masks
    for part in pruner.slices:
        keep, weight = part.take(masks[part.param]), weights[part.name].detach()
        ranked, kept = Ranked(weight.abs(), weight).by_magnitude(part.take(before[part.param])), int(keep.sum())
        overlap = int((Element()(ranked, kept) & keep).sum()) / max(kept, 1)
        rows.append(TensorReport(part.name, tuple(keep.shape), keep.numel(), kept, None, None, math.nan, overlap))
    return Report(rows, "OptimalBrainSurgeon()", "", scope)
