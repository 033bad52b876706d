"""The standard errors of the second moment, against those of the diagonal Fisher from the same data."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.uncertainty import FisherDiagonal
from prunewald.util.registry import brief

pytestmark = pytest.mark.usefixtures("one_thread")

N, BATCH, STEPS, INPUTS = 600, 20, 1200, 4
SIZES = {"samples": N, "batch_size": BATCH}


class Case(NamedTuple):
    """A loss that is minimised over data of some kind, and what has to be said of it."""

    outputs: int
    kind: str  # of likelihood
    loss: nn.Module
    said: dict[str, int]  # to SecondMoment, beside the loss


CASES = {
    "classes, mean": Case(3, "cross_entropy", nn.CrossEntropyLoss(), {}),
    "classes, sum": Case(3, "cross_entropy", nn.CrossEntropyLoss(reduction="sum"), {}),
    "one binary output": Case(1, "binary_cross_entropy", nn.BCEWithLogitsLoss(), {"outputs": 1}),
    "four binary outputs, mean": Case(4, "binary_cross_entropy", nn.BCEWithLogitsLoss(), {"outputs": 4}),
    "four binary outputs, sum": Case(4, "binary_cross_entropy", nn.BCEWithLogitsLoss(reduction="sum"), {}),
    "raw target, mean": Case(1, "squared_error", nn.MSELoss(), {"outputs": 1}),
    "raw target, sum": Case(1, "squared_error", nn.MSELoss(reduction="sum"), {}),
    "three raw targets, mean": Case(3, "squared_error", nn.MSELoss(), {"outputs": 3}),
    "three raw targets, sum": Case(3, "squared_error", nn.MSELoss(reduction="sum"), {}),
    "counts, mean": Case(2, "poisson", nn.PoissonNLLLoss(), {"outputs": 2}),
    "counts, sum": Case(2, "poisson", nn.PoissonNLLLoss(reduction="sum"), {}),
}
OPTIMIZERS = {  # that take no step, and average the squares of many: the weights stay at the optimum
    "Adam": partial(torch.optim.Adam, lr=0.0, betas=(0.9, 0.9995)),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.0, alpha=0.999),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.0),
    "SGD": partial(torch.optim.SGD, lr=0.0),
}


def fitted(case):
    """A model at the optimum of its data, and the data; a squared error's residuals have a deviation of 37."""
    torch.manual_seed(1)
    x = torch.randn(N, INPUTS)
    model = nn.Linear(INPUTS, case.outputs)
    true = torch.randn(INPUTS, case.outputs) / 2
    if case.kind == "cross_entropy":
        y = torch.distributions.Categorical(logits=x @ true).sample()
    elif case.kind == "binary_cross_entropy":
        y = torch.bernoulli((x @ true).sigmoid())
    elif case.kind == "poisson":
        y = torch.poisson((x @ true).exp())
    else:
        y = 100 * (x @ true) + 37 * torch.randn(N, case.outputs)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-6)

    def closure():
        optimizer.zero_grad()
        loss = case.loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return model, x, y


def residual_variance(case, model, x, y):
    """What a squared error has to say of its fit; other losses nothing."""
    if case.kind != "squared_error":
        return {}
    squares = F.mse_loss(model(x), y, reduction="sum").item()
    return {"residual_variance": squares / (N - INPUTS - 1) / case.outputs}


def average_(model, optimizer, loss, x, y, pieces=1):
    """Hand the gradients of batches drawn with replacement, each accumulated in pieces, to the optimizer."""
    g = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for i in torch.randint(0, N, (BATCH,), generator=g).split(BATCH // pieces):
            part = loss(model(x[i]), y[i])
            (part / pieces if loss.reduction == "mean" else part).backward()
        optimizer.step()


def check(pruner, kind, x, y):
    """Its standard errors are, up to the noise of their average, those of the diagonal Fisher."""
    exact = FisherDiagonal().estimate(pruner.model, [(x, y)], kind)
    ratio = torch.cat([(sigma / exact[name]).reshape(-1) for name, sigma in pruner.sigma().items()])
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=0.15)
    torch.testing.assert_close(ratio.mean(), torch.ones(()), rtol=0, atol=0.04)


TARGETS = {"targets": ["weight", "bias"]}


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_the_diagonal_fisher(name):
    case = CASES[name]
    model, x, y = fitted(case)
    optimizer = OPTIMIZERS["Adagrad"](model.parameters())
    average_(model, optimizer, case.loss, x, y)
    said = SIZES | case.said | residual_variance(case, model, x, y)
    by_name = pw.SecondMoment(**said, likelihood=case.kind, reduction=case.loss.reduction)
    assert pw.SecondMoment(**said, likelihood=case.loss) == by_name
    check(pw.Pruner(model, optimizer, uncertainty=by_name, **TARGETS), case.kind, x, y)


