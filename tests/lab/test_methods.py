from itertools import groupby

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.methods import choose, methods_of, parse, prepared, tried
from prunewald.lab.settings import SettingsError, contest, settings
from prunewald.util.registry import known


def test_spelling_is_one_for_one_method() -> None:
    for text in ("abs", "random", "dense", "pseudo:1e-4:formula", "moment:1:permuted:inverted", "bootstrap-warm:0"):
        assert parse(text).text == text
    assert parse("pseudo:0.0001:formula") == parse("pseudo:1e-4:formula")
    assert parse("moment:1.0:inverted:permuted").text == "moment:1:permuted:inverted"
    assert parse("every:0.010").text == "every:0.01"
    for text in ("abs@lamp", "moment:1@lamp-score", "random@erk", "pseudo:0:permuted@global"):
        assert parse(text).text == text
    for text in ("wanda@lamp", "fisher:1@lamp,lr=0.3", "platon,lr=3", "moment:1:permuted@erk,lr=2"):
        assert parse(text).text == text
    assert parse("abs@lamp,lr=1.0").text == "abs@lamp"
    assert parse("abs@layer") == parse("abs")  # the paper's, and what a row without a word has
    assert float(parse("pseudo:0.12345678901").text.split(":")[1]) == 0.12345678901


def test_the_librarys_names_are_read_too() -> None:
    same = {"magnitude": "abs", "ABS@lamp": "abs@lamp", "second-moment:1": "moment:1", "pseudo-bootstrap:0": "pseudo:0"}
    for text, row in same.items():
        assert parse(text) == parse(row)
        assert parse(text).text == row
    with pytest.raises(SettingsError, match="abs is there twice"):
        methods_of(settings("cifar10", rows=("abs", "magnitude")))


def test_an_infinite_lambda_is_abs() -> None:
    model, sigma = net()
    row = parse("pseudo:inf")
    assert (row.text, row.label) == ("pseudo:inf", "M&U pseudo bootstrap λ*=inf")
    masks, report = choose(row, model, 0.7, 0, {"fc.weight": sigma}, None)
    assert torch.equal(masks["fc.weight"], choose(parse("abs"), model, 0.7, 0, {}, None)[0]["fc.weight"])
    assert (report.criterion, report.uncertainty) == ("Magnitude()", "")


def test_labels() -> None:
    assert parse("abs").label == "ABS"
    assert parse("pseudo:0.0001:formula").label == "M&U pseudo bootstrap λ*=1e-4, formula"
    assert parse("moment:1@lamp").label == "M&U second moment λ*=1 @lamp"
    assert parse("bootstrap-same:10").label == "M&U bootstrap, same start λ*=10"
    assert [parse(f"bootstrap{kind}:1").start for kind in ("", "-same", "-warm")] == ["independent", "same", "warm"]


def test_tries_are_of_the_rows_own_number_or_of_the_learning_rate() -> None:
    assert [m.text for m in parse("moment:1@lamp").tries(3)] == ["moment:1@lamp", "moment:0.3@lamp", "moment:3@lamp"]
    assert [m.text for m in parse("abs@lamp").tries(3)] == ["abs@lamp", "abs@lamp,lr=0.3", "abs@lamp,lr=3"]
    assert [m.text for m in parse("pseudo:0").tries(2)] == ["pseudo:0", "pseudo:0,lr=0.3"]  # nothing to multiply
    assert [m.text for m in parse("dense").tries(3)] == ["dense"]


def test_every_row_has_as_many_tries_and_those_of_one_rate_come_together() -> None:
    chosen = contest("fashion-mnist")
    each = [method.text for method in tried(chosen)]
    assert len(each) == len(set(each)) == 1 + 3 * len(chosen.rows)
    assert each[: 1 + len(chosen.rows)] == ["dense", *chosen.rows]
    rates = [parse(text).rate for text in each]
    assert [rate for rate, _ in groupby(rates)] == [1, 0.3, 3]


def test_every_criterion_of_the_library_has_a_row_in_the_contest() -> None:
    spelled = {"magnitude": "abs", "magnitude-uncertainty": "moment"}
    names = {spelled.get(name, name) for name in known("criterion")} - {"wald"}  # moment:0 would be it
    assert names <= {parse(row).sigma for row in contest("fashion-mnist").rows}


