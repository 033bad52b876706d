<<<<<<< HEAD
"""Small trained-looking models, data of them, and a refit of one linear layer written out."""

import copy
import warnings

import torch
from torch import nn

import prunewald as pw


def mlp(seed=0, width=24):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def cnn(seed=0):
    """Convolutions without bias before a BatchNorm, and strided, grouped, dilated and transposed ones."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(8, 6, 2, dilation=2),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2, output_padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 5),
    )
    model[1].running_mean.uniform_(-0.5, 0.5)
    model[1].running_var.uniform_(0.5, 2.0)
    return model


def batches(*shape, count=6, size=50, seed=1):
    """Correlated inputs."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(shape[-1], shape[-1], generator=torch.Generator().manual_seed(7)) / shape[-1] ** 0.5
    return [torch.randn(size, *shape, generator=generator) @ mix + 0.2 for _ in range(count)]


def pruned(model, level=0.6, **choices):
    """A pruner of the model, and the dense model as it was."""
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model, **choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner.prune(level)
    return pruner, dense


def split(x, share=0.2):
    """Which examples of all batches in a row are fitted to, and which are held back: as the docs say, evenly spread."""
    ends = torch.floor(torch.arange(len(x) + 1, dtype=torch.float64) * share + 0.5)
    held = ends[1:] > ends[:-1]
    return x[~held], x[held]


def ridge_fit(x, y, weight, bias, mask, ridge):
    """The restricted ridge estimate of a linear layer, row by row, by stacked rows: the slow, obvious reference."""
    x, y = x.double(), y.double()
    strength = (ridge * x.square().mean(0).mean() * len(x)).sqrt()
    new, shift = weight.double().clone(), bias.double().clone()
    for row in range(len(weight)):
        at = mask[row].nonzero()[:, 0]
        if not len(at) and bias[row] == 0:
            continue
        ones = x.new_ones(len(x), 1)
        pull = torch.cat([strength * torch.eye(len(at), dtype=x.dtype), x.new_zeros(len(at), 1)], 1)
        matrix = torch.cat([torch.cat([x[:, at], ones], 1), pull])
        right = torch.cat([y[:, row], strength * weight[row, at].double()])
        solved = torch.linalg.lstsq(matrix, right[:, None], driver="gelsd").solution[:, 0]
        new[row, at], shift[row] = solved[:-1], solved[-1]
    return new.float(), shift.float()
=======
"""Layers whose least squares are hard in one way or another."""

import torch


def inputs(kind, n, width, seed=0):
    """Inputs of a layer: what a ReLU gives, or strongly correlated ones in units that differ by decades."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind == "relu":
        x = torch.relu(normal(n, width // 4) @ normal(width // 4, width) + 0.3 * normal(n, width))
        x[:, ::17] = 0  # units that are dead
        return x
    spectrum = torch.logspace(0, -4, width, dtype=torch.float64)
    x = (
        normal(n, width)
        @ (torch.linalg.qr(normal(width, width)).Q * spectrum)
        @ torch.linalg.qr(normal(width, width)).Q
    )
    return x * 10 ** (4 * torch.rand(width, generator=generator) - 2)


def pruned(x, rows, share, seed=0):
    """Dense weights and what Wanda leaves of them: a share, or with "2:4" two of each four."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, x.shape[1], generator=generator, dtype=torch.float64)
    scores = dense.abs() * x.norm(dim=0)
    if share == "2:4":
        groups = scores.unflatten(1, (-1, 4))
        return dense, (groups >= groups.topk(2, dim=-1).values[..., 1:]).flatten(1)
    return dense, scores >= scores.flatten().quantile(1 - share)
>>>>>>> solver