@pytest.mark.parametrize("name", ["four binary outputs, mean", "three raw targets, sum"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_every_optimizer_and_with_accumulation(name, optimizer):
    case = CASES[name]
    model, x, y = fitted(case)
    stepped = OPTIMIZERS[optimizer](model.parameters())
    said = SIZES | case.said | residual_variance(case, model, x, y)
    recipe = pw.SecondMoment(**said, decay=0.999, likelihood=case.loss)
    pruner = pw.Pruner(model, stepped, uncertainty=recipe, **TARGETS)
    average_(model, stepped, case.loss, x, y, pieces=2)
    check(pruner, case.kind, x, y)


def test_a_level_keeps_what_is_not_zero_of_a_regression_on_raw_targets():
    torch.manual_seed(0)
    true = torch.arange(40.0) % 2 * 30
    x = torch.randn(2000, 40)
    y = (x @ true + 100 * torch.randn(2000))[:, None]
    model = nn.Linear(40, 1, bias=False)
    model.weight.data = torch.linalg.lstsq(x, y).solution.T.contiguous()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.0, alpha=0.999)
    for i in torch.randint(0, 2000, (1000, BATCH)):
        optimizer.zero_grad()
        F.mse_loss(model(x[i]), y[i]).backward()
        optimizer.step()
    variance = F.mse_loss(model(x), y).item()
    recipe = pw.SecondMoment(2000, BATCH, likelihood=F.mse_loss, outputs=1, residual_variance=variance)
    masks, _ = pw.Pruner(model, optimizer, uncertainty=recipe).choose(alpha=0.05)
    assert masks["weight"][0, true != 0].all()
    assert masks["weight"][0, true == 0].sum() <= 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"likelihood": "hinge"}, "'hinge'.*cross_entropy"),
        ({"likelihood": nn.CrossEntropyLoss(label_smoothing=0.1)}, "label_smoothing"),
        ({"likelihood": nn.MSELoss(reduction="none")}, "reduction"),
        ({"likelihood": "poisson", "reduction": "max"}, "reduction='max'.*'mean', 'sum'"),
        ({"likelihood": nn.MSELoss(reduction="sum"), "reduction": "mean"}, "reduction='mean'.*'sum'"),
        ({"likelihood": nn.BCEWithLogitsLoss()}, "binary_cross_entropy.*give outputs="),
        ({"likelihood": "squared_error", "outputs": 1}, "give residual_variance=.*mean squared residual"),
        ({"likelihood": "squared_error", "outputs": 1, "residual_variance": 0.0}, "residual_variance=0.0"),
        ({"likelihood": "poisson", "outputs": 0}, "outputs=0"),
        ({"likelihood": "cross_entropy", "outputs": 3}, "outputs=3 plays no part"),
        ({"likelihood": "poisson", "reduction": "sum", "outputs": 3}, "outputs=3 plays no part"),
        ({"likelihood": "poisson", "outputs": 3, "residual_variance": 1}, "residual_variance=1 plays no part"),
        ({"reduction": "sum"}, "reduction='sum'.*give likelihood="),
        ({"outputs": 4}, "outputs=4.*give likelihood="),
    ],
    ids=str,
)
def test_what_is_missing_or_too_much_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        pw.SecondMoment(**SIZES, **given)


def test_a_likelihood_needs_the_sizes():
    with pytest.raises(ValueError, match="samples= and batch_size="):
        pw.SecondMoment(likelihood="cross_entropy")


def test_the_fields_are_plain_and_say_what_was_taken():
    recipe = pw.SecondMoment(**SIZES, likelihood=nn.BCEWithLogitsLoss(reduction="sum"))
    assert (recipe.likelihood, recipe.reduction) == ("binary_cross_entropy", "sum")
    assert brief(recipe).endswith("likelihood='binary_cross_entropy', reduction='sum')")
    assert recipe.standard_error
    assert not pw.SecondMoment(**SIZES).standard_error


class FusedAdam(torch.optim.Adam):
    """As apex and DeepSpeed spell it: whether the decay is coupled is the optimizer's own setting."""

    def __init__(self, params, adam_w_mode, **kwargs):
        super().__init__(params, **kwargs)
        self.adam_w_mode = adam_w_mode


DECAYED = {
    "Adam": (partial(torch.optim.Adam, weight_decay=0.01), True),
    "Adam, decoupled": (partial(torch.optim.Adam, weight_decay=0.01, decoupled_weight_decay=True), False),
    "AdamW": (partial(torch.optim.AdamW, weight_decay=0.01), False),
    "RMSprop": (partial(torch.optim.RMSprop, weight_decay=0.01), True),
    "Adagrad": (partial(torch.optim.Adagrad, weight_decay=0.01), True),
    "NAdam": (partial(torch.optim.NAdam, weight_decay=0.01), True),
    "FusedAdam": (partial(FusedAdam, adam_w_mode=False, weight_decay=0.01), True),
    "FusedAdam, decoupled": (partial(FusedAdam, adam_w_mode=True, weight_decay=0.01), False),
    "SGD": (partial(torch.optim.SGD, lr=0.1, weight_decay=0.01), False),
}


@pytest.mark.parametrize("name", DECAYED)
def test_squares_that_hold_the_decay_of_weights_make_no_standard_error(name):
    make, coupled = DECAYED[name]
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.SecondMoment(**SIZES, likelihood="cross_entropy"))
    F.cross_entropy(model(torch.randn(5, 3)), torch.tensor([0, 1, 0, 1, 1])).backward()
    optimizer.step()
    if not coupled:
        assert pruner.sigma()["weight"].isfinite().all()
        return
    with pytest.raises(ValueError, match=f"{name} adds weight_decay=0.01 of 'weight'.*AdamW.*leave out likelihood="):
        pruner.prune(alpha=0.05)
    pruner.prune(0.5, uncertainty=pw.SecondMoment(**SIZES))
