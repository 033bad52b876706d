"""The transcriptions of SparseGPT and Wanda, against their formulas written out one weight at a time."""

import pytest
import torch
from benchmarks.published import sparsegpt, wanda


def layer(rows=6, width=16, n=100):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64), x.T @ x


def slow_sparsegpt(weight, gram, sparsity, blocksize):
    """Optimal Brain Surgeon among the columns that are not yet gone through, its inverse computed anew each time."""
    rows, width = weight.shape
    left = weight.clone()
    gram = gram + 0.01 * gram.diagonal().mean() * torch.eye(width)
    inverses = [torch.linalg.inv(gram[j:, j:]) for j in range(width)]
    keep = torch.ones(rows, width, dtype=torch.bool)

    def saliency(row, j):
        return float(left[row, j] ** 2 / inverses[j][0, 0])

    for j in range(width):
        if isinstance(sparsity, tuple):
            n, m = sparsity
            for row in range(rows) if j % m == 0 else ():
                for at in sorted(range(j, j + m), key=lambda k, row=row: saliency(row, k))[: m - n]:
                    keep[row, at] = False
        elif j % blocksize == 0:
            places = [(row, k) for row in range(rows) for k in range(j, min(width, j + blocksize))]
            for place in sorted(places, key=lambda p: saliency(*p))[: int(len(places) * sparsity)]:
                keep[place] = False
        for row in range(rows):
            if not keep[row, j]:
                left[row, j:] -= left[row, j] / inverses[j][0, 0] * inverses[j][0]
    return left * keep


@pytest.mark.parametrize("blocksize", [1, 3, 8, 128])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_sparsegpt_is_its_formula_column_by_column(sparsity, blocksize):
    weight, gram = layer()
    found = sparsegpt(weight, gram, sparsity, blocksize=blocksize)
    torch.testing.assert_close(found, slow_sparsegpt(weight, gram, sparsity, blocksize), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("pattern", [(2, 4), (1, 4), (4, 8)])
@pytest.mark.parametrize("blocksize", [8, 128])
def test_sparsegpt_keeps_n_of_m(pattern, blocksize):
    weight, gram = layer()
    found = sparsegpt(weight, gram, pattern, blocksize=blocksize)
    torch.testing.assert_close(found, slow_sparsegpt(weight, gram, pattern, blocksize), rtol=1e-8, atol=1e-8)
    assert bool(((found != 0).unflatten(1, (-1, pattern[1])).sum(-1) == pattern[0]).all())


def test_sparsegpt_removes_the_weights_of_inputs_that_are_always_zero_and_leaves_what_it_was_given():
    weight, gram = layer()
    gram[3], gram[:, 3] = 0, 0
    before = weight.clone(), gram.clone()
    assert not sparsegpt(weight, gram, 0.25)[:, 3].any()
    assert torch.equal(weight, before[0])
    assert torch.equal(gram, before[1])
    assert sparsegpt(weight.bfloat16(), gram, 0.5).dtype == torch.float32


def test_wanda_compares_within_each_row():
    weight, gram = layer()
    norms = gram.diagonal().sqrt()
    keep = wanda(weight, norms, 0.3)
    assert (~keep).sum(1).tolist() == [4] * 6  # 30 % of 16, rounded down
    for scores, row in zip(weight.abs() * norms, keep, strict=True):
        assert scores[~row].max() < scores[row].min()


def test_wanda_keeps_n_of_m():
    weight, gram = layer()
    scores = (weight.abs() * gram.diagonal().sqrt()).view(6, 4, 4)
    keep = wanda(weight, gram.diagonal().sqrt(), (2, 4)).view(6, 4, 4)
    assert torch.equal(keep, scores >= scores.sort(-1).values[..., 2:3])


@pytest.mark.parametrize("sparsity", [1.0, -0.1, (3, 2), (2, 5)])
def test_a_sparsity_that_cannot_be_is_refused(sparsity):
    weight, gram = layer()
    with pytest.raises(ValueError, match="sparsity="):
        sparsegpt(weight, gram, sparsity)
