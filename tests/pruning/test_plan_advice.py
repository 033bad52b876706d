"""Where there is no sigma, the note of the report says what gives one: the advice is followed to the letter."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import prunewald as pw

pytestmark = pytest.mark.usefixtures("one_thread")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(x, x[:, :4].argmax(1)) for x in torch.randn(210, 16, 12, generator=generator)]


def epoch(model: nn.Module, optimizer: Optimizer) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def advice(model: nn.Module, optimizer: Optimizer | None = None) -> str:
    report = pw.Pruner(model, optimizer).prune(0.5, dry_run=True)
    assert report.criterion == "Magnitude()"
    return report.notes[0]


def test_with_only_a_model_the_look_at_data_that_the_note_asks_for_gives_sigma():
    model = net()
    pruner = pw.Pruner(model)
    note = pruner.prune(0.8).notes[0]
    found = re.search(r"pruner\.observe\(batches, loss\)", note)
    assert found
    for given in (pruner, pw.Pruner(net())):
        eval(found[0], {"pruner": given, "batches": batches()[:10], "loss": F.cross_entropy})
        report = given.prune(0.9)
        assert report.criterion == "MagnitudeUncertainty()"
        assert "10 batches of data, by pruner.observe()" in str(report)
        assert given.sparsity == pytest.approx(0.9, abs=0.005)


def test_too_few_batches_are_named():
    pruner = pw.Pruner(net())
    pruner.observe(batches(), F.cross_entropy, limit=9)
    report = pruner.prune(0.9)
    assert report.criterion == "Magnitude()"
    assert "only 9 batches were observed, and 10 gradients" in report.notes[0]


def test_with_only_a_model_the_training_that_the_note_asks_for_gives_sigma():
    model = net()
    found = re.search(r"pruner = (pw\.Pruner\(.*\(\)\))", advice(model))
    assert found
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pruner = eval(found[1], {"pw": pw, "model": model, "optimizer": optimizer})
    epoch(model, optimizer)
    report = pruner.prune(0.9)
    assert (report.criterion, report.uncertainty) == ("MagnitudeUncertainty()", "PseudoBootstrap(last=200)")


@pytest.mark.parametrize("source", ["SecondMoment", "PseudoBootstrap"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor])
def test_what_an_optimizer_without_a_second_moment_is_advised_works(kind, source):
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)
    note = advice(model, optimizer)
    assert f"{source}()" in note
    assert "before training" in note
    pruner = pw.Pruner(model, optimizer, uncertainty=getattr(pw, source)())
    epoch(model, optimizer)
    assert pruner.prune(0.9).uncertainty.startswith(source)


def test_a_fresh_adam_gives_sigma_once_it_has_trained():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    assert "taken no step" in advice(model, optimizer)
    epoch(model, optimizer)
    assert pw.Pruner(model, optimizer).prune(0.9).uncertainty == "SecondMoment()"
