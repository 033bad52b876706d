"""Many models at once against separate plain loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.core.weights import Weight
from prunewald.ensemble import SGD, Adam, AdamW, RMSprop, draws, train_many
from prunewald.model.optimizers import mean_square_gradient
from prunewald.uncertainty import BatchMeans, Estimate, PseudoBootstrap, SecondMoment

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = (3, 11, 4)
N, BATCH, EPOCHS = 70, 16, 10  # 5 batches of 14: 50 steps


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
    state = estimator.init() if estimator else None
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
    options = {"make_model": Net, "seeds": SEEDS, "epochs": EPOCHS, "batch_size": BATCH, "progress": False} | options
    x, y = data()
    return train_many(x=x, y=y, optimizer=recipe, how=how, **options)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)


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


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_agrees_with_separate_loops(recipe):
    result = many(recipe)
    assert result.how == "vmap"
    for r, seed in enumerate(SEEDS):
        model, optimizer, _, losses = plain(seed, recipe)
        for name, param in model.named_parameters():
            close(result.params[name][r], param.detach())
            v = mean_square_gradient(optimizer, param)
            assert (v is None) == (name not in result.second_moment)
            if v is not None:
                close(result.second_moment[name][r], v)
        close(result.losses[r], torch.tensor(losses, dtype=torch.float64))
        close(result.module(r)(data()[0]), model(data()[0]))


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("recipe", [SGD(lr=0.05, momentum=0.9, weight_decay=0.1), AdamW()], ids=str)
def test_masks_hold_and_agree(recipe, how):
    g = torch.Generator().manual_seed(1)
    masks = {"fc.weight": torch.rand(3, 8, 27, generator=g) > 0.7, "out.weight": torch.rand(4, 8, generator=g) > 0.5}
    result = many(recipe, how, masks=masks)
    for r, seed in enumerate(SEEDS):
        own = {"fc.weight": masks["fc.weight"][r], "out.weight": masks["out.weight"]}
        model = plain(seed, recipe, masks=own)[0]
        for name, param in model.named_parameters():
            close(result.params[name][r], param.detach())
            if name in own:
                assert (result.params[name][r][~own[name]] == 0).all()


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("recipe", [SGD(lr=0.05), RMSprop(lr=1e-3)], ids=str)
def test_collects_for_each_replica(recipe, how):
    result = many(recipe, how, collect=(PseudoBootstrap(last=20), "second-moment"), resample="bootstrap")
    samples = draws.bootstrap(SEEDS, N)
    for i, estimator in enumerate([PseudoBootstrap(last=20, total_steps=50), SecondMoment()]):
        for r, seed in enumerate(SEEDS):
            model, optimizer, state, _ = plain(seed, recipe, sample=samples[r], estimator=estimator)
            for name, param in model.named_parameters():
                wanted = estimator.sigma(state, Weight(name, param, None), optimizer)
                close(result.estimates[i][name].sigma[r], wanted.sigma.detach())
                assert torch.equal(result.estimates[i][name].dead[r], wanted.dead)
    assert torch.equal(result.sigma["fc.weight"], result.estimates[0]["fc.weight"].sigma)
    assert result.dead["fc.weight"][:, 0].all()
    assert not result.dead["fc.weight"].all()


class Own(SecondMoment):
    """An estimator that is not known here."""

    def sigma(self, state, weight, optimizer):
        sigma, dead = super().sigma(state, weight, optimizer)
        return Estimate(sigma * sigma[~dead].sum(), None)


@pytest.mark.filterwarnings("ignore:standard errors from 5 batches")
@pytest.mark.parametrize("recipe", [SGD(lr=0.05), RMSprop(lr=1e-3), Adam()], ids=str)
def test_estimates_of_all_are_those_of_each(recipe):
    few = torch.rand(3, 8, 27, generator=torch.Generator().manual_seed(1)) > 0.5
    few[1] = False
    few[1, 3, 4] = True  # one weight has no spread
    few[2, :, :13] = False
    options = {
        "masks": {"fc.weight": few, "out.weight": torch.rand(4, 8) > 0.2},
        "collect": (
            PseudoBootstrap(last=20),
            PseudoBootstrap(every=3),
            SecondMoment(),
            SecondMoment(samples=70, batch_size=14),
            BatchMeans(length=10),
            Own(),
        ),
    }
    together, alone = many(recipe, **options), many(recipe, "loop", **options)
    for ours, wanted in zip(together.estimates, alone.estimates, strict=True):
        for name, (sigma, dead) in wanted.items():
            close(ours[name].sigma, sigma)
            assert ours[name].dead is dead is None or torch.equal(ours[name].dead, dead)


def test_warm_starts_and_training_on():
    state = Net().state_dict()
    result = many(SGD(lr=0.1), start=state)
    on = many(SGD(lr=0.1), start=result)
    for r, seed in enumerate(SEEDS):
        once = plain(seed, SGD(lr=0.1), start=state)[0]
        twice = plain(seed, SGD(lr=0.1), start=once.state_dict())[0]
        for name, param in twice.named_parameters():
            close(on.params[name][r], param.detach())


def test_the_rows_of_each_replica_may_be_given():
    rows = torch.randint(0, N, (3, 40), generator=torch.Generator().manual_seed(2))
    result = many(Adam(), resample=rows)
    for r, seed in enumerate(SEEDS):
        model = plain(seed, Adam(), sample=rows[r])[0]
        close(result.params["fc.weight"][r], model.fc.weight.detach())
