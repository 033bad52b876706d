"""Pages in a browser: quiet, within themselves, for every reader and every hand."""

import csv
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import prunewald as pw
from prunewald import web
from prunewald.web import planes
from tests.lab.test_showing import results
from tests.web.browsing import PHONE, WIDE, Browser
from tests.web.helpers import train, trained

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

ACCURACIES = {"ABS": {0.0: [0.8, 0.82], 0.9: [0.6, 0.64]}, "M&U": {0.0: [0.8, 0.82], 0.9: [0.7, 0.73]}}
NASTY = '</script><img src=x onerror="document.title=1"><b>'


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A page with all sections that a Pruner can have."""
    folder = tmp_path_factory.mktemp("page")
    pruner = trained(schedule=pw.Cubic(0.8, begin=50, end=110, every=10), steps=49)
    before = web.look(pruner)
    train(pruner.model, pruner.optimizers[0], range(49, 120))
    pw.save(pruner, folder / "model.pw")
    given: dict[str, Any] = {"accuracies": ACCURACIES, "inputs": torch.zeros(2, 1, 12, 12), "before": before}
    return pw.page(pruner, folder / "page.html", file=folder / "model.pw", **given)


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_nothing_is_complained_of(size: Any, scheme: str, full: Path, browser: Browser) -> None:
    browser.open(full, size, scheme)
    assert browser.run("return document.querySelectorAll('h2 + .why').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [full.resolve().as_uri()]
    assert browser.violations() == []
    width = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width == 0, "nothing hangs over the edge"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_results_and_of_large_models_are_quiet_too(
    scheme: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ("dense", "abs", "abs@lamp", "moment:1@lamp", "pseudo:0.1@lamp")
    results(tmp_path, *rows)
    results(tmp_path, *rows, name="fashion-mnist")
    monkeypatch.setattr(planes, "EXACT", 100)
    for path in (pw.page(tmp_path), pw.page(trained(), tmp_path / "large.html")):
        for size in (WIDE, PHONE):
            browser.open(path, size, scheme)
            assert browser.complaints() == []
            assert browser.violations() == []
            assert browser.requests() == [path.resolve().as_uri()]


def test_what_is_wrong_would_be_seen(full: Path, browser: Browser) -> None:
    browser.open(full)
    browser.run("document.body.append(Object.assign(document.createElement('p'), { textContent: 'pale', id: 'pale' }))")
    browser.run("document.getElementById('pale').style.color = '#bbbbbb'")
    assert any("pale" in found for found in browser.violations())
    ask = "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('let'), () => done('refused'))"
    assert browser.driver.execute_async_script(ask) == "refused"
    assert any("Content Security Policy" in said for said in browser.complaints())


def test_sections_are_built_when_they_are_looked_at(full: Path, browser: Browser) -> None:
    browser.open(full, everything=False)
    empty = "return [...document.querySelectorAll('section')].filter(s => s.children.length == 1).map(s => s.id)"
    assert "settings" in browser.run(empty)
    browser.run("document.getElementById('settings').scrollIntoView({behavior: 'instant'})")
    for _ in range(50):
        browser.settle()
        if "settings" not in browser.run(empty):
            break
    assert "settings" not in browser.run(empty)


def test_a_link_leads_to_its_section(full: Path, browser: Browser) -> None:
    browser.open(full, everything=False)
    browser.run(
        "document.documentElement.style.scrollBehavior = 'auto'; document.querySelector('nav a[href$=file]').click()"
    )
    for _ in range(20):
        browser.settle()
    assert 0 <= browser.run("return document.getElementById('file').getBoundingClientRect().top") < 40


def test_everything_can_be_reached_by_keyboard(full: Path, browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(full)
    what = """
    const all = [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")];
    return all.filter(e => e.checkVisibility()).length;
    """
    number = browser.run(what)
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(*[Keys.TAB] * 1)
    name = "const e = document.activeElement; e.dataset.seen = 1; return e.textContent || e.id"
    assert browser.run(name) == "Skip to the figures"
    for _ in range(number + 5):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        browser.run(name)
    assert browser.run("return document.querySelectorAll('[data-seen]:not(body)').length") == number


def test_sliders_and_buttons_obey_keys(full: Path, browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(full)
    lam, sparsity = browser.driver.find_elements(By.CSS_SELECTOR, "#planes input[type=range]")
    before = browser.run("return prunewald.state()")
    sparsity.send_keys(Keys.ARROW_LEFT)
    lam.send_keys(Keys.HOME)
    after = browser.run("return prunewald.state()")
    assert (after["lam"], round(before["level"] - after["level"], 9)) == (0, 0.01)
    assert sparsity.get_attribute("aria-valuetext") == "89 %"
    theme = browser.driver.find_element(By.ID, "theme")
    theme.send_keys(Keys.ENTER, Keys.ENTER)
    assert theme.text == "Theme: dark"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    kept = browser.driver.find_element(By.XPATH, "//button[text()='kept']")
    kept.send_keys(Keys.ENTER)
    column = "return [...document.querySelectorAll('.layers tbody tr')].map(r => r.children[3].textContent)"
    numbers = [int(text.replace(",", "")) for text in browser.run(column)]
    assert numbers == sorted(numbers, reverse=True)
    search = browser.driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("4.w")
    assert browser.run("return document.querySelectorAll('.layers tbody tr').length") == 1
    browser.driver.find_element(By.CSS_SELECTOR, ".layers .link").send_keys(Keys.ENTER)
    assert browser.run("return prunewald.state().layer") == "4.weight"


def test_figures_are_saved(full: Path, browser: Browser) -> None:
    browser.open(full)
    folder = Path(browser.downloads)
    plane = "#planes figure .tools button"
    browser.run(f"document.querySelectorAll('{plane}')[0].click(); document.querySelectorAll('{plane}')[1].click()")
    browser.run("document.querySelector('#accuracy .tools button').click()")
    wanted = [folder / f"weights-of-the-layer-w-against-sigma.{kind}" for kind in ("png", "csv")]
    wanted.append(folder / "accuracy-against-sparsity.png")
    deadline = time.monotonic() + 20
    while not all(path.exists() for path in wanted) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (wanted[0], wanted[2]))
    rows = list(csv.DictReader(wanted[1].read_text().splitlines()))
    name = browser.run("return prunewald.state().layer")
    assert [int(row["kept"]) for row in rows] == browser.run("return prunewald.kept(arguments[0])", name)
    assert browser.complaints() == []


def test_names_with_markup_are_text(browser: Browser, tmp_path: Path) -> None:
    layers = torch.nn.ModuleDict({NASTY.replace(".", ""): torch.nn.Linear(9, 4)})
    pruner = pw.Pruner(layers, uncertainty={name: torch.rand(p.shape) for name, p in layers.named_parameters()})
    nasty = {NASTY: {0.0: 0.5, 0.9: 0.4}}
    path = pw.page(pruner, tmp_path / "page.html", title=NASTY, accuracies=nasty)
    browser.open(path)
    assert browser.run("return document.querySelector('h1').textContent") == NASTY
    assert browser.run("return document.querySelectorAll('img, b').length") == 0
    assert browser.run("return document.title") == f"{NASTY} - prunewald"
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]


def test_paper_is_light(full: Path, browser: Browser) -> None:
    browser.open(full, scheme="dark")
    ground = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(ground)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(ground) == dark == "rgb(21, 23, 27)"
    assert browser.complaints() == []


def test_a_printed_page_has_every_section_and_no_buttons(full: Path, browser: Browser) -> None:
    browser.open(full, everything=False)
    browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert browser.run("return [...document.querySelectorAll('section')].every(s => s.children.length > 1)")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return [...document.querySelectorAll('.tools')].some(e => e.checkVisibility())") is False
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
