"""SparseGPT and Wanda as they were published, for one weight (rows, inputs): the papers' algorithms, line by line.

- SparseGPT: Frantar & Alistarh (2023), "SparseGPT: Massive language models can be accurately pruned in one-shot",
  Algorithm 1, with the settings of its experiments: 1 % of the mean diagonal as damping, blocks of 128 columns, a mask
  chosen for each block over all rows at once. Inputs that are always zero lose their weights.
- Wanda: Sun et al. (2024), "A simple and effective pruning approach for large language models": |w| ||x||, compared
  within each row.

A sparsity is the share of the weights that goes, the same in every block or row; (n, m) keeps n of each m neighbours.
"""

import torch
from torch import Tensor

Sparsity = float | tuple[int, int]


def sparsegpt(
    weight: Tensor, gram: Tensor, sparsity: Sparsity, *, percdamp: float = 0.01, blocksize: int = 128
) -> Tensor:
    """The pruned weight, the weights that are left moved to make up for the others; in float32 unless it is float64.

    `gram` is the sum, or the mean, of x x' over the inputs x of the layer.
    """
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    left, gram = weight.to(dtype, copy=True), gram.to(dtype, copy=True)
    _check(left, sparsity, blocksize)
    dead = gram.diagonal() == 0
    gram[dead, dead] = 1
    left[:, dead] = 0
    gram.diagonal().add_(percdamp * gram.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    upper = torch.linalg.cholesky(inverse, upper=True)
    for start in range(0, left.shape[1], blocksize):
        end = min(start + blocksize, left.shape[1])
        errors = _sweep_(left[:, start:end], upper[start:end, start:end], sparsity)
        left[:, end:] -= errors @ upper[start:end, end:]
    return left


def _sweep_(block: Tensor, upper: Tensor, sparsity: Sparsity) -> Tensor:
    """Go through the columns of a block from left to right; what each takes from all columns after the block."""
    errors = torch.zeros_like(block)
    gone = torch.zeros_like(block, dtype=torch.bool)
    if not isinstance(sparsity, tuple):
        gone = _least(block.square() / upper.diagonal().square(), sparsity)
    for at in range(block.shape[1]):
        if isinstance(sparsity, tuple) and at % sparsity[1] == 0:
            here = slice(at, at + sparsity[1])
            gone[:, here] = ~_best(block[:, here].square() / upper.diagonal()[here].square(), *sparsity)
        column = block[:, at]
        error = torch.where(gone[:, at], column, 0) / upper[at, at]
        block[:, at:] -= torch.outer(error, upper[at, at:])
        block[:, at].masked_fill_(gone[:, at], 0)
        errors[:, at] = error
    return errors


def wanda(weight: Tensor, norms: Tensor, sparsity: Sparsity) -> Tensor:
    """Which weights stay, True, given the norm of each input over the examples."""
    _check(weight, sparsity)
    scores = weight.abs() * norms
    if isinstance(sparsity, tuple):
        return _best(scores.unflatten(1, (-1, sparsity[1])), *sparsity).flatten(1)
    gone = int(weight.shape[1] * sparsity)
    places = scores.argsort(dim=1, stable=True)[:, :gone]
    return torch.ones_like(weight, dtype=torch.bool).scatter(1, places, False)


def _least(scores: Tensor, share: float) -> Tensor:
    """True at so large a share of all scores, the smallest."""
    places = scores.flatten().argsort(stable=True)[: int(scores.numel() * share)]
    gone = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    gone[places] = True
    return gone.view_as(scores)


def _best(scores: Tensor, n: int, m: int) -> Tensor:
    """True at the n largest of each group of m, the last dimension."""
    places = scores.topk(n, dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, places, True)


def _check(weight: Tensor, sparsity: Sparsity, blocksize: int = 0) -> None:
    if isinstance(sparsity, tuple):
        n, m = sparsity
        if not 0 < n <= m or weight.shape[1] % m or blocksize % m:
            raise ValueError(
                f"sparsity={sparsity} for a weight of {weight.shape[1]} columns: give (n, m), m dividing these"
            )
    elif not 0 <= sparsity < 1:
        raise ValueError(f"sparsity={sparsity}: give a share of at least 0 and below 1, or (n, m)")
