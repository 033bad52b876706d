"""Step time while the pseudo bootstrap collects, as a ratio to the plain step; all ways take turns in one run."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import prunewald as pw
from benchmarks.bench import interleaved, parser, record

BATCH, B = 128, 200


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = (784, 512, 1024, 512, 10)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).to(device)


def stepper(
    device: str, attach: Callable[[nn.Module, torch.optim.Optimizer], Callable[[], object] | None]
) -> Callable[[], None]:
    """A training step of a network of its own; `attach` may return something to call after each."""
    model = network(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    x, y = torch.rand(BATCH, 784, device=device), torch.randint(0, 10, (BATCH,), device=device)
    after = attach(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if after:
            after()

    return step


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Nothing attached."""


def pruner(recipe: object) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        pw.Pruner(model, optimizer, uncertainty=recipe)  # type: ignore[arg-type]

    return attach


def snapshots(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A list of the last B copies: B times the memory."""
    kept: list[list[Tensor]] = []

    def after() -> None:
        kept.append([p.detach().clone() for p in model.parameters() if p.dim() > 1])
        del kept[:-B]

    return after


def averaged(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """torch's own running mean, which is not even a variance."""
    mean = AveragedModel(model)
    return lambda: mean.update_parameters(model)


def holding(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """After pruning: the masks alone."""
    pw.Pruner(model, optimizer, criterion="magnitude").prune(0.9)


def _mask_grad(param: Tensor, mask: Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(mask)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The same masks in a loop that multiplies gradients and weights itself, with masks of the weights' own type."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    masks = [(p.abs() > p.detach().abs().flatten().kthvalue(int(0.9 * p.numel())).values).to(p.dtype) for p in weights]
    for p, mask in zip(weights, masks, strict=True):
        p.register_post_accumulate_grad_hook(partial(_mask_grad, mask=mask))

    @torch.no_grad()
    def after() -> None:
        for p, mask in zip(weights, masks, strict=True):
            p.mul_(mask)

    after()
    return after


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--device", default="cpu")
    args.add_argument("--blocks", type=int, default=60)
    options = args.parse_args()
    many = 10**9  # collecting never ends
    ways = {
        "plain step": plain,
        "pseudo bootstrap": pruner(pw.PseudoBootstrap(every=1)),
        "pseudo bootstrap, compiled": pruner(pw.PseudoBootstrap(every=1, compiled=True)),
        "pseudo bootstrap, rolling": pruner(pw.PseudoBootstrap(last=B)),
        "pseudo bootstrap, before its window": pruner(pw.PseudoBootstrap(last=B, total_steps=many)),
        "second moment (default)": pruner(None),
        "a list of snapshots": snapshots,
        "swa_utils.AveragedModel": averaged,
        "masks of 90 % zeros": holding,
        "the same by hand": by_hand,
    }
    seconds = interleaved({n: stepper(options.device, attach) for n, attach in ways.items()}, options.blocks, inner=10)
    base = seconds["plain step"]
    print(f"MLP 784-512-1024-512-10, batch {BATCH}, RMSprop, {options.device}, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:38}{1e3 * value:8.2f} ms{value / base:8.3f}")
    record(options.json, {name: {"ms": 1e3 * s, "ratio": s / base} for name, s in seconds.items()})
