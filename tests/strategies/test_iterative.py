import functools
import json
import math
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import prunewald as pw
from prunewald.checks import copied
from tests.resuming import same
from tests.strategies.runs import Work
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")
LEVELS = (0.3, 0.6, 0.8)


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


CHOICES = {
    "magnitude": {"criterion": "magnitude", "scope": "global"},
    "window": {"uncertainty": pw.PseudoBootstrap(last=10)},
    "adam": {"optimizer": adam},
    "sgd": {"uncertainty": pw.SecondMoment()},
    "platon": {"criterion": "platon"},
}


def trained(steps=12, **choice):
    work = Work(**choice)
    work.steps(steps)
    return work


# ---- what it does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
def test_it_is_the_loop_one_would_write(choice):
    by_hand, called, looped = (trained(**CHOICES[choice]) for _ in range(3))
    torch.manual_seed(7)
    reports = []
    for level in LEVELS:
        reports.append(by_hand.pruner.prune(level))
        last = by_hand.steps(12)
    torch.manual_seed(7)
    found = pw.iterative(called.pruner, LEVELS, called.train)
    torch.manual_seed(7)
    for one in pw.rounds(looped.pruner, LEVELS):
        looped.train(one)
    assert same(called.state(), by_hand.state())
    assert same(looped.state(), by_hand.state())
    assert [one.report for one in found] == reports
    assert [(one.index, one.sparsity) for one in found] == [(1, 0.3), (2, 0.6), (3, 0.8)]
    assert found[-1].result == last
    assert called.pruner.sparsity == pytest.approx(0.8, abs=0.01)
    for name, mask in called.pruner.masks.items():
        assert not minus_zero_or_worse(called.model.get_parameter(name), ~mask)


def top(score, alive, level):
    """The mask of the highest scores among the living."""
    keep = alive.numel() - round(level * alive.numel())
    order = torch.where(alive, score, -torch.inf).flatten().argsort(descending=True)
    mask = torch.zeros(alive.numel(), dtype=torch.bool)
    mask[order[:keep]] = True
    return mask.view_as(alive)


def tau(weight, alive, sigma):
    return weight.abs() / (weight[alive].std() + sigma)


def pseudo_bootstrap(history, work, name, alive):
    return torch.stack([weights[name] for weights in history[-5:]]).std(0)


def second_moment(history, work, name, alive):
    state = work.optimizer.state[work.model.get_parameter(name)]
    sigma = (state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).rsqrt()
    spread = work.model.get_parameter(name).detach()[alive].std()
    return sigma / sigma[alive].median() * spread


@pytest.mark.parametrize(
    ("choice", "sigma"),
    [
        ({"uncertainty": pw.PseudoBootstrap(last=5)}, pseudo_bootstrap),
        ({"optimizer": adam, "uncertainty": pw.SecondMoment()}, second_moment),
    ],
)
def test_sigma_and_spread_are_of_the_survivors(choice, sigma):
    """Round by round the masks are those of the formula, with what the training since the last round gave."""
    work = Work(criterion=pw.MagnitudeUncertainty(), **choice)
    history, expected = [], {}

    def watched(*_):
        history.append({n: p.detach().clone() for n, p in work.model.named_parameters()})

    work.optimizer.register_step_post_hook(watched)
    work.steps(6)

    def expect(level):
        masks = work.pruner.masks
        for name, alive in masks.items():
            weight = work.model.get_parameter(name).detach()
            expected[name] = top(tau(weight, alive, sigma(history, work, name, alive)), alive, level)

    for at, level in enumerate(LEVELS):
        expect(level)
        # One round at a time: what is expected of the next depends on the training of this one.
        for one in pw.rounds(work.pruner, LEVELS[at : at + 1]):
            assert all(torch.equal(work.pruner.masks[n], m) for n, m in expected.items()), level
            work.steps(6)
            assert one.sparsity == level


