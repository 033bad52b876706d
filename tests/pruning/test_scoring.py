"""Every slice is scored once in a pruning, by what is known of it."""

from collections import Counter

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.allocation import LAMP
from prunewald.core.base import Criterion
from prunewald.pruning import scoring
from prunewald.pruning.plan import Request
from tests.training import sgd, train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")

ONCE = {"0.weight": 1, "2.weight": 1, "4.weight": 1}


class Counting(Criterion):
    """|w|, and how often it was asked for each tensor."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, stats):
        self.calls[stats.name] += 1
        return stats.weight.abs()


def sigmas(model):
    return {n: torch.rand_like(p) for n, p in model.named_parameters() if p.dim() > 1}


# ---- how often ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["layer", "row", "global", "lamp", "erk"])
def test_a_pruning_scores_every_slice_once(scope):
    criterion = Counting()
    pw.Pruner(wide(), criterion=criterion, scope=scope).prune(0.7)
    assert criterion.calls == ONCE


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_false_discovery_rate_scores_every_slice_once(scope, monkeypatch):
    counting = Counting()
    monkeypatch.setattr(pw.Wald, "__call__", lambda self, stats: counting(stats))
    model = wide()
    pw.Pruner(model, uncertainty=sigmas(model), scope=scope).prune(fdr=0.1)
    assert counting.calls == ONCE


def test_scores_scores_every_slice_once():
    criterion = Counting()
    pruner = pw.Pruner(wide(), criterion=criterion, targets=["0.weight[1]", "0.weight[2:]", "4"])
    pruner.scores()
    assert criterion.calls == {"0.weight[1]": 1, "0.weight[2:]": 1, "4.weight": 1}


def test_a_layer_that_stays_as_it_is_is_not_scored():
    criterion = Counting()
    pw.Pruner(wide(), criterion=criterion).prune({"2": 0.5})
    assert criterion.calls == {"2.weight": 1}


def test_weights_are_there_without_scoring():
    criterion = Counting()
    pruner = pw.Pruner(wide(), criterion=criterion, targets=["0.weight[1]", "4"])
    scores, _ = pruner._subject.scores(pruner._plan(Request(0.5)))
    assert torch.equal(scores.weight("0.weight[1]"), pruner.model[0].weight[1])
    assert not scores.weight("4.weight").requires_grad
    assert scores.sizes == {"0.weight[1]": 6, "4.weight": 80}
    assert not criterion.calls


@pytest.mark.parametrize("scope", ["global", LAMP(of="score")])
def test_scores_that_are_too_many_to_keep_give_the_same_masks(scope, monkeypatch):
    masks, calls = [], []
    for kept in (scoring._KEPT, 0):
        monkeypatch.setattr(scoring, "_KEPT", kept)
        criterion = Counting()
        pruner = pw.Pruner(wide(), criterion=criterion, scope=scope)
        pruner.prune(0.7)
        masks.append(pruner.masks)
        calls.append(criterion.calls["2.weight"])
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())
    assert calls[0] == 1 < calls[1]


# ---- of what -----------------------------------------------------------------------------------------------------


def test_scores_are_minus_infinity_where_pruned_and_nan_off_target():
    pruner = pw.Pruner(wide(), criterion="magnitude", targets=["2.weight[:10]"])
    pruner.prune(0.5)
    scores, mask = pruner.scores()["2.weight"], pruner.masks["2.weight"]
    assert scores[10:].isnan().all()
    assert (scores[:10][~mask[:10]] == -torch.inf).all()
    assert torch.equal(scores[:10][mask[:10]], pruner.model[2].weight.detach()[:10][mask[:10]].abs())


def test_a_criterion_is_given_sigma_dead_weights_gradient_and_mask():
    seen = {}

    def look(stats):
        seen[stats.name] = stats
        return stats.weight.abs()

    model = wide()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion=look, uncertainty="second-moment", targets=["0.weight[:5]"])
    model[0].weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([0]), 0.0))
    train(model, optimizer, 101)
    pruner.prune(0.5)
    stats = seen["0.weight[:5]"]
    assert stats.alive is None
    assert torch.equal(stats.dead, (torch.arange(5) == 0)[:, None].expand(5, 6))
    train(model, optimizer, 1, first=101)
    pruner.scores()
    stats = seen["0.weight[:5]"]
    assert torch.equal(stats.alive, pruner.masks["0.weight"][:5])
    assert torch.equal(stats.gradient, model[0].weight.grad[:5])
    assert torch.equal(stats.sigma, pruner.sigma()["0.weight"][:5])


def test_lambda_relative_to_layer_slice_targets_and_model():
    model = wide()
    sigma = sigmas(model)
    rows = model[0].weight.detach()[:5]
    whole = [layer.weight.detach() for layer in model[::2]]
    targeted, everything = torch.cat([rows.flatten(), whole[1].flatten()]), torch.cat([w.flatten() for w in whole])
    for group, values in {"layer": whole[0], "slice": rows, "targets": targeted, "model": everything}.items():
        criterion = pw.MagnitudeUncertainty(lam=0.3, relative_to=group)
        pruner = pw.Pruner(model, criterion=criterion, uncertainty=sigma, targets=["0.weight[:5]", "2"])
        expected = pw.tau(rows, sigma["0.weight"][:5], 0.3 * float(values.double().std()))
        torch.testing.assert_close(pruner.scores()["0.weight"][:5], expected)


def test_the_spread_of_the_model_is_the_same_for_a_pruner_of_one_layer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm, self.inner, self.out = (
                nn.Embedding(9, 6),
                nn.LayerNorm(6),
                nn.Linear(6, 6),
                nn.Linear(6, 9),
            )
            self.again = self.inner

    torch.manual_seed(0)
    model = Tied()
    weights = torch.cat([model.inner.weight.detach().flatten(), model.out.weight.detach().flatten()])
    criterion = pw.MagnitudeUncertainty(lam=0.3, relative_to="model")
    sigma = {name: torch.rand_like(p) for name, p in model.named_parameters()}

    def score(spread):
        return pw.tau(model.inner.weight.detach(), sigma["inner.weight"], 0.3 * float(spread.double().std()))

    for targets in ("inner", ["inner", "out"], None):
        pruner = pw.Pruner(model, criterion=criterion, uncertainty=sigma, targets=targets)
        torch.testing.assert_close(pruner.scores()["inner.weight"], score(weights))
        pruner.detach()
    pruner = pw.Pruner(model, criterion=criterion, uncertainty=sigma, targets="inner")
    pruner.prune(0.5)
    kept = pruner.masks["inner.weight"]
    survivors = torch.cat([model.inner.weight.detach()[kept], model.out.weight.detach().flatten()])
    torch.testing.assert_close(pruner.scores()["inner.weight"][kept], score(survivors)[kept])


def test_the_spread_is_that_of_the_survivors():
    model = wide()
    sigma = sigmas(model)
    pruner = pw.Pruner(model, criterion=pw.MagnitudeUncertainty(lam=0.3), uncertainty=sigma)
    pruner.prune(0.5)
    kept, weight = pruner.masks["2.weight"], model[2].weight.detach()
    expected = pw.tau(weight, sigma["2.weight"], 0.3 * float(weight[kept].double().std()))
    torch.testing.assert_close(pruner.scores()["2.weight"][kept], expected[kept])
    assert (pruner.scores()["2.weight"][~kept] == -torch.inf).all()


@pytest.mark.filterwarnings("ignore:.*lost all weights")
def test_the_spread_of_one_weight_is_an_error_that_says_so():
    model = wide()
    choice = {"uncertainty": sigmas(model), "targets": ["0.weight[0, 0]", "2"], "scope": "layer"}
    with pytest.raises(ValueError, match=r"'0.weight\[0, 0\]'.*relative_to='model'"):
        pw.Pruner(model, criterion=pw.MagnitudeUncertainty(relative_to="slice"), **choice).scores()
    pw.Pruner(model, criterion=pw.MagnitudeUncertainty(relative_to="model"), **choice).scores()


def test_scores_are_doubles_where_any_weight_is():
    pruner = trained_pruner(criterion="magnitude", steps=0)
    pruner.model[2].double()
    scores, _ = pruner._subject.scores(pruner._plan(Request(0.5)))
    assert {ranked.score.dtype for ranked in scores.values()} == {torch.float64}
