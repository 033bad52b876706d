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
