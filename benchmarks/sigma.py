"""Sigma of the pseudo bootstrap against a two-pass standard deviation in float64, and the memory it takes."""

import torch
from torch import Tensor, nn

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.uncertainty.streaming import collect_, merged, new_block, shift_to_

B, N = 200, 200_000


def path(kind: str, scale: float) -> Tensor:
    """B snapshots of weights around 1e-2."""
    g = torch.Generator().manual_seed(0)
    centre = 1e-2 * torch.randn(N, generator=g, dtype=torch.float64)
    moves = scale * torch.randn(B, N, generator=g, dtype=torch.float64)
    if kind == "random walk":
        moves = moves.cumsum(0)
    if kind == "outlying first":
        moves[0] += 1000 * scale
    return (centre + moves).float()


def streamed(snapshots: Tensor, blocks: int) -> Tensor:
    """What the estimator computes: as one window, or as a rolling one of several blocks."""
    shift: dict[str, Tensor] = {}
    made: list[dict[str, object]] = []
    for i, w in enumerate(snapshots):
        if i % (B // blocks) == 0:
            shift_to_(shift, made, {"w": w})
            made.append(new_block({"w": w}))
        collect_(shift, made[-1], {"w": w}, {"w": None}, None, compiled=False)
    count, m2 = merged(made, "w")
    return (m2 / (count - 1)).sqrt()


def naive(snapshots: Tensor) -> Tensor:
    """Running E[x] and E[x^2] in float32, for comparison."""
    first, second = torch.zeros(N), torch.zeros(N)
    for w in snapshots:
        first += w
        second += w * w
    return ((second - first * first / B) / (B - 1)).clamp(min=0).sqrt()


def worst(sigma: Tensor, exact: Tensor) -> float:
    moved = exact > 0
    return float(((sigma.double() - exact).abs() / exact)[moved].max())


def accuracy() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(f"largest relative error of sigma over {N:,} weights, B = {B}")
    print(f"{'snapshots':16}{'moves':>8}{'one window':>13}{'rolling':>11}{'E[x^2]-E[x]^2':>16}")
    for kind in ("independent", "random walk", "outlying first"):
        for scale in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
            snapshots = path(kind, scale)
            exact = snapshots.double().std(0)
            errors = [worst(s, exact) for s in (streamed(snapshots, 1), streamed(snapshots, 5), naive(snapshots))]
            print(f"{kind:16}{scale:8.0e}{errors[0]:13.1e}{errors[1]:11.1e}{errors[2]:16.1e}", flush=True)
            names = ("one window", "rolling", "naive")
            rows.append({"snapshots": kind, "moves": scale, **dict(zip(names, errors, strict=True))})
    return rows


def held(value: object) -> int:
    """Bytes of all tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(held(v) for v in value.values())
    return sum(map(held, value)) if isinstance(value, list) else 0


def memory() -> dict[str, float]:
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 1024), nn.Linear(1024, 512), nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    known = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=B, total_steps=2 * B))
    rolling = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=B))
    most = {"known": 0, "rolling": 0}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(2 * B):
        optimizer.step()
        for name, pruner in (("known", known), ("rolling", rolling)):
            most[name] = max(most[name], held(pruner.state_dict()["states"]))
    weights = sum(mask.numel() for mask in known.masks.values())
    print(f"\nbytes a weight, {weights:,} weights, B = {B} (a float32 copy is 4)")
    bytes_ = {name: most[name] / weights for name in most} | {"snapshots": 4.0 * B}
    for name, value in bytes_.items():
        print(f"  {name:10}{value:8.2f}")
    return bytes_


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    record(args.json, {"largest relative error": accuracy(), "bytes a weight": memory()})
