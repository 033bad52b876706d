"""Estimators that watch stacked weights, against each of them on its own model."""

import pytest
import torch

from prunewald.core.base import Estimate, Online
from prunewald.core.weights import Weight
from prunewald.ensemble import SGD, Adam, RMSprop, draws
from prunewald.uncertainty import BatchMeans, PseudoBootstrap, SecondMoment
from tests.ensemble.helpers import SEEDS, N, close, many, plain

pytestmark = pytest.mark.usefixtures("one_thread")


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


class Own(Online):
    """An estimator that knows nothing of stacked replicas, and whose sigma depends on all weights of a tensor."""

    inner = SecondMoment()

    def init(self, weights):
        return self.inner.init(weights)

    def update_(self, state, weights, optimizer):
        self.inner.update_(state, weights, optimizer)

    def sigma(self, state, weight, optimizer):
        sigma, dead = self.inner.sigma(state, weight, optimizer)
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