@pytest.mark.parametrize("estimator", [pw.FisherDiagonal(), pw.InverseFisher(inverse="damped")])
def test_an_offline_estimate_is_made_anew_of_the_survivors(estimator):
    work = trained(criterion=pw.MagnitudeUncertainty())
    x = torch.randn(64, 6)
    given, sigmas = work.pruner.uncertainty, []

    def estimate():
        masks = work.pruner.masks
        batches = [(x, torch.tanh(x[:, :4]))]
        sigma = estimator.estimate(work.model, batches, nn.functional.mse_loss, masks=masks)
        expected = {}
        for name, alive in masks.items():
            assert sigma[name][~alive].isinf().all()
            expected[name] = (tau(work.model.get_parameter(name).detach(), alive, sigma[name]), alive)
        sigmas.append(expected)
        return sigma

    def train(one):
        for name, (score, alive) in sigmas[-1].items():
            assert torch.equal(work.pruner.masks[name], top(score, alive, one.sparsity))
        assert "a dict of 4 tensors" in str(one.report)
        work.steps(6)

    pw.iterative(work.pruner, LEVELS, train, estimate=estimate)
    assert len(sigmas) == 3
    assert work.pruner.uncertainty is given


def test_levels_may_come_from_an_iterator():
    work = trained(criterion="magnitude")
    assert len(pw.iterative(work.pruner, (level for level in LEVELS), work.train)) == 3


# ---- rewinding ---------------------------------------------------------------------------------------------------


def test_rewound_weights_are_those_of_the_checkpoint_where_they_are_alive():
    work = Work(optimizer=adam)
    work.steps(5)
    early, weights = pw.Checkpoint(work.model, work.optimizer), copied(work.model.state_dict())
    moments = copied(work.optimizer.state_dict())
    work.steps(20)
    work.optimizer.param_groups[0]["lr"] = 0.5
    seen = []

    def train(one):
        masks = work.pruner.masks
        for name, value in work.model.state_dict().items():
            alive = masks.get(name, torch.ones_like(value, dtype=torch.bool))
            assert torch.equal(value, torch.where(alive, weights[name], 0.0)), name
        for at, (name, param) in enumerate(work.model.named_parameters()):
            alive = masks.get(name, torch.ones_like(param, dtype=torch.bool))
            state, before = work.optimizer.state[param], moments["state"][at]
            assert torch.equal(state["exp_avg"], torch.where(alive, before["exp_avg"], 0.0))
            assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"])
            assert state["step"] == before["step"] == 5
        assert work.optimizer.param_groups[0]["lr"] == 0.01
        work.steps(12)
        seen.append(masks)

    pw.iterative(work.pruner, LEVELS, train, rewind=early.weights_)
    assert [round(float(1 - m["0.weight"].float().mean()), 1) for m in seen] == [0.3, 0.6, 0.8]


def decayed(work, begun):
    """A training with a schedule of its own, that ends at nothing."""

    def train(one):
        scheduler = CosineAnnealingLR(work.optimizer, 6)
        begun.append(float(work.optimizer.param_groups[0]["lr"]))
        for _ in range(6):
            work.steps(1)
            scheduler.step()

    return train


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_rewound_learning_rate_starts_every_round_alike(lr):
    work = trained(uncertainty=pw.SecondMoment(), optimizer=lambda params: torch.optim.SGD(params, lr=lr, foreach=True))
    early, begun, weights = pw.Checkpoint(work.model, work.optimizer), [], []
    decayed(work, [])(None)
    held = work.optimizer.param_groups[0]["lr"]
    assert held < 1e-6
    train = decayed(work, begun)

    def watched(one):
        weights.append(copied(work.model.state_dict()))
        train(one)

    pw.iterative(work.pruner, LEVELS, watched, rewind=early.lr_)
    assert begun == [pytest.approx(0.1)] * 3
    assert not torch.equal(weights[0]["0.weight"][0], weights[1]["0.weight"][0]), "the weights go on"
    if isinstance(held, torch.Tensor):
        assert work.optimizer.param_groups[0]["lr"] is held, "what a captured step reads"


def test_a_rewound_learning_rate_is_also_what_the_next_scheduler_begins_with():
    work, begun = trained(criterion="magnitude"), []
    early = pw.Checkpoint(work.model, work.optimizer)
    work.optimizer.param_groups[0]["lr"] = 7.0
    LambdaLR(work.optimizer, lambda step: 1.0)  # leaves its initial_lr behind, and LambdaLR goes by that

    def train(one):
        LambdaLR(work.optimizer, lambda step: 1.0)
        begun.append(work.optimizer.param_groups[0]["lr"])

    pw.iterative(work.pruner, LEVELS, train, rewind=early.lr_)
    assert begun == [0.1] * 3


def test_without_rewinding_a_decay_lasts():
    """Guards the test above."""
    work, begun = trained(criterion="magnitude"), []
    pw.iterative(work.pruner, LEVELS, decayed(work, begun))
    assert begun[1:] == [pytest.approx(0, abs=1e-6)] * 2


