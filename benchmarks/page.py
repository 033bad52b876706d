"""The page: how large it is, how long it takes to make and to open, of a small network and of one of 10 M weights.

Opened in headless Chromium (`apt-get install chromium chromium-driver`): to the first paint, until all sections are
drawn, and from a step of a slider to its drawing; each the median of several.
"""

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tests.web.browsing import Browser, chromium
from torch import nn

import prunewald as pw
from benchmarks.bench import parser, record

# The demo's network has 8,928 weights in its dense layers; the other one has 10.2 M.
SIZES = {"small": (216, 32, 48, 10), "large": (784, 2500, 2000, 1000, 800, 500, 100, 10)}
TIMES = 5

_PAINT = "return performance.getEntriesByType('paint')[0].startTime"
_DRAWN = """
const [what, done] = arguments;
const start = performance.now();
if (what === "all") document.querySelector("nav li:last-child a").click();
else {
  const slider = document.querySelector("#planes input[type=range]");
  slider.value = Number(slider.value) + (Number(slider.value) > 40 ? -1 : 1);
  slider.dispatchEvent(new Event("input"));
}
const since = what === "all" ? 0 : start; // 0 is when the page was asked for
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - since)));
"""


def pruner(sizes: tuple[int, ...]) -> pw.Pruner:
    """A Pruner of dense layers with the state of Adam."""
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = pw.Pruner(model, optimizer)
    for _ in range(12):
        x = torch.rand(32, sizes[0])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.randint(10, (32,))).backward()
        optimizer.step()
    return found


def opened(browser: Browser, path: Path) -> dict[str, float]:
    """Milliseconds of one opening."""
    browser.open(path, everything=False)
    drawn = {what: browser.driver.execute_async_script(_DRAWN, what) for what in ("all", "slider")}
    return {"first paint ms": browser.run(_PAINT), "all drawn ms": drawn["all"], "slider ms": drawn["slider"]}


def measure(browser: Browser, sizes: tuple[int, ...], folder: Path) -> dict[str, Any]:
    """The numbers of one network."""
    model = pruner(sizes)
    start = time.perf_counter()
    before = pw.web.look(model)
    looked = time.perf_counter() - start
    model.prune(0.9)
    path = pw.page(model, folder / "page.html", before=before)
    whole = time.perf_counter() - start
    times = [opened(browser, path) for _ in range(TIMES)]
    found = {name: statistics.median(one[name] for one in times) for name in times[0]}
    weights = sum(row.weights for row in model.report.rows) if model.report else 0
    return {"weights": weights, "bytes": path.stat().st_size, "look s": looked, "look, prune, page s": whole, **found}


def main() -> None:
    """Print the table."""
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, chromium(Path(name)) as browser:
        found = {kind: measure(browser, sizes, Path(name)) for kind, sizes in SIZES.items()}
    for kind, numbers in found.items():
        print(kind, *(f"{what}: {value:,.4g}" for what, value in numbers.items()), sep="\n  ")
    record(args.json, found)


if __name__ == "__main__":
    main()
