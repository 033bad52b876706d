"""What a certificate costs: examples needed, the size of its tests at the limit, and seconds.

Power: the fewest calibration examples with which a budget is certified in 80 % of draws at delta = 0.05. For drops,
where pruning changes a share of the examples, as many for the better as for the worse, by the bound that knows the mean
only (Hoeffding-Bentkus) and by betting; for 0/1 errors by that bound and by the exact binomial. Size: how often a test
finds a model within the limit that is just at it, which has to be delta at most: for 0/1 errors counted out, for drops
simulated, also on the losses of a network on 2,000 real images. "sorted" are the same draws with their examples sorted,
as a data set may lie, and "in order" what became of the size if bets were placed in that order, which they are not.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.lab.data import embedded, scaled
from prunewald.statistics import betting, drop_losses, exact_binomial, hoeffding_bentkus
from prunewald.statistics.capital import _log_capital

DELTA, POWER = 0.05, 0.8
Test = Callable[[Tensor, float], float]
DROPS: dict[str, Test] = {"bound": hoeffding_bentkus, "betting": betting}
ERRORS: dict[str, Test] = {"bound": hoeffding_bentkus, "exact": exact_binomial}


def drops(u: Tensor, broken: float, mended: float) -> Tensor:
    """Drops of 1, -1 and 0 as losses between 0 and 1, from uniform numbers."""
    return torch.where(u < broken, 1.0, torch.where(u < broken + mended, 0.0, 0.5)).double()


def power(test: Test, budget: float, share: float, draws: int, n: int) -> float:
    """The share of draws of n examples with which the budget is certified; the same draws for every test."""
    generator = torch.Generator().manual_seed(n)
    passed = 0
    for _ in range(draws):
        losses = drops(torch.rand(n, generator=generator), share / 2, share / 2)
        passed += test(losses, (1 + budget) / 2) <= DELTA
    return passed / draws


def needed(power_of: Callable[[int], float]) -> int:
    """The fewest examples with that power, to three percent."""
    low, high = 10, 100_000
    while high > 1.03 * low + 1:
        middle = round(math.sqrt(low * high))
        low, high = (low, middle) if power_of(middle) >= POWER else (middle, high)
    return high


def counted(test: Test, limit: float, error: float, n: int) -> float:
    """The chance of p <= delta for 0/1 losses with that error, from the counts that pass and their probability."""
    from scipy import stats

    low, high = -1, n  # the last count that passes, and one that fails
    while high > low + 1:
        middle = (low + high) // 2
        passes = test((torch.arange(n) < middle).double(), limit) <= DELTA
        low, high = (middle, high) if passes else (low, middle)
    return float(stats.binom.cdf(low, n, error))


def simulated(rows: Sequence[Tensor] | Tensor, limit: float, test: Test = betting) -> float:
    """The share of draws with p <= delta."""
    return sum(test(losses, limit) <= DELTA for losses in rows) / len(rows)


def as_they_lie(losses: Tensor, limit: float) -> float:
    """Betting on the examples in the order given, as the library does not."""
    return math.exp(-float(_log_capital(losses, limit, DELTA)))


def network_losses() -> dict[str, tuple[Tensor, Tensor]]:
    """Losses of 2,000 images, dense and at 50 %: 0 or 1, and one less the probability of the label."""
    data = embedded()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train, test = scaled(data.train), scaled(data.test)
    for _ in range(5):
        for rows in torch.randperm(len(train.y)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train.x[rows]), train.y[rows]).backward()
            optimizer.step()

    @torch.no_grad()
    def losses() -> tuple[Tensor, Tensor]:
        scores = model(test.x)
        return (scores.argmax(1) != test.y).double(), 1 - scores.softmax(1).double()[range(len(test.y)), test.y]

    dense = losses()
    pw.Pruner(model, optimizer).prune(0.5)
    return dict(zip(("0/1", "probability"), zip(dense, losses(), strict=True), strict=True))


def examples_for_drops(cases: Sequence[tuple[float, float]], draws: int) -> list[dict[str, Any]]:
    """Examples needed, by the budget on the drop and by the share that changes."""
    rows = []
    for budget, share in cases:
        tries = draws if share else 1  # where nothing changes, nothing is random
        found = {k: needed(partial(power, t, budget, share, tries)) for k, t in DROPS.items()}
        rows.append({"drop": budget, "changes": share} | found)
        print("examples needed", rows[-1], flush=True)
    return rows


def examples_for_errors(cases: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Examples needed, by the budget on the error and by the error."""
    rows = []
    for budget, error in cases:
        found = {k: needed(partial(counted, t, budget, error)) for k, t in ERRORS.items()}
        rows.append({"budget": budget, "error": error} | found)
        print("examples needed", rows[-1], flush=True)
    return rows