# ---- learning rate and dropout -----------------------------------------------------------------------------------


def two_groups(params):
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": torch.tensor(0.2)}, {"params": rest, "lr": 0.1}], foreach=True)


@pytest.mark.parametrize("schedule", [False, True])
def test_the_share_of_the_learning_rate_does_not_compound(schedule):
    work, begun = trained(criterion="magnitude", optimizer=two_groups), []

    def train(one):
        # LambdaLR goes by the `initial_lr` that the first scheduler leaves behind.
        scheduler = LambdaLR(work.optimizer, lambda step: 0.5**step) if schedule else None
        begun.append([float(group["lr"]) for group in work.optimizer.param_groups])
        for _ in range(3):
            work.steps(1)
            if scheduler is not None:
                scheduler.step()

    pw.iterative(work.pruner, LEVELS, train, lr=0.1)
    assert begun == [pytest.approx([0.02, 0.01])] * 3
    pw.iterative(work.pruner, (0.9,), train, lr=1.0)
    final = 0.5**3 if schedule else 1
    assert begun[-1] == pytest.approx([0.02 * final, 0.01 * final]), "a share of what it is at the start"


def test_the_learning_rate_goes_on_from_the_folder(tmp_path):
    work, begun = trained(criterion="magnitude"), []

    def train(one):
        begun.append(work.optimizer.param_groups[0]["lr"])
        if one.index == 2 and len(begun) == 2:
            raise KeyboardInterrupt
        work.optimizer.param_groups[0]["lr"] = 123.0

    with pytest.raises(KeyboardInterrupt):
        pw.iterative(work.pruner, LEVELS, train, lr=0.1, folder=tmp_path)
    pw.iterative(work.pruner, LEVELS, train, lr=0.1, folder=tmp_path)
    assert begun == [pytest.approx(0.01)] * 4


def test_dropout_follows_the_formula():
    """D_r = D_o sqrt(C_ir / C_io), C_i the connections into the layer whose outputs are dropped."""
    work, rates = trained(criterion="magnitude", scope="global"), []

    def train(one):
        row = one.report.rows[0]
        assert row.name == "0.weight"
        assert work.model[2].p == pytest.approx(0.2 * math.sqrt(row.kept / 48))
        rates.append(work.model[2].p)

    pw.iterative(work.pruner, (0.3, 0.6), train, dropout=True)
    pw.iterative(work.pruner, (0.8,), train, dropout=True)  # goes on, and does not compound
    assert 0.2 > rates[0] > rates[1] > rates[2]


def test_dropout_goes_on_from_the_folder_in_the_same_process(tmp_path):
    work, rates = trained(criterion="magnitude"), []

    def train(one):
        rates.append((one.sparsity, work.model[2].p))
        if len(rates) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pw.iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    pw.iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    assert [(level, pytest.approx(0.2 * math.sqrt(1 - level))) for level in (0.25, 0.5, 0.5, 0.75)] == rates


def test_dropout_of_a_model_that_was_pruned_before_goes_on_from_the_folder(tmp_path):
    work, fresh = (trained(criterion="magnitude") for _ in range(2))
    work.pruner.prune(0.5)  # and 0.2 is the rate for that

    def train(one):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pw.iterative(work.pruner, (0.75,), train, dropout=True, folder=tmp_path)
    pw.iterative(fresh.pruner, (0.75,), fresh.train, dropout=True, folder=tmp_path)
    assert fresh.model[2].p == pytest.approx(0.2 * math.sqrt(0.25 / 0.5))


