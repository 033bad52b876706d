"""Models whose units are masked by hand, and what is compared of them."""

import torch
from torch import nn

from prunewald.model.flow import tensors
from prunewald.model.graph import find_groups, run


def zero_units(model: nn.Module, x, share=0.5, *, beside=True, only=None):
    """Set the first units of each group to zero: what makes them, and with `beside` what goes along."""
    params = dict(model.named_parameters())
    with torch.no_grad():
        for group in find_groups(model, x):
            if only is not None and group.name not in only:
                continue
            for member in group.members:
                if member.name in params and (member.role == "makes" or (beside and member.role == "beside")):
                    at = member.at[: int(group.units * share)].flatten()
                    params[member.name].index_fill_(member.axis, at, 0.0)
    return model


def outputs(model, x):
    return tensors(run(model, x))


def assert_same(a, b):
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def count(model):
    return sum(p.numel() for p in model.parameters())
