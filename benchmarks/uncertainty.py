"""The uncertainties of the paper's first network (9,660 parameters): what it tried, and how they agree.

Trains the network on Fashion-MNIST as the paper's experiment 1 does, with every online estimator attached; then the
analytic attempt (rank of I and K, negative variances, mean score) and real bootstraps; then rank correlations by layer.
"""

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy, steps, train
from prunewald.model.modules import evaluating
from prunewald.uncertainty import Bootstrap, Online
from prunewald.uncertainty.analytic import by_block
from prunewald.uncertainty.curvature import pose

BATCH, LAST = 128, 200


def trained(device: str, epochs: int, dropout: float) -> tuple[PaperCNN, Any, dict[str, dict[str, Tensor]], Any]:
    """The network, its data, and the sigmas of the estimators that watched it."""
    data = fashion_mnist(0)
    torch.manual_seed(0)
    model = PaperCNN(dropout).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    total = steps(len(data.train.y), epochs, BATCH)
    recipes: dict[str, Online] = {
        "pseudo bootstrap, last 200": pw.PseudoBootstrap(last=LAST, total_steps=total),
        "pseudo bootstrap, every k-th": pw.PseudoBootstrap(every=max(1, total // LAST)),
        "second moment": pw.SecondMoment(samples=len(data.train.y), batch_size=BATCH, likelihood=F.cross_entropy),
    }
    pruners = {
        name: pw.Pruner(model, optimizer, uncertainty=recipe, targets=nn.Linear) for name, recipe in recipes.items()
    }
    x, y = (t.to(device) for t in data.train)
    train(model, optimizer, x, y, epochs, BATCH, generator=torch.Generator().manual_seed(0))
    return model, data, {name: p.sigma() for name, p in pruners.items()}, pruners["pseudo bootstrap, last 200"].dead()


def rank(matrix: Tensor) -> int:
    values = torch.linalg.eigvalsh(matrix).abs()
    return int((values > values.max() * len(values) * torch.finfo(values.dtype).eps).sum())


def analytic(model: nn.Module, batches: list[tuple[Tensor, Tensor]], observed: bool) -> dict[str, Any]:
    """What the paper had to find out by hand; in double precision, since most eigenvalues are small."""
    model = copy.deepcopy(model).double()
    with evaluating(model):
        (part,) = by_block(pose(model, [(x.double(), y) for x, y in batches], F.cross_entropy, None), observed)
    spectrum, z = part.spectrum, part.z()
    return {
        "parameters": len(part.mean),
        "rank of I": spectrum.rank,
        "rank of K": rank(part.covariance),
        "parameters without information": int((~part.told).sum()),
        "negative eigenvalues of I": int((spectrum.values[spectrum.keep] < 0).sum()),
        "negative variances, pseudo-inverse": int((spectrum.inverted("pseudo").diagonal() < 0).sum()),
        "mean score, root mean square in standard errors (1 at an optimum)": float(z.square().mean().sqrt()),
        "share of scores beyond 1.96 standard errors": float((z.abs() > 1.96).double().mean()),
    }


def correlations(sigmas: dict[str, dict[str, Tensor]], reference: str) -> dict[str, dict[str, list[float]]]:
    """By layer, against one of them: rank correlation, and the median ratio."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, sigma in sigmas.items():
        for layer, value in sigma.items():
            if name != reference:
                a = pw.statistics.agreement(value.cpu().double(), sigmas[reference][layer].cpu().double())
                found.setdefault(name, {})[layer] = [round(a.correlation, 3), float(f"{a.quantiles[1]:.3g}")]
    return found


def main() -> None:
    """Run it all."""
    args = parser(__doc__)
    args.add_argument("--device", default="cpu")
    args.add_argument("--epochs", type=int, default=200)
    args.add_argument("--dropout", type=float, default=0.1)
    args.add_argument("--replicas", type=int, default=100)
    args.add_argument("--observed", action="store_true", help="the observed information too: a GPU with much memory")
    args.add_argument("--samples", type=int, default=5400, help="of the training data, for the analytic attempt")
    options = args.parse_args()
    began = time.perf_counter()
    model, data, sigmas, dead = trained(options.device, options.epochs, options.dropout)
    x, y = (t.to(options.device) for t in data.train)
    batches = [(x[: options.samples], y[: options.samples])]
    numbers: dict[str, Any] = {
        "epochs": options.epochs,
        "test accuracy": accuracy(model, *(t.to(options.device) for t in data.test)),
        "share of weights without a gradient in the last 200 steps": {
            name: round(float(f.double().mean()), 4) for name, f in dead.items()
        },
        "expected information": analytic(model, batches, observed=False),
    }
    if options.observed:
        numbers["observed information"] = analytic(model, batches, observed=True)
    layers = list(sigmas["second moment"])
    for labels in ("data", "model"):
        diagonal = pw.uncertainty.FisherDiagonal(labels=labels).estimate(model, batches, F.cross_entropy)
        sigmas[f"Fisher diagonal, labels of the {labels}"] = {name: diagonal[name] for name in layers}
    for start in ("warm", "same", "independent"):
        bootstrap = Bootstrap(replicas=options.replicas, start=start)
        found = bootstrap.estimate(
            model, [(x, y)], F.cross_entropy, epochs=options.epochs, batch_size=BATCH, progress=False
        )
        sigmas[f"bootstrap, {start}"] = {name: found[name] for name in layers}
        print(f"bootstrap, {start}: {time.perf_counter() - began:.0f} s", flush=True)
    for reference in ("bootstrap, warm", "bootstrap, same", "bootstrap, independent"):
        numbers[f"rank correlation and median ratio to {reference}"] = correlations(sigmas, reference)
    numbers["seconds"] = round(time.perf_counter() - began, 1)
    for name, value in numbers.items():
        print(name, value)
    record(options.json, numbers)


if __name__ == "__main__":
    main()
