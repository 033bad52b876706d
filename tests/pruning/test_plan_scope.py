"""What the default allocation does: who shares out what, and that it never asks a weight back."""

import copy

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.allocation import LAMP, layer_count
from prunewald.core.ranking import KnownScores, Ranked
from tests.training import sgd, train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"0.weight": 120, "2.weight": 400, "4.weight": 80}


def kept(report):
    return {row.name: row.kept for row in report.rows}


def lamp_of_magnitudes(pruner, sparsity):
    weights = {n: w.detach() for n, w in pruner.targets().items()}
    return LAMP()(KnownScores({n: Ranked(w, w) for n, w in weights.items()}), sparsity)


def test_one_sparsity_is_shared_out_by_lamp_of_the_weights_and_the_report_says_so():
    pruner = trained_pruner()
    expected = lamp_of_magnitudes(pruner, 0.9)
    report = pruner.prune(0.9)
    assert kept(report) == expected
    assert len({expected[n] / SIZES[n] for n in SIZES}) == 3
    assert report.sparsity == 0.9
    assert [i for i, note in enumerate(report.notes) if "by default: LAMP" in note and "scope='layer'" in note] == [1]
    assert report.scope == "lamp"
    assert pruner.scope is None


def test_what_was_chosen_is_no_default():
    report = trained_pruner(scope="lamp").prune(0.9)
    assert not any("LAMP" in note for note in report.notes)
    assert kept(report) == kept(trained_pruner().prune(0.9))


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scores_with_a_heavy_tail_move_no_weight_from_layer_to_layer(scale):
    def heavy(stats):
        return stats.weight.abs().pow(40) * (scale if stats.name == "2.weight" else 1)

    model = wide()
    plain = pw.Pruner(copy.deepcopy(model), criterion="magnitude").prune(0.9)
    report = pw.Pruner(model, criterion=heavy).prune(0.9)
    assert kept(report) == kept(plain)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"0": 0.9}, {"0.weight": 12, "2.weight": 400, "4.weight": 80}),
        ({"*": 0.9, "2": 0.5}, {"0.weight": 12, "2.weight": 200, "4.weight": 8}),
    ],
    ids=str,
)
def test_each_that_a_dict_names_has_exactly_the_share_it_says(asked, expected):
    report = trained_pruner().prune(asked)
    assert kept(report) == expected
    assert report.scope == "layer"


def test_of_one_target_alone_the_share_is_exact_and_nothing_is_said():
    report = trained_pruner(targets="2").prune(0.9)
    assert kept(report) == {"2.weight": 40}
    assert not any("each layer" in note for note in report.notes)


def test_slices_are_targets_of_their_own():
    pruner = trained_pruner(targets=["2.weight[:10]", "2.weight[10:]", "4"])
    expected = lamp_of_magnitudes(pruner, 0.8)
    assert kept(pruner.prune(0.8)) == expected


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4))
    model[1].weight = model[0].weight
    report = pw.Pruner(model, criterion="magnitude").prune(0.75)
    assert list(kept(report)) == ["0.weight", "2.weight"]
    assert report.kept == 24


@pytest.mark.parametrize("pattern", [pw.Filter(), pw.Block(2, 2)], ids=str)
def test_groups_go_by_the_same_share_of_each_layer(pattern):
    model = wide()
    report = pw.Pruner(model, criterion="magnitude", pattern=pattern, ignore="0").prune(0.5)
    assert [row.sparsity for row in report.rows] == [0.5, 0.5]
    assert any("the same share of each layer" in note and "scope='lamp'" in note for note in report.notes)
    uneven = pw.Pruner(wide(), criterion="magnitude", pattern=pattern, scope="lamp", ignore="0").prune(0.5)
    assert uneven.rows[0].sparsity > uneven.rows[1].sparsity


def test_a_pattern_with_a_share_of_its_own_leaves_nothing_to_share_out():
    report = pw.Pruner(wide(), criterion="magnitude", pattern=pw.KeepNOfM(2, 4), ignore="0").prune()
    assert [row.sparsity for row in report.rows] == [0.5, 0.5]
    assert report.notes == []


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize("asked", [{"threshold": 1.0}, {"alpha": 0.3}, {"fdr": 0.3}], ids=str)
def test_where_a_limit_decides_each_target_is_looked_at_alone(asked):
    known = pw.SecondMoment(samples=100, batch_size=4, likelihood="cross_entropy")  # what a test needs
    default, each = (trained_pruner(uncertainty=known, **own).prune(**asked) for own in ({}, {"scope": "layer"}))
    assert kept(default) == kept(each)
    assert default.scope == "layer"
    assert not any("LAMP" in note for note in default.notes)


def test_a_second_pruning_asks_nothing_back_though_the_survivors_have_changed():
    pruner = trained_pruner()
    first = kept(pruner.prune(0.8))
    with torch.no_grad():  # what is left of one layer has grown beyond all others
        pruner.model[4].weight[pruner.masks["4.weight"]] = 100 + torch.rand(first["4.weight"])
    second = kept(pruner.prune(0.85))
    assert second["4.weight"] == first["4.weight"], "it would keep more, and has no more"
    assert sum(second.values()) == layer_count(600, 0.85)
    with pytest.raises(ValueError, match=r"sparsity 0.5 .*back"):
        pruner.prune(0.5)


