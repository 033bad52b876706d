"""The paper's example of scale (section IV-B): one input in other units, and what that does to each choice.

A linear regression on two inputs, trained by the optimizer with the estimator watching, and again with the second
input divided by a factor, so that its weight grows by it. A Wald statistic does not care. Printed: tau2 / tau1 before
and after (lambda = 0), and the change as a power of the factor: 0 is invariant, 1 is what |w| itself does. The factor
is 3, not the paper's 1000, so that one step size suits both inputs.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.uncertainty import InverseFisher, Online

N, BATCH, STEPS = 1000, 50, 20_000
FACTOR = 3.0
Ways = dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]
WAYS: Ways = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def ratio(factor: float, way: str, watch: Online | None) -> float:
    """tau of the second weight over tau of the first."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=g)
    y = x @ torch.tensor([[1.0], [0.5]]) + torch.randn(N, 1, generator=g)
    x[:, 1] /= factor
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.linalg.lstsq(x, y).solution.T.contiguous()
    if watch is None:
        sigma = InverseFisher().estimate(model, [(x, y)], F.mse_loss)["weight"]
    else:
        optimizer = WAYS[way](list(model.parameters()))
        pruner = pw.Pruner(model, optimizer, criterion="wald", uncertainty=watch)
        for _ in range(STEPS):
            i = torch.randint(0, N, (BATCH,), generator=g)
            optimizer.zero_grad()
            F.mse_loss(model(x[i]), y[i]).backward()
            optimizer.step()
        sigma = pruner.sigma()["weight"]
    tau = pw.tau(model.weight.detach(), sigma, 0.0)[0]
    return float(tau[1] / tau[0])


def main() -> None:
    """Print the powers."""
    options = parser(__doc__).parse_args()
    cases: dict[str, tuple[str, Online | None]] = {
        "inverse Fisher": ("", None),
        "second moment, RMSprop": ("RMSprop", pw.SecondMoment(samples=N, batch_size=BATCH)),
        "second moment, SGD": ("SGD", pw.SecondMoment(samples=N, batch_size=BATCH, decay=0.999)),
        "batch means, SGD": ("SGD", pw.BatchMeans(samples=N, batch_size=BATCH, length=STEPS // 10)),
        "pseudo bootstrap last 200, SGD": ("SGD", pw.PseudoBootstrap(last=200, total_steps=STEPS)),
        "pseudo bootstrap last 200, RMSprop": ("RMSprop", pw.PseudoBootstrap(last=200, total_steps=STEPS)),
        "pseudo bootstrap last 10,000, RMSprop": ("RMSprop", pw.PseudoBootstrap(last=10_000, total_steps=STEPS)),
    }
    numbers = {}
    for name, (way, watch) in cases.items():
        before, after = ratio(1.0, way, watch), ratio(FACTOR, way, watch)
        power = math.log(after / before) / math.log(FACTOR)
        numbers[name] = {"before": before, "after": after, "power": power}
        print(f"{name:40}{before:10.3f}{after:10.3f}   power {power:+.2f}", flush=True)
    print(f"{'magnitude':40}{'':20}   power +1.00")
    record(options.json, numbers)


if __name__ == "__main__":
    main()
