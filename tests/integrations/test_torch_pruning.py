"""Our scores as Torch-Pruning's importance: which channels really go, against sums gathered by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import prunewald as pw
from prunewald.integrations.torch_pruning import WaldImportance

tp = pytest.importorskip("torch_pruning", reason="pip install 'prunewald[torch-pruning]'")
pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = [nn.modules.conv._ConvNd, nn.Linear]


class Residual(nn.Module):
    """BatchNorm, a residual connection, a grouped convolution, a concatenation and a flattened map."""

    x = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.grouped = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 3, padding=1, groups=2)
        self.joined, self.head = nn.Conv2d(16, 10, 3), nn.Linear(10 * 16, 3)

    def forward(self, x):
        h = self.norm(self.stem(x)).relu()
        h = h + self.grouped(self.inner(h).relu())
        return self.head(self.joined(torch.cat([h, h.relu()], 1)).relu().flatten(1))


class Depthwise(nn.Module):
    x = Residual.x

    def __init__(self):
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8)
        self.up, self.head = nn.ConvTranspose2d(8, 6, 2), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.up(self.depthwise(self.stem(x)).relu()).mean((2, 3)))


class Attention(nn.Module):
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        h = self.norm(self.embed(x))
        q, k, v = (layer(h).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((h + self.out(mixed)).mean(1))


class OwnAttention(nn.Module):
    x = Attention.x

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.embed(x)
        return self.head((h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


def train(model, optimizer, steps=5):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(model.x), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()


def trained(kind):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer)
    return model, optimizer


def pruner_of(model, importance, ratio=0.5, **options):
    heads = {model.q: 2, model.k: 2, model.v: 2} if isinstance(model, Attention) else {}
    return tp.pruner.BasePruner(
        model, model.x, importance, pruning_ratio=ratio, ignored_layers=[model.head], num_heads=heads, **options
    )


class Groups:
    """The groups of a model by the layers whose outputs are their channels."""

    def __init__(self, model):
        self.graph = pruner_of(model, None).DG

    def __getitem__(self, layer):
        by = self.graph.get_pruner_of_module(layer)
        return self.graph.get_pruning_group(layer, by.prune_out_channels, range(by.get_out_channels(layer)))

    def all(self, model):
        return list(self.graph.get_all_groups(ignored_layers=[model.head]))


# ---- against sums gathered by hand ---------------------------------------------------------------------------------


def by_hand(z, parts):
    """Mean squares of the entries of tensors, that are not -inf, by lists of indices into them."""
    gathered = torch.cat([z[name][index].flatten() for name, index in parts])
    return float(gathered[gathered > -torch.inf].square().mean())


def residual(model):
    every = slice(None)

    def stream(i):
        """Of the residual stream: what makes it, what reads it, each of the two copies that are joined."""
        made = [("stem.weight", (i,)), ("grouped.weight", (i,))]
        return [*made, ("inner.weight", (every, i)), ("joined.weight", (every, [i, 8 + i]))]

    def inner(i):
        """Of the grouped layer, the second half of the outputs reads the second half of the inputs."""
        return [("inner.weight", (i,)), ("grouped.weight", (slice(4 * (i // 3), 4 * (i // 3) + 4), i % 3))]

    def joined(i):
        return [("joined.weight", (i,)), ("head.weight", (every, slice(16 * i, 16 * i + 16)))]

    return {model.stem: (8, stream), model.inner: (6, inner), model.joined: (10, joined)}


def depthwise(model):
    def stem(i):
        return [("stem.weight", (i,)), ("depthwise.weight", (i,)), ("up.weight", (i,))]

    def up(i):
        return [("up.weight", (slice(None), i)), ("head.weight", (slice(None), i))]

    return {model.stem: (8, stem), model.up: (6, up)}


def attention(model):
    def stream(i):
        read = [(f"{name}.weight", (slice(None), i)) for name in ("q", "k", "v", "head")]
        return [("embed.weight", (i,)), ("out.weight", (i,)), *read]

    def heads(i):
        return [(f"{name}.weight", (i,)) for name in ("q", "k", "v")] + [("out.weight", (slice(None), i))]

    return {model.embed: (8, stream), model.q: (8, heads)}


def own_attention(model):
    def stream(i):
        inside = [("attention.in_proj_weight", ([i, 8 + i, 16 + i],)), ("attention.in_proj_weight", (slice(None), i))]
        inside += [("attention.out_proj.weight", (i,)), ("attention.out_proj.weight", (slice(None), i))]
        return [("embed.weight", (i,)), *inside, ("head.weight", (slice(None), i))]

    return {model.embed: (8, stream)}


KINDS = [(Residual, residual), (Depthwise, depthwise), (Attention, attention), (OwnAttention, own_attention)]


@pytest.mark.parametrize(("kind", "channels"), KINDS)
@pytest.mark.parametrize("source", ["optimizer", "dict"])
def test_importance_is_the_mean_squared_wald_statistic_of_all_that_goes_with_a_channel(kind, channels, source):
    model, optimizer = trained(kind)
    sigma = {name: torch.rand_like(param) + 0.1 for name, param in model.named_parameters()}
    if source == "optimizer":
        sigma = {name: optimizer.state[p]["exp_avg_sq"].rsqrt() for name, p in model.named_parameters()}
    pruner = pw.Pruner(model, optimizer, criterion="wald", scope="row", uncertainty=sigma if source == "dict" else None)
    pruner.prune(0.3)
    with torch.no_grad():
        z = {name: model.get_parameter(name) / sigma[name] for name in pruner.masks}
    z = {name: torch.where(pruner.masks[name], z[name], -torch.inf) for name in z}
    importance, groups, found, expected = WaldImportance(pruner), Groups(model), [], []
    for layer, (count, parts) in channels(model).items():
        found.append(importance(groups[layer]))
        expected += [by_hand(z, parts(i)) for i in range(count)]
    given, wanted = torch.cat(found), torch.tensor(expected, dtype=torch.float64)
    unit = 1.0 if source == "dict" else given.sum() / wanted.sum()  # the optimizer's sigma has one scale for all layers
    torch.testing.assert_close(given, unit * wanted, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("kind", "name", "heads"),
    [(Residual, "joined", 1), (Depthwise, "stem", 1), (Attention, "q", 2), (OwnAttention, "embed", 1)],
)
def test_tp_removes_the_channels_that_are_least_important(kind, name, heads):
    model, optimizer = trained(kind)
    importance = WaldImportance(pw.Pruner(model, optimizer))
    outer, layer = pruner_of(model, importance), model.get_submodule(name)
    scores = importance(Groups(model)[layer]).view(heads, -1).mean(0)  # all heads lose the same dimensions
    kept = scores.argsort(descending=True)[: len(scores) // 2].sort().values
    before = layer.bias.detach().view(heads, -1).clone()
    outer.step()
    assert torch.equal(layer.bias, before[:, kept].flatten())
    assert model(model.x).shape == (4, 3)
    assert isinstance(importance, tp.importance.Importance)


@pytest.mark.parametrize("global_pruning", [False, True])
def test_groups_are_compared_in_one_unit(global_pruning):
    model, optimizer = trained(Residual)
    importance = WaldImportance(pw.Pruner(model, optimizer, scope="layer"))
    same = WaldImportance(pw.Pruner(model, optimizer, scope="global"))
    for group in Groups(model).all(model):
        assert torch.equal(importance(group), same(group))
    total = sum(p.numel() for p in model.parameters())
    pruner_of(model, importance, global_pruning=global_pruning, max_pruning_ratio=0.9).step()
    assert sum(p.numel() for p in model.parameters()) < 0.75 * total
    assert model(model.x).shape == (4, 3)


# ---- beside Torch-Pruning's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Residual, Attention])
def test_magnitude_is_torch_prunings_own(kind):
    model, _ = trained(kind)
    ours = WaldImportance(pw.Pruner(model, criterion="magnitude"), reduction="sum")
    theirs = tp.importance.MagnitudeImportance(p=2, group_reduction="sum", normalizer=None, target_types=LAYERS)
    first = WaldImportance(pw.Pruner(model, criterion="magnitude"), reduction="first", normalizer="max")
    their_first = tp.importance.MagnitudeImportance(p=2, group_reduction="first", normalizer="max", target_types=LAYERS)
    for group in Groups(model).all(model):
        torch.testing.assert_close(first(group), their_first(group).double())
        if not any(
            item.dep.target.module is getattr(model, "grouped", "") for item in group.items
        ):  # of grouped layers theirs counts each weight for every group
            torch.testing.assert_close(ours(group), theirs(group).double())


def test_the_largest_mean_of_the_members():
    model, _ = trained(Depthwise)
    pruner = pw.Pruner(model, criterion="magnitude")
    squares = [model.stem.weight.square(), model.depthwise.weight.square(), model.up.weight.square()]
    expected = torch.stack([one.detach().double().flatten(1).mean(1) for one in squares]).amax(0)
    torch.testing.assert_close(WaldImportance(pruner, reduction="max")(Groups(model)[model.stem]), expected)


def test_biases_and_norms_count_where_they_are_targets_and_others_only_order():
    model, _ = trained(Residual)
    pruner = pw.Pruner(model, criterion="magnitude", targets=["stem", "stem.bias", "norm", "norm.bias"])
    expected = sum(
        p.detach().double().square().flatten(1 if p.dim() > 1 else 0).reshape(8, -1).sum(1)
        for p in (model.stem.weight, model.stem.bias, model.norm.weight, model.norm.bias)
    )
    importance = WaldImportance(pruner, reduction="sum")
    torch.testing.assert_close(importance(Groups(model)[model.stem]), expected)
    with pytest.warns(UserWarning, match="group of inner .* has no weight that is a target of the Pruner"):
        assert importance(Groups(model)[model.inner]) is None


def test_what_is_not_known_to_go_with_a_channel_is_left_out_and_said():
    model, _ = trained(Residual)
    model.norm = nn.PReLU(8)
    importance = WaldImportance(pw.Pruner(model, criterion="magnitude", targets=["stem", "norm.weight"]))
    with pytest.warns(UserWarning, match="the weights of norm .* are left out") as said:
        given = [importance(Groups(model)[model.stem]) for _ in range(2)]
    assert len(said) == 1
    torch.testing.assert_close(given[1], model.stem.weight.detach().double().square().flatten(1).mean(1))


def test_some_channels_of_a_group_are_as_they_are_in_all():
    model, optimizer = trained(Residual)
    importance = WaldImportance(pw.Pruner(model, optimizer))
    graph = pruner_of(model, importance).DG
    some = graph.get_pruning_group(model.stem, tp.prune_conv_out_channels, idxs=[6, 2])
    torch.testing.assert_close(importance(some), importance(Groups(model)[model.stem])[[6, 2]])


def test_dead_weights_count_nothing_and_a_lost_channel_goes_first():
    model, _ = trained(Depthwise)
    sigma = {name: torch.rand_like(param) + 0.1 for name, param in model.named_parameters()}
    pruner = pw.Pruner(model, uncertainty=sigma, criterion="wald")
    masks = pruner.masks
    for name in ("stem.weight", "depthwise.weight", "up.weight"):
        masks[name][3] = False
    pruner.set_masks(masks)
    scores = WaldImportance(pruner)(Groups(model)[model.stem])
    assert scores.argmin() == 3
    assert scores[3] == 0


# ---- after training, and after removal -----------------------------------------------------------------------------


def test_scores_are_those_of_the_moment_it_is_asked():
    model, optimizer = trained(Residual)
    importance = WaldImportance(pw.Pruner(model, optimizer))
    found = Groups(model)
    before = importance(found[model.stem])
    train(model, optimizer)
    after = importance(found[model.inner]), importance(found[model.stem])
    anew = WaldImportance(pw.Pruner(model, optimizer))
    assert torch.equal(after[0], anew(found[model.inner]))
    assert torch.equal(after[1], anew(found[model.stem]))
    assert not torch.equal(after[1], before)


def test_all_groups_of_a_step_are_scored_at_once(monkeypatch):
    model, optimizer = trained(Residual)
    importance, calls = WaldImportance(pw.Pruner(model, optimizer)), []
    scores = pw.Pruner.scores
    monkeypatch.setattr(pw.Pruner, "scores", lambda self, **given: calls.append(1) or scores(self, **given))
    pruner_of(model, importance, 0.2, iterative_steps=2).step()
    assert calls == [1]


def test_after_a_removal_the_pruner_says_so_and_a_new_one_holds_what_is_left():
    model, optimizer = trained(Residual)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.5)
    importance = WaldImportance(pruner)
    outer = pruner_of(model, importance, 0.4, iterative_steps=2)
    outer.step()
    left = {name: p.detach() != 0 for name, p in model.named_parameters() if name in pruner.masks}
    gone = "'stem.weight' is not the parameter it was when the Pruner was attached: attach a new Pruner"
    assert gone in repr(pruner)
    assert any(gone in note for note in pruner.report.notes)
    for ask in (lambda: pruner.sparsity, pruner.scores, lambda: pruner.prune(0.9), outer.step):
        with pytest.raises(ValueError, match="'stem.weight' is not the parameter it was"):
            ask()
    with pytest.warns(UserWarning, match="was taken from the model, or has another shape now"):
        model.state_dict()
    pruner.detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    importance.pruner = pw.Pruner(model, optimizer)
    importance.pruner.hold_zeros()
    train(model, optimizer)
    assert all(torch.equal(model.get_parameter(name) != 0, mask) for name, mask in left.items())
    outer.current_step = 1  # the step that was refused is taken now
    outer.step()
    assert model.joined.out_channels == 6
    assert model(model.x).shape == (4, 3)


# ---- errors --------------------------------------------------------------------------------------------------------


def test_what_was_found_by_default_is_told():
    torch.manual_seed(0)
    model = Residual()
    importance = WaldImportance(pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert "not asked yet" in repr(importance)
    with pytest.warns(UserWarning, match="criterion: magnitude, since .* SGD keeps no mean square"):
        pruner_of(model, importance).step()
    assert "scores by Magnitude()" in repr(importance)
    model, optimizer = trained(Residual)
    importance = WaldImportance(pw.Pruner(model, optimizer))
    pruner_of(model, importance).step()
    assert "scores by MagnitudeUncertainty(relative_to='targets'), sigma from SecondMoment()" in repr(importance)
    assert any("compares layers, so sigma and lambda are scaled" in note for note in importance.notes)


def shapes(model):
    return {name: tuple(param.shape) for name, param in model.named_parameters()}


def test_a_pruner_of_another_model_and_a_bad_sigma_remove_nothing():
    model, optimizer = trained(Residual)
    before = shapes(model)
    for pruner, error in [
        (pw.Pruner(trained(Residual)[0], criterion="magnitude"), "no layer of the Residual of this Pruner"),
        (pw.Pruner(model, uncertainty={n: p * torch.nan for n, p in model.named_parameters()}), "NaN or negative"),
        (pw.Pruner(model, uncertainty={"stem.weight": model.stem.weight.abs()}), "has no sigma for 'inner.weight'"),
        (
            pw.Pruner(model, torch.optim.Adam(model.parameters()), criterion="wald"),
            "no second moment for 'stem.weight'",
        ),
    ]:
        with pytest.raises(ValueError, match=error):
            pruner_of(model, WaldImportance(pruner)).step()
        assert shapes(model) == before
    pruner = pw.Pruner(model, optimizer)
    prune.l1_unstructured(model.stem, "weight", 0.5)
    with pytest.raises(ValueError, match="'stem.weight' is not the parameter it was"):
        pruner_of(model, WaldImportance(pruner)).step()


def test_bad_arguments_are_refused_at_once():
    model, optimizer = trained(Depthwise)
    pruner = pw.Pruner(model, optimizer)
    with pytest.raises(ValueError, match="reduction='prod': give one of 'mean', 'sum'"):
        WaldImportance(pruner, reduction="prod")
    with pytest.raises(ValueError, match="normalizer='median': give a function"):
        WaldImportance(pruner, normalizer="median")
    with pytest.raises(TypeError, match="Depthwise is no Pruner"):
        WaldImportance(model)


def test_a_version_that_is_not_known_is_refused(monkeypatch):
    from prunewald.integrations import framework

    model, optimizer = trained(Depthwise)
    monkeypatch.setattr(framework, "version", lambda name: "2.0.0")
    with pytest.raises(ImportError, match=r"torch_pruning 2.0.0 is installed, .*torch-pruning>=1.6,<2"):
        WaldImportance(pw.Pruner(model, optimizer))
