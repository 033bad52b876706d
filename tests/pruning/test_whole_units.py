"""Units of coupled groups go as a whole: which, how many, and what of the rest."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.newer import ResNet8, Transformer
from prunewald.model.graph import find_groups
from prunewald.model.uses import uses
from tests.pruning.coupled import Forked, X, cnn

SHARE_OF = ("weights", "filters", "parameters", "macs")


def pruner(model: nn.Module, **chosen) -> pw.Pruner:
    return pw.Pruner(model, **{"criterion": "magnitude", "pattern": pw.Filter(), **chosen})


def masked_places(model, x, masks) -> None:
    """Each unit is masked in all targets that have it, or in none of them."""
    for group in find_groups(model, x):
        gone = []
        for member in group.members:
            if member.name in masks:
                rows = ~masks[member.name].movedim(member.axis, 0).flatten(1).any(1)
                gone.append(rows[member.at].all(1))
        first = next(one for one, member in zip(gone, group.members, strict=False) if member.role == "makes")
        assert all(torch.equal(one, first) for one in gone), group.name
        assert not first.all()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (cnn, (1, 8, 8)),
        (Forked, (1, 8, 8)),
        (lambda: ResNet8(1, 8, 4), (1, 8, 8)),
        (lambda: Transformer(1, 8, 4), (1, 8, 8)),
    ],
)
@pytest.mark.parametrize("scope", [None, "global"])
def test_a_unit_goes_from_all_layers_of_its_group(model, shape, scope):
    torch.manual_seed(0)
    net, x = model(), torch.randn(2, *shape)
    one = pruner(net, scope=scope)
    report = one.prune(0.5, example_inputs=x)
    assert report.sparsity == pytest.approx(0.5, abs=0.05)
    masked_places(net, x, one.masks)
    assert all(1 <= group.kept <= group.units for group in report.groups)
    assert sum(group.kept for group in report.groups) < sum(group.units for group in report.groups)


def test_over_the_model_a_group_of_small_scores_is_not_emptied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        model[0].weight *= 100.0  # as loud as all others together
        model[4].weight *= 0.01
    report = pruner(model, scope="global").prune(0.5, example_inputs=torch.randn(2, 8), of="filters")
    assert all(group.kept >= 8 for group in report.groups), report.groups


def left_by_hand(model: nn.Module, masks, beside, of: str) -> float:
    """Which share is gone, by what a smaller model would have: rows and columns that are pruned as a whole."""
    left = total = 0.0
    times = uses(model, X[:1])
    for name, param in model.named_parameters():
        price = {"weights": float(name in masks), "parameters": 1.0, "macs": times.get(name, 0.0)}[of]
        mask = masks.get(name, beside.get(name, torch.ones_like(param).bool()))
        left, total = left + price * int(mask.sum()), total + price * param.numel()
    return 1 - left / total


@pytest.mark.parametrize("of", ["weights", "parameters", "macs"])
@pytest.mark.parametrize("model", [cnn, Forked])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_share_is_of_what_was_asked_and_the_report_says_what_was_reached(of, model, share):
    one = pruner(model())
    report = one.prune(share, example_inputs=X[:1], of=of)
    reached = left_by_hand(one.model, one.masks, one.beside, of)
    assert reached == pytest.approx(share, abs=0.06)
    if abs(reached - share) > 6e-4:
        assert any(f"{reached:.2%} of the" in note and f"{share:.2%}" in note for note in report.notes)


def test_of_filters_is_the_share_of_units():
    report = pruner(cnn()).prune(0.5, example_inputs=X[:1], of="filters")
    assert [(group.name, group.kept, group.units) for group in report.groups] == [("0", 4, 8), ("3", 6, 12)]


def test_small_groups_take_large_steps_and_others_make_up_for_them():
    net = nn.Sequential(
        nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 4)
    )
    report = pruner(net).prune(0.6, example_inputs=torch.randn(1, 8))
    assert report.sparsity == pytest.approx(0.6, abs=2e-3)


def test_li_takes_the_smallest_norms_of_the_making_filters():
    net = cnn()
    norms = net[0].weight.detach().abs().sum((1, 2, 3))
    one = pruner(net, pattern=pw.Filter(score="l1"))
    one.prune({"0": 0.5}, example_inputs=X[:1])
    assert set((~one.beside["1.weight"]).nonzero().flatten().tolist()) == set(norms.argsort()[:4].tolist())


@pytest.mark.parametrize("score", ["wald", "mean"])
def test_a_unit_is_scored_by_all_weights_that_go_with_it(score):
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    sigma = {"0.weight": torch.rand(5, 6) + 0.1, "2.weight": torch.rand(3, 5) + 0.1}
    one = pw.Pruner(net, criterion="wald", uncertainty=sigma, pattern=pw.Filter(score=score))
    z = [(net[0].weight / sigma["0.weight"]).abs(), (net[2].weight / sigma["2.weight"]).abs().T]
    power = 2 if score == "wald" else 1
    by_hand = torch.cat(z, 1).detach().pow(power).mean(1)
    one.prune({"0": 0.4}, example_inputs=torch.randn(1, 6))
    gone = (~one.masks["0.weight"]).all(1).nonzero().flatten()
    assert set(gone.tolist()) == set(by_hand.argsort()[:2].tolist())
    assert (~one.masks["2.weight"]).all(0).nonzero().flatten().tolist() == gone.tolist()


def test_by_layer_the_others_stay():
    one = pruner(cnn())
    report = one.prune({"3": 0.25}, example_inputs=X[:1])
    assert [(group.name, group.kept) for group in report.groups] == [("0", 8), ("3", 9)]


def test_further_prunings_take_the_groups_that_are_known():
    one = pruner(cnn())
    assert one.groups == []
    assert one.prune(0.3, example_inputs=X[:1], dry_run=True).groups
    assert one.groups == []
    one.prune(0.3, example_inputs=X[:1])
    before = one.masks
    report = one.prune(0.7)
    assert report.sparsity == pytest.approx(0.7, abs=0.05)
    assert not any("each tensor for itself" in note for note in report.notes)
    assert all(not (mask & ~before[name]).any() for name, mask in one.masks.items())
    masked_places(one.model, X[:1], one.masks)
    assert one.prune(0.7).sparsity == report.sparsity


def test_a_schedule_prunes_by_the_groups_that_were_found_before():
    net = cnn()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    one = pruner(net, schedule=pw.Cubic(0.6, begin=1, end=3), optimizer=optimizer)
    assert [group.name for group in one.couple(X[:1])] == ["0", "3"]
    for _ in range(3):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()
    assert one.report is not None
    assert one.report.groups
    assert one.sparsity == pytest.approx(0.6, abs=0.05)
    masked_places(net, X[:1], one.masks)


def test_without_example_inputs_each_tensor_goes_for_itself_and_a_note_says_so():
    report = pruner(cnn()).prune(0.5)
    assert any("each tensor for itself" in note and "example_inputs=" in note for note in report.notes)
    assert report.groups == ()


def test_what_stays_whole_is_in_the_report_with_its_reason():
    net = cnn()
    report = pruner(net, ignore="3").prune(0.1, example_inputs=X[:1])
    assert [group.name for group in report.groups] == ["0"]
    note = next(note for note in report.notes if note.startswith("left whole"))
    assert "8.weight (the model returns it)" in note


def test_what_only_reads_may_be_ignored():
    assert pruner(cnn(), ignore="8").prune(0.1, example_inputs=X[:1]).groups[1].kept < 12


def test_a_group_that_is_made_by_something_ignored_stays():
    net = ResNet8(1, 8, 4)
    x = torch.randn(1, 1, 8, 8)
    report = pruner(net, ignore="blocks.1.around").prune(0.3, example_inputs=x)
    assert "blocks.1.conv2" not in [group.name for group in report.groups]
    assert any("'blocks.1.around.weight' makes them too" in note for note in report.notes)


def test_more_than_can_go_leaves_one_unit_of_each_group():
    one = pruner(cnn())
    report = one.prune(0.999, example_inputs=X[:1])
    assert [group.kept for group in report.groups] == [1, 1]
    assert any("no more can go" in note for note in report.notes)


def test_what_cannot_be_is_refused_and_the_model_untouched():
    net = cnn()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    one = pruner(net)
    with pytest.raises(ValueError, match=r"of='macs'.*example_inputs"):
        one.prune(0.5, of="macs")
    with pytest.raises(ValueError, match=r"of='bits'.*'macs'"):
        one.prune(0.5, example_inputs=X, of="bits")
    with pytest.raises(ValueError, match=r"of='macs' and a sparsity by layer"):
        one.prune({"0": 0.5}, example_inputs=X, of="macs")
    with pytest.raises(ValueError, match=r"'8.weight'.*the model returns it"):
        one.prune({"8": 0.5}, example_inputs=X)
    with pytest.raises(ValueError, match=r"example_inputs"):
        one.prune(0.5, example_inputs=torch.randn(2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"example_inputs=.*Filter\(\)"):
        pruner(net, pattern="element").prune(0.5, example_inputs=X)
    with pytest.raises(ValueError, match=r"whole units.*scope='layer'"):
        pruner(net, scope="row").prune(0.5, example_inputs=X)
    with pytest.raises(ValueError, match=r"couple\(\).*Filter\(\)"):
        pruner(net, pattern="element").couple(X)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    one.prune(0.6, example_inputs=X)
    with pytest.raises(ValueError, match=r"0\.2 would bring back"):
        one.prune(0.2)
    with pytest.raises(ValueError, match=r"0\.1.*'0\.weight'|0\.1 would bring back"):
        one.prune({"0": 0.1})


def test_layers_of_one_group_get_one_share():
    net = ResNet8(1, 8, 4)
    x = torch.randn(1, 1, 8, 8)
    one = pruner(net)
    with pytest.raises(ValueError, match="give one share"):
        one.prune({"conv": 0.5, "blocks.0.conv2": 0.25}, example_inputs=x)
    assert one.prune({"conv": 0.5, "blocks.0.conv2": 0.5}, example_inputs=x).groups[0].kept == 8


def test_groups_of_ones_own():
    net = cnn()
    one = pruner(net)
    groups = [group for group in find_groups(net, X[:1]) if group.name == "3"]
    one.couple(X[:1], groups)
    assert [group.name for group in one.prune(0.3).groups] == ["3"]


def test_the_report_shows_units_and_goes_through_plain_data():
    report = pruner(cnn()).prune(0.5, example_inputs=X[:1])
    assert "coupled group" in str(report)
    assert "coupled group" in report._repr_html_()
    assert pw.Report.from_dict(__import__("dataclasses").asdict(report)).groups == list(report.groups)
    assert report.to_dict()["groups"][0] == {"name": "0", "units": 8, "kept": report.groups[0].kept}


def test_finding_groups_is_no_data_for_a_criterion_that_reads_inputs():
    net = cnn()
    one = pw.Pruner(net, criterion="wanda", pattern=pw.Filter(), scope="layer")
    net.eval()
    net(X)
    scores = one.scores()
    one.couple(torch.full((4, 1, 8, 8), 100.0))
    assert all(torch.equal(score, one.scores()[name]) for name, score in scores.items())


def test_multiplications_of_a_model_that_calls_no_known_layer():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return torch.relu(x @ self.w1) @ self.w2

    one = pruner(Bare())
    with pytest.raises(ValueError, match="of='macs'.*no layer whose multiplications are known"):
        one.prune(0.4, example_inputs=torch.randn(2, 6), of="macs")
    report = one.prune(0.4, example_inputs=torch.randn(2, 6))
    assert [(group.units, group.kept) for group in report.groups] == [(5, 3)]