def test_reference_has_the_same_counts() -> None:
    pairs = {
        "moment:1": "abs",
        "moment:1@lamp": "abs@lamp",
        "wanda@erk,lr=3": "abs@erk",
        "moment:1@lamp-score": "abs@lamp",
    }
    assert {row: parse(row).reference for row in pairs} == pairs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magnitud", "unknown row 'magnitud'; known: abs, random, movement, platon, taylor"),
        ("wald:1", "unknown row 'wald:1'"),
        ("pseudo", "unknown row 'pseudo'"),
        ("abs:1", "unknown row 'abs:1'"),
        ("pseudo:big", "'big' is no lambda*, give a number as in pseudo:0.1"),
        ("pseudo:-1", "lambda* must be at least 0"),
        ("pseudo:-inf", "lambda* must be at least 0"),
        ("pseudo:nan", "lambda* must be at least 0"),
        ("pseudo:1:upside", "unknown mark 'upside'; known: formula, permuted, inverted"),
        ("moment:1:formula", "leave out formula"),
        ("abs@most", "unknown allocation 'most'; known: layer, lamp, erk, global, lamp-score"),
        ("abs@", "unknown allocation ''"),
        ("dense@lamp", "leave out @lamp"),
        ("moment:1@global", "scaled layer by layer"),
        ("fisher:1@global", "scaled layer by layer"),
        ("fisher:1:formula", "leave out formula"),
        ("wanda:1", "unknown row 'wanda:1'"),
        ("abs,lr=0", "give a factor of the learning rate as in lr=3"),
        ("abs@lamp,rate=3", "'rate=3' after the comma"),
        ("dense,lr=3", "leave out ,lr=3"),
    ],
)
def test_bad_rows_are_named(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse(text)
    assert message in str(error.value)
    assert repr(text) in str(error.value)


def test_rows_of_an_experiment() -> None:
    def rows(*texts: str, iterative: bool = False) -> list[str]:
        return [row.text for row in methods_of(settings("cifar10", rows=texts, iterative=iterative))]

    assert rows("abs", "moment:1") == ["dense", "abs", "moment:1"]
    assert rows("abs", "dense") == ["dense", "abs"]
    with pytest.raises(SettingsError, match="pseudo:0.1 is there twice"):
        rows("pseudo:0.1", "pseudo:0.10")
    assert rows("pseudo:1", "moment:1:permuted", "random", iterative=True)
    for text in ("every:1", "bootstrap:1", "bootstrap-warm:1"):
        with pytest.raises(SettingsError, match=f"row '{text}' in an iterative run.*give pseudo or moment"):
            rows(text, iterative=True)
    with pytest.raises(SettingsError, match="row 'platon' is gathered .* --watch"):
        rows("platon")


def test_counts_are_the_allocations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 5))
    sigma = {name: torch.rand_like(p) for name, p in model.named_parameters() if p.dim() > 1}
    for scope in ("lamp", "erk"):
        counts = []
        for row in (f"abs@{scope}", f"moment:1@{scope}"):
            masks, _ = choose(parse(row), model, 0.9, 0, sigma, None)
            counts.append({name: int(mask.sum()) for name, mask in masks.items()})
        report = pw.Pruner(model, criterion="magnitude", scope=scope).prune(0.9, dry_run=True)
        assert counts[0] == counts[1] == {row.name: row.kept for row in report.rows}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(30, 20)


def net() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net(), torch.rand(20, 30) + 0.1


def test_masks_are_the_formulas() -> None:
    model, sigma = net()
    weight = model.fc.weight.detach()
    tau = weight.abs() / (0.5 * weight.std() + sigma)
    for text, score in (("abs", weight.abs()), ("moment:0.5", tau), ("moment:0.5:inverted", -tau)):
        masks, report = choose(parse(text), model, 0.9, 0, {"fc.weight": sigma}, None)
        assert list(masks) == ["fc.weight"]  # no convolution
        kept = torch.zeros(600, dtype=torch.bool)
        kept[score.flatten().topk(60).indices] = True
        assert torch.equal(masks["fc.weight"].flatten(), kept)
        assert report.kept == 60


def test_random_is_another_order_for_each_seed_and_nested_over_levels() -> None:
    model, _ = net()
    one, other = (choose(parse("random"), model, 0.9, seed, {}, None)[0]["fc.weight"] for seed in (0, 1))
    more = choose(parse("random"), model, 0.5, 0, {}, None)[0]["fc.weight"]
    assert int((one & other).sum()) < 30
    assert not (one & ~more).any()


def test_an_earlier_round_stays_pruned() -> None:
    model, sigma = net()
    alive = torch.rand(20, 30) < 0.5
    masks, _ = choose(parse("moment:1"), model, 0.8, 0, {"fc.weight": sigma}, {"fc.weight": alive})
    assert int(masks["fc.weight"].sum()) == 120
    assert not (masks["fc.weight"] & ~alive).any()


def test_permuted_sigma_comes_from_survivors_only() -> None:
    """What is pruned has no sigma to give: here the survivors' are all alike, so nothing changes but by the pruned."""
    model, _ = net()
    alive = torch.rand(20, 30) < 0.5
    sigma = torch.where(alive, 1.0, torch.inf)
    plain, shuffled = (
        choose(parse(text), model, 0.8, 0, {"fc.weight": sigma}, {"fc.weight": alive})[0]["fc.weight"]
        for text in ("pseudo:1", "pseudo:1:permuted")
    )
    assert torch.equal(plain, shuffled)
    model, sigma = net()
    plain, shuffled = (
        choose(parse(text), model, 0.8, 0, {"fc.weight": sigma}, None)[0]["fc.weight"]
        for text in ("pseudo:0", "pseudo:0:permuted")
    )
    assert 0.1 < float((plain & shuffled).sum() / plain.sum()) < 0.8


def test_frozen_first_is_as_the_pruners_own() -> None:
    model, sigma = net()
    dead = torch.rand(20, 30) < 0.3
    sigma[dead] = 0.0
    for mark, first in (("", True), (":formula", False)):
        row = parse(f"pseudo:0.01{mark}")
        ready = prepared(row, sigma, dead)
        masks, _ = choose(row, model, 0.8, 0, {"fc.weight": ready}, None)
        weight = model.fc.weight.detach()
        score = pw.tau(weight, sigma, 0.01 * float(weight.std()))
        order = torch.where(dead, weight.abs() - 10, score) if first else score
        expected = torch.zeros(600, dtype=torch.bool)
        expected[order.flatten().topk(120).indices] = True
        assert torch.equal(masks["fc.weight"].flatten(), expected)
    assert prepared(parse("pseudo:1"), sigma, None) is sigma
