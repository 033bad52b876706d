"""Sigma of a weight from all inputs of its layer together: the layer-wise Wald statistic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.inputs import rows_met
from prunewald.model.masking import Masks, living
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.layer_least_squares import inputs_read, to_spread
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.arguments import real
from prunewald.util.registry import uncertainty

_PIECE = 1 << 24  # entries of the inputs of positions that are made at a time


@uncertainty("layer-gram")
@dataclass(frozen=True)
class LayerGram(Offline):
    """sigma_j = s sqrt([G^-1]_jj), G = Σ x x' over the inputs x that a row of the weight multiplies.

    It is the standard error of a layer's weights in a least-squares fit of the layer's own output, correlations between
    the inputs and a bias, where there is one, taken into account: w_j² / [G^-1]_jj is what the layer's squared error
    rises by when w_j goes and all others of its row are fitted anew (Optimal Brain Surgeon). `damping` adds a share of
    its mean to the diagonal of G. s, the layers it is for, and what it says of weights that are pruned or meet nothing,
    are those of LayerLeastSquares, which has the diagonal of G only; pruned weights count as if they were free. G is
    held in float64 for every layer: 8 d² bytes for d inputs.
    """

    damping: float = 0.01

    def __post_init__(self) -> None:
        real("damping", self.damping, above=0)

    def estimate(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None = None,
        *,
        masks: Masks | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> dict[str, Tensor]:
        """Sigma of the weights of every linear and convolutional layer; infinite where pruned or never met.

        No loss is wanted, and the targets in `batches` play no part; positions that are padding do not count.
        """
        sums: dict[str, Tensor] = {}
        fitted: dict[str, bool] = {}

        def read(name: str, module: Any, args: Any, kwargs: Any) -> None:
            fitted[name] = module.bias is not None
            for rows in _pieces(module, args, kwargs):
                x = torch.cat([rows.double(), rows.new_ones(*rows.shape[:2], 1, dtype=torch.float64)], 2)
                sums[name] = sums.get(name, 0) + x.mT @ x

        params = inputs_read(model, batches, read, limit=limit, progress=progress)
        alive = living(model, masks)
        return {
            name: to_spread(self._sigma(gram, fitted[name], params[name]), params[name], alive[name])
            for name, gram in sums.items()
        }

    def _sigma(self, gram: Tensor, bias: bool, weight: Tensor) -> Tensor:
        """The roots of the diagonal of the inverse of each group's matrix, as the weight has them."""
        inputs = gram[:, :-1, :-1]
        met = inputs.diagonal(dim1=1, dim2=2) > 0
        lift = self.damping * inputs.diagonal(dim1=1, dim2=2).mean(1)
        if bias:  # a weight is told by what its input varies by, since the bias takes the mean
            sums = gram[:, :-1, -1]
            inputs = inputs - sums.unsqueeze(2) * sums.unsqueeze(1) / gram[:, -1:, -1:]
        lifted = inputs + torch.diag_embed(lift.unsqueeze(1).expand_as(met).clamp(min=torch.finfo(lift.dtype).tiny))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(lifted))
        sigma = inverse.diagonal(dim1=1, dim2=2).sqrt().masked_fill(~met, torch.inf)
        shaped: Tensor = sigma.unflatten(1, weight.shape[1:])
        return shaped.repeat_interleave(len(weight) // len(gram), 0)


def _pieces(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The inputs of a call, by so many examples that the positions of a convolution fit in memory."""
    if isinstance(module, nn.Linear):
        yield rows_met(module, args, kwargs)
        return
    x = args[0] if args else kwargs["input"]
    x = x if x.dim() == len(module.kernel_size) + 2 else x.unsqueeze(0)
    if len(x):
        one = rows_met(module, (x[:1],), {})
        for part in x.split(max(1, _PIECE // one.numel())):
            yield rows_met(module, (part,), {})
