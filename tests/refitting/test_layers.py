"""The kinds of layers, and the ways of models through them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from tests.refitting.models import batches, mlp, pruned, ridge_fit, split

pytestmark = pytest.mark.usefixtures("one_thread")


class Attended(nn.Module):
    """Attention of one sequence to another, with widths of its own or with packed weights."""

    def __init__(self, kdim=None, mask=False):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(16, 2, kdim=kdim, vdim=kdim, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x, z):
        return self.attention(x, z, z)[0]


def attended(layer, x, z):
    """What attention does, from its weights; and what goes into its output projection."""
    if layer.in_proj_weight is None:
        weights = layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
    else:
        weights = layer.in_proj_weight.chunk(3)
    biases = layer.in_proj_bias.chunk(3)
    q, k, v = (F.linear(one, w, b) for one, w, b in zip((x, z, z), weights, biases, strict=True))
    heads = [one.unflatten(2, (2, 8)).transpose(1, 2) for one in (q, k, v)]
    mixed = ((heads[0] @ heads[1].mT / 8**0.5).softmax(-1) @ heads[2]).transpose(1, 2).flatten(2)
    return q, k, v, mixed


@pytest.mark.parametrize("kdim", [None, 12], ids=["packed", "separate"])
def test_attention_against_a_composition_by_hand(kdim):
    """Each projection is the restricted estimate on what comes into it, the output projection after the others."""
    model = Attended(kdim)
    data = [(x, z) for x, z in zip(batches(6, 16), batches(5, kdim or 16, seed=3), strict=True)]
    pruner, dense = pruned(model, 0.4)
    before, masks = copy.deepcopy(model), pruner.masks
    pw.refit(pruner, data, dense=dense, ridges=(0.01,))
    fitted = [split(torch.cat(one))[0] for one in zip(*data, strict=True)]
    goals = [one.detach() for one in attended(dense.attention, *fitted)]
    layer, old = model.attention, before.attention
    rows = slice(0, 16), slice(16, 32), slice(32, 48)
    for at, (x, goal) in enumerate(zip((fitted[0], fitted[1], fitted[1]), goals[:3], strict=True)):
        name = "qkv"[at] + "_proj_weight"
        now, then = (
            vars(one)["_parameters"][name] if kdim else one.in_proj_weight.data[rows[at]] for one in (layer, old)
        )
        mask = masks[f"attention.{name}"] if kdim else masks["attention.in_proj_weight"][rows[at]]
        weight, bias = ridge_fit(x.flatten(0, 1), goal.flatten(0, 1), then, old.in_proj_bias[rows[at]], mask, 0.01)
        changed = not torch.equal(now, then)
        if changed:  # keys and values together have one decision where they are packed
            torch.testing.assert_close(now.data, weight, atol=1e-4, rtol=1e-2)
            torch.testing.assert_close(layer.in_proj_bias.data[rows[at]], bias, atol=1e-4, rtol=1e-2)
    x = attended(layer, *fitted)[3].detach()
    target = dense.attention.out_proj(goals[3]).detach()
    weight, bias = ridge_fit(
        x.flatten(0, 1),
        target.flatten(0, 1),
        old.out_proj.weight.data,
        old.out_proj.bias.data,
        masks["attention.out_proj.weight"],
        0.01,
    )
    torch.testing.assert_close(layer.out_proj.weight.data, weight, atol=1e-4, rtol=1e-2)
    torch.testing.assert_close(layer.out_proj.bias.data, bias, atol=1e-4, rtol=1e-2)


class Shared(nn.Module):
    """One layer used twice, and an embedding with the weights of the head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.twice, self.head = nn.Embedding(30, 12), nn.Linear(12, 12), nn.Linear(12, 30, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.twice(self.embedding(ids)).relu()
        return self.head(self.twice(x))


def test_a_shared_layer_once_over_all_calls_and_one_that_an_embedding_shares_not_at_all():
    model = Shared()
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model, targets=["twice.weight", "embedding.weight"])
    pruner.prune({"twice.weight": 0.5, "embedding.weight": 0.3})
    before = copy.deepcopy(model)
    data = [torch.randint(0, 30, (40, 5), generator=torch.Generator().manual_seed(at)) for at in range(5)]
    report = pw.refit(pruner, data, dense=dense, ridges=(0.01,))
    tied, twice = report.refit.layers
    assert (tied.name, tied.changed) == ("embedding.weight", False)
    assert "embedding" in tied.reason
    assert torch.equal(model.embedding.weight, before.embedding.weight)
    assert twice.positions == 2 * 160 * 5
    ids, _ = split(torch.cat(data))
    with torch.no_grad():
        x, z = before.embedding(ids), dense.embedding(ids)
        met = torch.cat([x, before.twice(x).relu()])
        goal = torch.cat([dense.twice(z), dense.twice(dense.twice(z).relu())])
    mask = pruner.masks["twice.weight"]
    weight, bias = ridge_fit(
        met.flatten(0, 1), goal.flatten(0, 1), before.twice.weight.data, before.twice.bias.data, mask, 0.01
    )
    torch.testing.assert_close(model.twice.weight.data, weight, atol=1e-4, rtol=1e-2)
    torch.testing.assert_close(model.twice.bias.data, bias, atol=1e-4, rtol=1e-2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head, self.mixed = nn.LSTM(16, 12, batch_first=True), nn.Linear(12, 8), nn.Bilinear(8, 8, 3)

    def forward(self, x):
        hidden = self.head(self.lstm(x)[0])
        return self.mixed(hidden, hidden)


def test_what_is_not_known_is_left_alone_and_said_and_the_dense_model_runs_with_its_own():
    model = Recurrent()
    pruner, dense = pruned(model, 0.4)
    before, data = copy.deepcopy(model), batches(5, 16)
    report = pw.refit(pruner, data, dense=dense, ridges=(0.01,))
    reasons = {layer.name: layer.reason for layer in report.refit.layers}
    assert "recurrent" in reasons["lstm.weight_hh_l0"]
    assert "does not know" in reasons["mixed.weight"]
    assert torch.equal(model.lstm.weight_hh_l0, before.lstm.weight_hh_l0)
    x, _ = split(torch.cat(data))
    met, goal = before.lstm(x)[0].detach(), dense.head(dense.lstm(x)[0]).detach()
    weight, _ = ridge_fit(
        met.flatten(0, 1),
        goal.flatten(0, 1),
        before.head.weight.data,
        before.head.bias.data,
        pruner.masks["head.weight"],
        0.01,
    )
    torch.testing.assert_close(model.head.weight.data, weight, atol=1e-4, rtol=1e-2)


class Expert(nn.Module):
    """Examples go by their first input to one of two experts, all of one sign in the pruned model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.experts, self.head = nn.Linear(16, 16), nn.Parameter(torch.randn(3, 10, 16)), nn.Linear(10, 4)

    def forward(self, x):
        x = self.gate(x)
        chosen = (x[:, 0] > 0).long()
        hidden = x.new_zeros(len(x), 10)
        for at in chosen.unique():
            hidden[chosen == at] = F.linear(x[chosen == at], self.experts[at])
        return self.head(hidden)


def test_experts_aim_at_their_dense_weights_on_what_comes_by_them():
    model = Expert()
    pruner, dense = pruned(model, 0.5)
    before, data = copy.deepcopy(model), batches(16)
    report = pw.refit(pruner, data, dense=dense, ridges=(0.01,))
    rows = {layer.name: layer for layer in report.refit.layers}
    assert "no example" in rows["experts[2]"].reason
    assert torch.equal(model.experts[2], before.experts[2])
    x, _ = split(torch.cat(data))
    met = model.gate(x).detach()
    for at in range(2):
        own = met[(met[:, 0] > 0) == bool(at)]
        assert rows[f"experts[{at}]"].positions == len(own)
        goal = own @ dense.experts[at].detach().T
        mask, present = pruner.masks["experts"][at], before.experts.data[at]
        gram, cross = own.T.double() @ own.double(), goal.T.double() @ own.double()
        ridge = 0.01 * gram.diagonal().mean()
        for row in range(10):
            keep = mask[row].nonzero()[:, 0]
            system = gram[keep][:, keep] + ridge * torch.eye(len(keep))
            right = cross[row, keep] + ridge * present[row, keep].double()
            expected = torch.linalg.solve(system, right).float()
            torch.testing.assert_close(model.experts.data[at, row, keep], expected, atol=1e-4, rtol=1e-2)


class Other(nn.Module):
    """The order of its layers depends on the batch; one of them is for another kind of data."""

    def __init__(self, *, changing):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.never, self.changing = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), changing

    def forward(self, x):
        if self.changing and x[0, 0] > 10:
            return self.b(self.a(x).relu())
        return self.a(self.b(x).relu())


def test_another_order_in_a_later_batch_is_refused():
    model, data = Other(changing=True), batches(16)
    pruner, dense = pruned(model, ignore=["never"])
    before = copy.deepcopy(model.state_dict())
    data[3][:, 0] = 11
    with pytest.raises(ValueError, match=r"order.*'b.weight'"):
        pw.refit(pruner, data, dense=dense)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_a_layer_that_no_example_reaches():
    model, data = Other(changing=False), batches(16)
    pruner, dense = pruned(model)
    with pytest.raises(ValueError, match=r"'never.weight' is not reached.*ignore='never.weight'"):
        pw.refit(pruner, data, dense=dense)
    report = pw.refit(pruner, data, dense=dense, ignore="never")
    assert "ignored" in next(layer.reason for layer in report.refit.layers if layer.name == "never.weight")


def test_few_examples_are_warned_of():
    model = mlp()
    pruner, dense = pruned(model, 0.1)
    with pytest.warns(UserWarning, match=r"fewer examples than inputs.*'0.weight'"):
        report = pw.refit(pruner, batches(16, count=1, size=10), dense=dense)
    assert "fewer examples" in str(report)
    assert report.refit.after <= report.refit.before


def test_bfloat16_errors_are_those_after_rounding():
    model = mlp().to(torch.bfloat16)
    pruner, dense = pruned(model, 0.5)
    data = [x.to(torch.bfloat16) for x in batches(16)]
    report = pw.refit(pruner, data, dense=dense)
    _, held = split(torch.cat(data))
    first = report.refit.layers[0]
    layer, goal = model[0], dense[0](held).detach().double()
    found = held.double() @ layer.weight.data.double().T + layer.bias.data.double()
    assert first.after == pytest.approx(float((found - goal).square().sum() / goal.square().sum()), rel=0.02)
    assert first.after < first.before
    assert layer.weight.dtype == torch.bfloat16


def test_compiled_models_are_run_as_they_are():
    model = mlp()
    twin = copy.deepcopy(model)
    data = batches(16)
    third = copy.deepcopy(model)
    third.compile()
    pw.Pruner(twin).prune(0.5, refit=data)
    for compiled, inside in ((torch.compile(model), model), (third, third)):
        pw.Pruner(compiled).prune(0.5, refit=data)
        assert all(torch.equal(a, b) for a, b in zip(inside.parameters(), twin.parameters(), strict=True))


def test_modes_random_numbers_and_shuffled_loaders():
    """A loader that shuffles by torch's own random numbers gives the same examples at each pass."""
    model = nn.Sequential(*mlp()[:4], nn.Dropout(0.5), mlp()[4])
    model[1].eval()
    pruner, dense = pruned(model, 0.5)
    loader = torch.utils.data.DataLoader(torch.cat(batches(16)), batch_size=50, shuffle=True)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    report = pw.refit(pruner, loader, dense=dense)
    assert torch.equal(torch.rand(1), expected)
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert report.refit.after < report.refit.before


@pytest.mark.parametrize("where", ["loader", "sampler", "batches"])
def test_a_loader_that_shuffles_by_a_generator_of_its_own_gives_one_order_and_goes_on_as_before(where):
    x, generator = torch.cat(batches(16)), torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(x, generator=generator)
    loader = {
        "loader": lambda: torch.utils.data.DataLoader(x, batch_size=50, shuffle=True, generator=generator),
        "sampler": lambda: torch.utils.data.DataLoader(x, batch_size=50, sampler=sampler),
        "batches": lambda: torch.utils.data.DataLoader(
            x, batch_sampler=torch.utils.data.BatchSampler(sampler, 50, drop_last=False)
        ),
    }[where]()
    pruner, dense = pruned(mlp(), 0.5)
    torch.rand(7, generator=generator)
    state = generator.get_state()
    report = pw.refit(pruner, loader, dense=dense)
    assert report.refit.after < report.refit.before
    assert torch.equal(generator.get_state(), state)
