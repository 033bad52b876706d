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
