"""Regressions whose standard errors statsmodels knows."""

import numpy as np
import statsmodels.api as sm
import torch
from torch import nn

N, P = 300, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, P)) @ (np.eye(P) + 0.3)
TRUE = np.array([1.0, -0.5, 0.2, 0.0])
CONTINUOUS = X @ TRUE + 0.3 + RNG.normal(size=N) * (1 + abs(X[:, 0]))
BINARY = (RNG.random(N) < 1 / (1 + np.exp(-(X @ TRUE + 0.3)))).astype(float)


def linear(params):
    model = nn.Linear(P, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(params[1:])[None])
        model.bias.copy_(torch.tensor(params[:1]))
    return model


def batches(y, size=70):
    return list(zip(torch.tensor(X).split(size), torch.tensor(y)[:, None].split(size), strict=True))


def flat(sigmas):
    return np.concatenate([sigmas["bias"].numpy(), sigmas["weight"][0].numpy()])


def several(noises):
    """A linear model with several outputs, at its least squares, and statsmodels' fit of each output by itself."""
    rng = np.random.default_rng(2)
    targets = X @ rng.normal(size=(P, len(noises))) + rng.normal(size=(N, len(noises))) * noises
    fits = [sm.OLS(y, sm.add_constant(X)).fit() for y in targets.T]
    model = nn.Linear(P, len(noises)).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.stack([fit.params[1:] for fit in fits])))
        model.bias.copy_(torch.tensor([fit.params[0] for fit in fits]))
    return model, list(zip(torch.tensor(X).split(70), torch.tensor(targets).split(70), strict=True)), fits
