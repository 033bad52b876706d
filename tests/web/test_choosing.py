"""The page chooses as the Pruner does: the same sets, the same numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald import web
from prunewald.web.planes import EXACT
from tests.web.browsing import Browser
from tests.web.helpers import net, train, trained

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

# Moves the sliders as a hand would, and reads what is kept.
_DRIVE = """
const [lams, levels] = arguments;
const [first, second] = document.querySelectorAll("#planes input[type=range]");
const move = (input, at) => { input.value = at; input.dispatchEvent(new Event("input")); };
const found = [];
for (const lam of lams) for (const level of levels) {
  move(first, prunewald.lams.indexOf(lam));
  move(second, prunewald.levels.indexOf(level));
  const { lam: now, level: here } = prunewald.state();
  const own = { lam: now, level: here, layers: {} };
  for (const option of document.querySelectorAll("#planes select option")) {
    const name = option.textContent;
    own.layers[name] = { kept: prunewald.kept(name).join(""), ...prunewald.numbers(name) };
  }
  found.push(own);
}
return found;
"""
LAMS = [0, 0.001, 0.1, 1, 10, 1000]


def with_lam(pruner: pw.Pruner, lam: float) -> pw.Pruner:
    """The same Pruner with another lambda*."""
    pruner._choices = replace(pruner._choices, criterion=pw.MagnitudeUncertainty(lam=lam))
    return pruner


def shown(browser: Browser, pruner: pw.Pruner, path: Path, lams: list[float], levels: list[float]) -> list[Any]:
    web.write(web.of_pruner(pruner), path)
    browser.open(path)
    found: list[Any] = browser.run(_DRIVE, lams, levels)
    assert [(one["lam"], one["level"]) for one in found] == [(lam, level) for lam in lams for level in levels]
    return found


def bits(mask: Tensor) -> str:
    return "".join("1" if kept else "0" for kept in mask.flatten().tolist())


def check(browser: Browser, pruner: pw.Pruner, path: Path, levels: list[float], lams: list[float] = LAMS) -> None:
    """Every set on the page is the Pruner's, and as many change sides as in its report."""
    for one in shown(browser, pruner, path, lams, levels):
        masks, report = with_lam(pruner, one["lam"]).choose(one["level"])
        for part, row in zip(pruner.slices, report.rows, strict=True):
            layer, keep = one["layers"][part.name], part.take(masks[part.param])
            turned = keep if part.layout is None else part.layout.swap(keep)
            assert layer["kept"] == bits(turned), (one["lam"], one["level"], part.name)
            assert layer["stays"] == row.kept
            if row.kept < row.weights:
                assert layer["gained"] == layer["lost"] == row.kept - round(row.overlap * row.kept)


@pytest.mark.parametrize("scope", ["lamp", "layer", "global", "module", "row", "erk"])
def test_the_sliders_show_the_set_that_the_pruner_keeps(scope: str, browser: Browser, tmp_path: Path) -> None:
    pruner = trained(scope=scope, criterion="m&u")
    assert sum(int(dead.sum()) for dead in pruner.dead().values()) > 50
    check(browser, pruner, tmp_path / "page.html", [0.0, 0.5, 0.9, 0.99])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_other_precisions_too(dtype: torch.dtype, browser: Browser, tmp_path: Path) -> None:
    pruner = trained(dtype, criterion="m&u")
    check(browser, pruner, tmp_path / "page.html", [0.3, 0.8], [0, 0.1, 1])


def test_what_is_pruned_already_stays_so(browser: Browser, tmp_path: Path) -> None:
    pruner = trained(criterion="m&u")
    pruner.prune(0.605)
    train(pruner.model, pruner.optimizers[0], range(200, 320))
    data = web.of_pruner(pruner)["planes"]
    assert data["levels"][0] == 0.61
    assert any("before prune()" in note for note in data["notes"])
    check(browser, pruner, tmp_path / "page.html", [0.61, 0.9], [0, 1])


def test_ties_zeros_and_sigmas_that_are_zero_or_infinite(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 10), nn.ConvTranspose1d(6, 4, 3))
    sigma = {}
    for name, param in model.named_parameters():
        coarse = (param.detach() * 6).round() / 6  # many weights of one size, of either sign, and many zeros
        param.data.copy_(coarse)
        values = torch.tensor([0.0, 0.25, 0.5, torch.inf])
        sigma[name] = values[torch.randint(4, param.shape)]
    pruner = pw.Pruner(model, uncertainty=sigma, scope="layer")
    check(browser, pruner, tmp_path / "page.html", [0.2, 0.5, 0.75], [0, 0.1, 1, 100])


def test_the_paper_s_formula_does_not_put_the_dead_first(browser: Browser, tmp_path: Path) -> None:
    pruner = trained(
        criterion=pw.MagnitudeUncertainty(lam=0.01, dead="formula"), uncertainty=pw.PseudoBootstrap(last=20)
    )
    for one in shown(browser, pruner, tmp_path / "page.html", [0.01], [0.5, 0.9]):
        masks, _ = pruner.choose(one["level"])
        assert {name: layer["kept"] for name, layer in one["layers"].items()} == {n: bits(m) for n, m in masks.items()}


def test_slices_and_surgery_are_chosen_alike(browser: Browser, tmp_path: Path) -> None:
    check(browser, trained(targets=["0.weight[2]", "4.weight[:5]", "6.weight"]), tmp_path / "a.html", [0.5, 0.9], [1])
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    pruner = pw.Surgery(model, optimizer, sparsity=0.7, criterion="m&u")
    train(model, optimizer, range(110))
    assert pruner.sparsity == pytest.approx(0.7, abs=0.05)
    check(browser, pruner, tmp_path / "b.html", [0.5, 0.9], [1])


def wide_model() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scale = torch.logspace(-1, 1, 400)
    scale[:20] = 0
    for step in range(110):
        x = torch.randn(32, 400, generator=torch.Generator().manual_seed(step)) * scale
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 300] > 0).long() + (x[:, 350] > 0).long()).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("scope", ["lamp", "global"])
def test_the_numbers_of_a_large_model_are_right_to_a_percent(scope: str, browser: Browser, tmp_path: Path) -> None:
    model, optimizer = wide_model()
    pruner = pw.Pruner(model, optimizer, scope=scope)
    assert sum(p.numel() for p in pruner.targets().values()) > EXACT
    for one in shown(browser, pruner, tmp_path / "page.html", [0, 1, 10], [0.5, 0.95]):
        _, report = with_lam(pruner, one["lam"]).choose(one["level"])
        for row in report.rows:
            layer, moved = one["layers"][row.name], row.kept - round(row.overlap * row.kept)
            assert abs(layer["stays"] - row.kept) <= 0.01 * row.kept, (one["lam"], one["level"], row)
            assert abs(layer["gained"] - moved) <= 0.01 * row.kept, (one["lam"], one["level"], row, layer)


def test_a_net_of_the_size_of_a_plane_is_exact() -> None:
    assert sum(p.numel() for p in net().parameters() if p.dim() > 1) < EXACT
