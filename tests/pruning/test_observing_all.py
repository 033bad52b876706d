"""One look at data gathers whatever a Pruner asks of them: criteria and sigma as by hand, for a model of a file."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.baselines import OBD, SNIP, Movement, Taylor, Wanda

pytestmark = pytest.mark.usefixtures("one_thread")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(count=12):
    generator = torch.Generator().manual_seed(1)
    return [(x, x[:, :4].argmax(1)) for x in torch.randn(count, 16, 12, generator=generator)]


def gradients(model, data):
    """Of each batch, by hand."""
    weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    rows = [torch.autograd.grad(F.cross_entropy(model(x), y), list(weights.values())) for x, y in data]
    return {name: torch.stack([row[at] for row in rows]) for at, name in enumerate(weights)}


EXPECTED = {
    SNIP(): lambda w, g: (w * g.mean(0)).abs(),
    Taylor(): lambda w, g: (w * g.mean(0)).abs(),
    OBD(): lambda w, g: w.square() * g.square().mean(0) / 2,
    Movement(): lambda w, g: -(w * g.sum(0)),
}


@pytest.mark.parametrize("criterion", EXPECTED, ids=repr)
def test_criteria_by_gradients(criterion):
    model, data = net(), batches()
    pruner = pw.Pruner(model, criterion=criterion)
    model[0].weight.grad = stale = torch.ones(16, 12)
    pruner.observe(iter(data), "cross_entropy")
    assert model[0].weight.grad is stale
    scores = pruner.scores()
    for name, g in gradients(model, data).items():
        expected = EXPECTED[criterion](model.get_parameter(name).detach(), g)
        torch.testing.assert_close(scores[name], expected, rtol=1e-5, atol=1e-8)
    assert "12 batches of data, by pruner.observe()" in str(pruner.prune(0.5))


@pytest.mark.parametrize("loss", [None, F.cross_entropy])
@pytest.mark.parametrize("trained", [False, True])
def test_wanda_counts_the_inputs_of_the_pass_alone(loss, trained):
    model, data = net(), batches()
    pruner = pw.Pruner(model, criterion=Wanda())
    model.train(trained)(torch.full((5, 12), 100.0))
    found = pruner.observe(data, loss)
    assert found.keys() == ({"0.weight", "2.weight"} if loss else set())
    x = torch.cat([x for x, _ in data])
    for name, inputs in (("0.weight", x), ("2.weight", model[0](x).tanh())):
        norm = inputs.detach().square().sum(0).sqrt()
        torch.testing.assert_close(pruner.scores()[name], model.get_parameter(name).detach().abs() * norm)
    assert "12 batches of data, by pruner.observe()" in str(pruner.prune(0.5))
    assert pruner.sparsity == pytest.approx(0.5, abs=0.01)


def test_wanda_needs_no_gradients_and_no_targets():
    model = net().requires_grad_(False)
    pruner = pw.Pruner(model, criterion="wanda")
    with torch.inference_mode():
        assert pruner.observe([x for x, _ in batches()]) == {}
    pruner.observe(batches(), F.cross_entropy)
    assert pruner.prune(0.5).criterion == "Wanda()"


def test_padding_does_not_count():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.fc, self.flat = nn.Embedding(9, 5), nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, input_ids, attention_mask=None):
            return self.flat(self.fc(self.words(input_ids)).flatten(0, 1))

    torch.manual_seed(0)
    model, ids = Tokens(), torch.randint(9, (3, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]])
    pruner = pw.Pruner(model, criterion="wanda")
    pruner.observe([{"input_ids": ids, "attention_mask": mask}])
    inputs = model.words(ids)[mask.bool()].detach()
    for name, x in (("fc.weight", inputs), ("flat.weight", model.fc(inputs).detach())):
        expected = model.get_parameter(name).detach().abs() * x.square().sum(0).sqrt()
        torch.testing.assert_close(pruner.scores()[name], expected)


def test_sigma_of_a_model_of_which_there_is_only_the_file():
    model, data = net(), batches()
    pruner = pw.Pruner(model)
    pruner.observe(data, F.cross_entropy)
    decay, sigma = 0.99, pruner.sigma()
    for name, g in gradients(model, data).items():
        ages = torch.arange(len(g) - 1, -1, -1)
        share = decay**ages * (1 - decay) / (1 - decay ** len(g))
        v = (share[:, None, None] * g.square()).sum(0)
        spread = model.get_parameter(name).detach().std()
        expected = v.rsqrt() * spread / v.rsqrt().flatten().kthvalue((v.numel() + 1) // 2).values
        torch.testing.assert_close(sigma[name], expected, rtol=1e-4, atol=0)
    report = pruner.prune(0.9)
    assert "averaged itself, of data" in report.notes[0]
    assert report.uncertainty.startswith("SecondMoment")
    assert pruner.prune(0.95).criterion == "Magnitude()", "it was of the weights before"


def test_what_an_optimizer_keeps_goes_before_data_and_a_training_before_fewer_of_them():
    for kind in (torch.optim.Adam, torch.optim.SGD):
        model = net()
        optimizer = kind(model.parameters(), lr=1e-3)
        pruner = pw.Pruner(model, optimizer, uncertainty="second-moment")
        for x, y in batches(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        before = copy.deepcopy(pruner.sigma())
        pruner.observe(batches(12), F.cross_entropy)
        assert all(torch.equal(sigma, before[name]) for name, sigma in pruner.sigma().items())
        assert "by pruner.observe()" not in str(pruner.prune(0.5, dry_run=True))
        pruner.observe(batches(30), F.cross_entropy)
        assert ("by pruner.observe()" in str(pruner.prune(0.5, dry_run=True))) == (kind is torch.optim.SGD)


def test_standard_errors_are_not_made_of_other_batches():
    pruner = pw.Pruner(net(), uncertainty=pw.SecondMoment(samples=100, batch_size=10))
    pruner.observe(batches(), F.cross_entropy)
    with pytest.raises(ValueError, match="no second moment"):
        pruner.prune(0.5)


@pytest.mark.parametrize("criterion", ["wanda", "obd", "snip", None])
def test_a_look_that_fails_leaves_what_was_gathered(criterion):
    pruner = pw.Pruner(net(), criterion=criterion)
    pruner.observe(batches(), F.cross_entropy)
    before = pruner.scores()

    def failing():
        yield from batches(3)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        pruner.observe(failing(), F.cross_entropy)
    assert all(torch.equal(scores, before[name]) for name, scores in pruner.scores().items())


def test_a_step_makes_the_gradient_an_old_one():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="snip")
    pruner.observe(batches(), F.cross_entropy)
    F.cross_entropy(model(batches()[0][0]), batches()[0][1]).backward()
    optimizer.step()
    expected = (model[0].weight * model[0].weight.grad).abs().detach()
    torch.testing.assert_close(pruner.scores()["0.weight"], expected)


@pytest.mark.parametrize("criterion", ["obd", "wanda", None])
def test_steps_after_the_look_are_said_where_they_count(criterion):
    model = net()
    pruner = pw.Pruner(model, criterion=criterion)
    pruner.observe(batches(), F.cross_entropy)
    before = pruner.scores()["0.weight"]
    F.cross_entropy(model(10 * batches()[0][0]), batches()[0][1]).backward()
    pruner.apply_()
    counts = criterion != "wanda"
    assert (", and from the steps since" in str(pruner.prune(0.5, dry_run=True))) == counts
    assert torch.equal(pruner.scores()["0.weight"], before) != counts


def test_no_targets_and_limits_that_are_none():
    pruner = pw.Pruner(net())
    with pytest.raises(ValueError, match=r"a tensor \(16, 12\), has no targets.*'labels'"):
        pruner.observe([x for x, _ in batches()], F.cross_entropy)
    with pytest.raises(ValueError, match=r"a tensor \(16, 4\).*loss of its own.*loss="):
        pruner.observe(batches())
    with pytest.raises(ValueError, match="limit=0"):
        pruner.observe(batches(), F.cross_entropy, limit=0)
    with pytest.raises(TypeError, match=r"Sequential.*'image', 'label'.*takes \(input\)"):
        pruner.observe([{"image": x, "label": y} for x, y in batches()], F.cross_entropy)