def test_what_was_written_to_pruned_weights_does_not_bring_them_back():
    pruner = trained_pruner()
    first = kept(pruner.prune(0.8))
    with torch.no_grad():
        pruner.model[0].weight.add_(10.0)  # and no forward pass, which would find it
    second = kept(pruner.prune(0.85))
    assert all(second[n] <= first[n] for n in SIZES)
    assert sum(second.values()) == layer_count(600, 0.85)


def test_a_schedule_reaches_its_end_exactly_and_never_goes_back():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)  # far enough to change the counts
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.9, begin=5, end=50, every=5))
    masks = pruner.masks
    for step in range(50):
        train(model, optimizer, 1, first=step)
        assert all((mask <= masks[n]).all() for n, mask in pruner.masks.items())
        masks = pruner.masks
    assert pruner.report.kept == 60
    assert pruner.report.scope == "lamp"


def test_after_another_scope_the_rest_is_taken_where_there_is_some():
    model = wide()
    first = pw.Pruner(model, criterion="magnitude", scope="layer")
    before = kept(first.prune(0.9))
    first.detach()
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.hold_zeros()
    after = kept(pruner.prune(0.95))
    assert sum(after.values()) == 30
    assert all(after[n] <= before[n] for n in SIZES)


def test_surgery_shares_out_by_lamp_too_and_weights_still_come_back():
    model = wide()
    optimizer = sgd(model)
    surgery = pw.Surgery(model, optimizer, sparsity=0.8, criterion="magnitude", margin=0.0, gamma=0.0)
    back, masks = 0, None
    for step in range(30):
        train(model, optimizer, 1, first=step)
        now = surgery.masks
        back += 0 if masks is None else sum(int((now[n] & ~masks[n]).sum()) for n in now)
        masks = now
    living = {n: int(m.sum()) for n, m in masks.items()}
    assert sum(living.values()) == 120
    assert living["2.weight"] / 400 < 0.2 < living["4.weight"] / 80
    assert back > 0
    assert surgery.prune(0.9).scope == "lamp"


def test_surgery_by_layer_is_exact_for_each():
    model = wide()
    optimizer = sgd(model)
    surgery = pw.Surgery(model, optimizer, sparsity={"0": 0.5, "2": 0.8}, criterion="magnitude", margin=0.0, gamma=0.0)
    train(model, optimizer, 5)
    assert {n: int(m.sum()) for n, m in surgery.masks.items()} == {"0.weight": 60, "2.weight": 80, "4.weight": 80}


# ---- what compares layers ------------------------------------------------------------------------------------------


def by_hand(pruner, model):
    """tau with one scale of sigma and one lambda for all targets."""
    errors = {n: pruner.optimizers[0].state[p]["exp_avg_sq"].rsqrt() for n, p in pruner.targets().items()}
    everything = torch.cat([w.detach().flatten() for w in pruner.targets().values()])
    spread = float(everything.double().std())
    median = float(torch.cat([e[e.isfinite()] for e in errors.values()]).median())
    return {n: w.detach().abs() / (spread + errors[n] * (spread / median)) for n, w in pruner.targets().items()}


def test_one_order_over_all_has_one_scale_of_sigma_and_of_lambda():
    pruner = trained_pruner(scope="global")
    expected = by_hand(pruner, pruner.model)
    found = pruner.scores()
    for name, scores in expected.items():
        moved = scores > 0
        torch.testing.assert_close(found[name][moved], scores[moved])
    report = pruner.prune(0.7)
    assert "MagnitudeUncertainty(relative_to='targets')" in report.criterion
    assert any("scope global compares layers" in note for note in report.notes)
    kept_scores = torch.cat([expected[n][m] for n, m in pruner.masks.items()])
    gone = torch.cat([expected[n][~m] for n, m in pruner.masks.items()])
    assert kept_scores.min() > gone.max()


def test_that_scale_is_of_what_lives():
    pruner = trained_pruner(scope="global")
    pruner.prune(0.5)
    masks = pruner.masks
    errors = {n: pruner.optimizers[0].state[p]["exp_avg_sq"].rsqrt() for n, p in pruner.targets().items()}
    weights = torch.cat([w.detach()[masks[n]] for n, w in pruner.targets().items()])
    living = torch.cat([e[masks[n] & e.isfinite()] for n, e in errors.items()])
    spread, median = float(weights.double().std()), float(living.sort().values[(len(living) - 1) // 2])
    for name, scores in pruner.scores().items():
        w = pruner.targets()[name].detach()
        expected = w.abs() / (spread + errors[name] * (spread / median))
        moved = masks[name] & (expected > 0)
        torch.testing.assert_close(scores[moved], expected[moved])


def test_what_is_in_one_unit_already_stays_as_it_was():
    criterion = pw.MagnitudeUncertainty(relative_to=None)
    for uncertainty in (pw.SecondMoment(samples=100, batch_size=16), pw.PseudoBootstrap(last=5)):
        report = trained_pruner(criterion=criterion, uncertainty=uncertainty, scope="global").prune(0.5)
        assert not any("compares layers" in note for note in report.notes)
        assert report.criterion == "MagnitudeUncertainty(relative_to=None)"


def test_a_tensor_of_zeros_alone_goes_whole_with_a_warning():
    """It passes nothing on before either; every other keeps its last weight."""
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 40), nn.Linear(40, 2))
    with torch.no_grad():
        model[1].weight.zero_()
    with pytest.warns(UserWarning, match=r"1\.weight lost all weights"):
        report = pw.Pruner(model, criterion="magnitude").prune(0.99)
    assert report.scope == "lamp"
    assert report.emptied == ["1.weight"]
    assert all(row.kept for row in report.rows if row.name != "1.weight")
