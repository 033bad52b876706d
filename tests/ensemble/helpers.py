"""Small networks and their data, and the reference: one model, torch.optim, a plain loop."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, Adam, AdamW, RMSprop, draws, train_many

SEEDS = (3, 11, 4)
N, BATCH, EPOCHS = 70, 16, 10  # 5 batches of 14: 50 steps

RECIPES = [
    SGD(lr=0.1),
    SGD(lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    RMSprop(lr=1e-3),
    RMSprop(lr=1e-3, momentum=0.9, centered=True, weight_decay=0.01),
    Adam(lr=3e-3),
    Adam(lr=3e-3, amsgrad=True, weight_decay=0.01),
    AdamW(lr=3e-3, weight_decay=0.1),
]


class Net(nn.Module):
    """A small network; the dead unit gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.fc = nn.Linear(3 * 3 * 3, 8)
        self.out = nn.Linear(8, 4)
        self.double()
        nn.init.constant_(self.fc.bias[:1], -100)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv(x), 2)).flatten(1)
        out: Tensor = self.out(F.relu(self.fc(x)))
        return out


def data() -> tuple[Tensor, Tensor]:
    """Images for `Net`."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(N, 1, 6, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (N,), generator=g)


def plain(seed, recipe, *, sample=None, masks=None, start=None, estimator=None):
    """The reference: one model, torch.optim, a loop."""
    x, y = data()
    torch.manual_seed(seed)
    model = Net()
    if start:
        model.load_state_dict(start)
    params = dict(model.named_parameters())
    masks = masks or {}
    for name, mask in masks.items():
        params[name].data *= mask
    kind = getattr(torch.optim, type(recipe).__name__)
    optimizer = kind(model.parameters(), **vars(recipe))
    state = estimator.init_marked(params) if estimator else None
    sample = torch.arange(N) if sample is None else sample
    losses = []
    for epoch in range(EPOCHS):
        order = draws.order([seed], len(sample), epoch)[0]
        total = 0.0
        for at in torch.tensor_split(order, math.ceil(len(sample) / BATCH)):
            rows = sample[at]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            for name, mask in masks.items():
                params[name].grad *= mask
            optimizer.step()
            total += loss.item() * len(rows)
            if estimator:
                estimator.update_(state, params, optimizer)
        losses.append(total / len(sample))
    return model, optimizer, state, losses


def many(recipe, how="vmap", **options):
    """Replicas of `Net`."""
    options = {"make_model": Net, "seeds": SEEDS, "epochs": EPOCHS, "batch_size": BATCH, "progress": False} | options
    x, y = data()
    return train_many(x=x, y=y, optimizer=recipe, how=how, **options)


def close(a, b):
    """The same up to rounding."""
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)


# A second network, with dropout, for what does not need the reference above.

DROPPING_SEEDS = (5, 0, 2**40 + 5, 7)


def dropping_net() -> nn.Module:
    """A network with both kinds of dropout."""
    return nn.Sequential(
        nn.Conv1d(2, 3, 3),
        nn.Dropout1d(0.2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.Dropout(0.3),
        nn.Linear(6, 3),
    ).double()


def sequences() -> tuple[Tensor, Tensor]:
    """Sequences for `dropping_net`."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(50, 2, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (50,), generator=g)


def dropping(make=dropping_net, **options):
    """Replicas of `dropping_net`."""
    x, y = sequences()
    common = {"seeds": DROPPING_SEEDS, "epochs": 3, "batch_size": 20, "optimizer": RMSprop(lr=1e-3), "how": "vmap"}
    return train_many(make, x, y, **common | {"progress": False} | options)


def same(a, b):
    """Two results of the same replicas, up to rounding."""
    for name in a.params:
        close(a.params[name], b.params[name])
    for name in a.buffers:
        close(a.buffers[name], b.buffers[name])
    close(a.losses, b.losses)
    assert a.seeds == b.seeds


class Branching(nn.Module):
    """A model that vmap cannot do: its path depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.flatten(1))
        return -x if x.mean() > 0 else x