class Late(nn.Module):
    """Holds its dropout after all layers, as many models do."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(4, 10), nn.Linear(10, 2), nn.Dropout(0.5)


def test_dropout_may_be_told_its_layer():
    model = Late()
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune({"outer": 0.5})
    for _ in pw.rounds(pruner, (0.75,), dropout={"drop": "inner"}):
        assert model.drop.p == pytest.approx(0.5 * math.sqrt(0.25))
    for wrong in ({"drop": "inner.bias"}, {"dropped": "inner"}, {"outer": "inner"}):
        with pytest.raises(ValueError, match=r"of \['drop'\], and the layer before it, of \['inner', 'outer'\]"):
            pw.rounds(pruner, (0.9,), dropout=wrong)


def test_a_first_dropout_goes_by_the_layer_that_follows():
    model = nn.Sequential(nn.Dropout(0.4), nn.Linear(8, 8))
    for _ in pw.rounds(pw.Pruner(model, criterion="magnitude"), (0.5,), dropout=True):
        assert model[0].p == pytest.approx(0.4 * math.sqrt(0.5))


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "options", "message"),
    [
        ((0.5, 0.9, 0.8), {}, r"levels \(0.5, 0.9, 0.8\) fall from 0.9 to 0.8"),
        ((0.5, 0.5), {}, "have 0.5 twice"),
        ((), {}, "no levels were given"),
        ((0.5, 1.0), {}, "below 1, and 1.0 is not"),
        ((0.5, math.nan), {}, "nan is not"),
        (0.9, {}, "levels=0.9: give rising sparsities"),
        ((0.5,), {"lr": 0}, "lr=0: the share"),
        ((0.5,), {"lr": 0.1, "rewind": print}, "lr=0.1 and rewind=.* both set the learning rate"),
        ((0.5,), {"dropout": {"1": "0"}}, r"dropout=\{'1': '0'\}"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(levels, options, message, tmp_path):
    work = trained()
    before = work.state()
    for run in (pw.rounds, functools.partial(pw.iterative, train=work.train)):
        with pytest.raises((ValueError, TypeError), match=message):
            run(work.pruner, levels=levels, folder=tmp_path / "folder", **options)
    assert same(work.state(), before)
    assert not (tmp_path / "folder").exists()


def test_levels_that_the_pattern_cannot_reach_are_refused_at_once():
    work = trained(criterion="magnitude", targets="3.weight", pattern=pw.KeepNOfM(2, 4))
    with pytest.raises(ValueError, match=r"\(0.25, 0.5, 0.75\) go beyond 0.5, where KeepNOfM"):
        pw.iterative(work.pruner, (0.25, 0.5, 0.75), work.train)
    assert not work.trained


def test_a_level_below_what_is_pruned_is_refused():
    work = trained(criterion="magnitude")
    work.pruner.prune(0.5)
    before = work.state()
    with pytest.raises(ValueError, match="would bring weights of '0.weight' back"):
        pw.iterative(work.pruner, LEVELS, work.train)
    assert same(work.state(), before)


def test_options_need_something_to_work_on():
    pruner = pw.Pruner(nn.Linear(4, 4), criterion="magnitude")
    with pytest.raises(ValueError, match="Linear has no dropout module"):
        pw.rounds(pruner, LEVELS, dropout=True)
    with pytest.raises(ValueError, match="this Pruner has no optimizer"):
        pw.rounds(pruner, LEVELS, lr=0.1)


# ---- results -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [0.5, np.float64(0.5), torch.tensor(0.5, requires_grad=True), np.float32(0.5)])
def test_a_result_is_a_number_that_the_folder_keeps(result, tmp_path):
    work = trained(criterion="magnitude")
    first = pw.iterative(work.pruner, LEVELS, lambda one: result, folder=tmp_path)
    again = pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    assert first == again
    assert [type(one.result) for one in again] == [float] * 3
    assert str(first[1].report) == str(again[1].report)


def test_any_other_result_is_an_error():
    work = trained(criterion="magnitude")
    with pytest.raises(TypeError, match="the training at 0.3 gave dict, and should give a number"):
        pw.iterative(work.pruner, LEVELS, lambda one: {"loss": 1.0})


# ---- stopping and going on ---------------------------------------------------------------------------------------


def interrupted(work, at):
    def train(one):
        if one.index == at:
            work.steps(5)
            raise RuntimeError("out of memory")
        return work.train(one)

    return train


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("at", [1, 3])
def test_a_failed_training_goes_on_from_the_last_finished_round(choice, at, tmp_path):
    whole = trained(**CHOICES[choice])
    expected = pw.iterative(whole.pruner, LEVELS, whole.train)
    failed = trained(**CHOICES[choice])
    with pytest.raises(RuntimeError, match="out of memory"):
        pw.iterative(failed.pruner, LEVELS, interrupted(failed, at), folder=tmp_path)
    for name, mask in failed.pruner.masks.items():
        assert not minus_zero_or_worse(failed.model.get_parameter(name), ~mask)
    torch.manual_seed(99)
    assert pw.iterative(failed.pruner, LEVELS, failed.train, folder=tmp_path) == expected
    assert same(failed.state(), whole.state())
    assert failed.trained == list(LEVELS), "no finished round was trained again"


def test_a_generator_left_half_way_leaves_a_pruned_model_that_trains_on(tmp_path):
    whole, left = (trained(uncertainty=pw.PseudoBootstrap(last=10)) for _ in range(2))
    torch.manual_seed(3)
    expected = pw.iterative(whole.pruner, LEVELS, whole.train)
    torch.manual_seed(3)
    for one in pw.rounds(left.pruner, LEVELS, folder=tmp_path):
        one.result = left.steps(12)
        if one.index == 2:
            break
    assert left.pruner.sparsity == pytest.approx(0.6, abs=0.02)
    left.steps(3)
    for name, mask in left.pruner.masks.items():
        assert not minus_zero_or_worse(left.model.get_parameter(name), ~mask)
    assert sorted(os.listdir(tmp_path)) == ["plan.json", "round-00.pt", "round-01.pt"]
    # The second round was not finished, as far as the generator knows: it is done again.
    rounds = []
    for one in pw.rounds(left.pruner, LEVELS, folder=tmp_path):
        one.result = left.steps(12)
        rounds.append(one)
    assert rounds == expected[1:]
    assert same(left.state(), whole.state())


def test_a_finished_run_is_only_read(tmp_path):
    work, fresh = trained(), Work(seed=5)
    first = pw.iterative(work.pruner, LEVELS, work.train, dropout=True, folder=tmp_path)
    assert pw.iterative(fresh.pruner, LEVELS, fresh.train, dropout=True, folder=tmp_path) == first
    assert not fresh.trained
    assert same(fresh.state(), work.state())


def test_a_missing_round_is_done_again(tmp_path):
    work = trained(criterion="magnitude")
    first = pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    (tmp_path / "round-02.pt").unlink()
    assert pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path) == first
    assert work.trained == [*LEVELS, 0.6, 0.8]


@pytest.mark.parametrize("broken", ["truncated", "garbage", "empty", "other"])
def test_a_broken_file_is_named(broken, tmp_path):
    work = trained(criterion="magnitude")
    pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    file, before = tmp_path / "round-02.pt", work.state()
    if broken == "other":
        torch.save({"epoch": 3}, file)
    else:
        whole = file.read_bytes()
        file.write_bytes({"truncated": whole[: len(whole) // 2], "garbage": b"\x80\x02}garbage", "empty": b""}[broken])
    with pytest.raises(ValueError, match=r"round-02.pt' holds no state that this run could have written: delete it"):
        pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    assert same(work.state(), before)
    file.unlink()
    assert len(pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)) == 3


OTHERS = {
    "levels": lambda work: pw.rounds(work.pruner, (0.3, 0.6, 0.85), folder=work.folder),
    "criterion": lambda work: pw.rounds(Work(criterion="random").pruner, LEVELS, folder=work.folder),
    "Adam": lambda work: pw.rounds(Work(criterion="magnitude", optimizer=adam).pruner, LEVELS, folder=work.folder),
    "lr": lambda work: pw.rounds(work.pruner, LEVELS, lr=0.1, folder=work.folder),
    "rewind": lambda work: pw.rounds(work.pruner, LEVELS, rewind=print, folder=work.folder),
    "dropout": lambda work: pw.rounds(work.pruner, LEVELS, dropout=True, folder=work.folder),
    "budget": lambda work: pw.find_sparsity(
        work.pruner, work.train, work.accuracy, budget=1, levels=LEVELS, folder=work.folder
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_plan_is_refused_and_both_are_shown(other, tmp_path):
    work = trained(criterion="magnitude")
    work.folder = tmp_path
    pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    before = work.state()
    with pytest.raises(ValueError, match="holds another run") as error:
        OTHERS[other](work)
    assert json.dumps(json.loads((tmp_path / "plan.json").read_text()), indent=1) in str(error.value)
    assert str(error.value).count('"levels"') == 2
    assert same(work.state() | {"random": None}, before | {"random": None})


def by_power(power, stats):
    return stats.weight.abs() ** power


def test_a_function_is_the_same_in_another_process(tmp_path):
    """Its repr has an address, which is not part of the plan."""
    for power in (functools.partial(by_power, 2), functools.partial(lambda p, stats: by_power(p, stats), 2)):
        work = trained(criterion=power)
        pw.iterative(work.pruner, LEVELS, work.train, folder=tmp_path / "folder")
        plan = (tmp_path / "folder" / "plan.json").read_text()
        assert "0x" not in plan
        for file in (tmp_path / "folder").iterdir():
            file.unlink()