def powers_between(draws: int) -> list[dict[str, Any]]:
    """Power for errors of losses between 0 and 1, Beta distributed: the spread goes from nearly 0/1 to narrow."""
    rows = []
    torch.manual_seed(0)
    for budget, error in ((0.05, 0.03), (0.1, 0.08), (0.5, 0.4)):
        for weight in (0.2, 0.5, 2.0, 50.0):
            beta = torch.distributions.Beta(weight * error, weight * (1 - error))
            losses = beta.sample((draws, 300)).double().clamp(0, 1)
            found = {k: simulated(losses, budget, t) for k, t in DROPS.items()}
            rows.append({"budget": budget, "error": error, "n": 300, "beta": weight} | found)
            print("power", rows[-1], flush=True)
    return rows


def sizes(draws: int) -> list[dict[str, Any]]:
    """How often each test is wrong at the limit, at delta = 0.05."""
    rows: list[dict[str, Any]] = []
    for n, limit in ((200, 0.1), (300, 0.1), (500, 0.05), (1000, 0.05), (2000, 0.02), (2000, 0.1), (5000, 0.05)):
        found = {k: counted(t, limit, limit, n) for k, t in ERRORS.items()}
        rows.append({"losses": "0/1 errors", "n": n, "limit": limit} | found)
    generator = torch.Generator().manual_seed(0)
    for n in (300, 1000, 3000):
        for broken, mended in ((0.02, 0.0), (0.03, 0.01), (0.06, 0.04), (0.16, 0.14)):
            losses = drops(torch.rand(draws, n, generator=generator), broken, mended)
            ways = {"betting": simulated(losses, 0.51), "bound": simulated(losses, 0.51, hoeffding_bentkus)}
            in_order = losses.sort(dim=1).values
            ways |= {"sorted": simulated(in_order, 0.51), "in order": simulated(in_order, 0.51, as_they_lie)}
            rows.append({"losses": f"drops, {broken:g} broken, {mended:g} mended", "n": n} | ways)
    for kind, (dense, pruned) in network_losses().items():
        for what, population in (("drop", drop_losses(pruned, dense)), ("error", pruned)):
            for n in (300, 1000):
                picked = torch.randint(len(population), (draws, n), generator=generator)
                found = {"betting": simulated(population[picked], float(population.mean()))}
                rows.append(
                    {"losses": f"{what} of a network, {kind}", "n": n, "mean": float(population.mean())} | found
                )
    for row in rows:
        print("size", row)
    return rows


def seconds() -> float:
    """Of one core, for twenty candidates on 100,000 examples."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    losses = drops(torch.rand(100_000), 0.01, 0.01)
    began = time.process_time()
    for _ in range(20):
        betting(losses, 0.51)
    torch.set_num_threads(threads)
    return time.process_time() - began


def main() -> None:
    """Print the numbers."""
    made = parser(__doc__)
    made.add_argument("--draws", type=int, default=1000, help="of the calibration examples, for each number")
    options = made.parse_args()
    spent = round(seconds(), 2)
    print(spent, "seconds of a core for 20 candidates on 100,000 examples", flush=True)
    shares, budgets = (0.0, 0.01, 0.04, 0.1, 0.3), (0.05, 0.1)
    numbers = {
        "draws": options.draws,
        "seconds for 20 candidates on 100,000 examples": spent,
        "drops": examples_for_drops(
            [(0.02, share) for share in shares] + [(budget, share) for budget in budgets for share in (0.0, 0.04, 1.0)],
            options.draws,
        ),
        "between": powers_between(options.draws),
        "errors": examples_for_errors([(0.02, 0.01), (0.05, 0.03), (0.1, 0.08)]),
        "sizes": sizes(options.draws),
    }
    record(options.json, numbers)


if __name__ == "__main__":
    main()
