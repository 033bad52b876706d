"""Wanda on a Llama of 200 M weights from a configuration: a calibration pass and a pruning, against a loop by hand.

Each side in a process of its own, in turns: seconds, and peak memory, of all the process and over the model as it was
made. The loop by hand is what a paper's code does: hooks sum the squared inputs of each linear layer, and of the scores
|w|·||x|| each row, or each four in a row, loses the lowest half. It also keeps its masks, as who goes on training must.
"""

import os
from statistics import median

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import prunewald as pw
from benchmarks.bench import parser, peak_over_start, record

Tokens = list[dict[str, Tensor]]


def made(layers: int, width: int) -> tuple[nn.Module, Tokens]:
    """A decoder with random weights, and four batches of two sequences."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=16,
        vocab_size=32000,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval()
    return model, [{"input_ids": torch.randint(0, 32000, (2, 64))} for _ in range(4)]


def ours(model: nn.Module, batches: Tokens, pattern: str) -> object:
    """By the Pruner."""
    pruner = pw.Pruner(model, criterion="wanda", scope="row", pattern=pattern)
    pruner.observe(batches)
    pruner.prune(0.5)
    return pruner


@torch.no_grad()
def by_hand(model: nn.Module, batches: Tokens, pattern: str) -> object:
    """By a loop over the layers."""
    layers = [m for m in model.get_submodule("model.layers").modules() if isinstance(m, nn.Linear)]
    squares = {layer: torch.zeros(layer.in_features) for layer in layers}

    def read(module: nn.Module, args: tuple[Tensor]) -> None:
        squares[module] += args[0].flatten(0, -2).square().sum(0)  # type: ignore[index]

    hooks = [layer.register_forward_pre_hook(read) for layer in layers]
    for batch in batches:
        model(**batch)
    for hook in hooks:
        hook.remove()
    masks = []
    for layer in layers:
        score = layer.weight.abs() * squares[layer].sqrt()
        groups = score.view(-1, 4) if pattern == "n-of-m" else score
        lowest = groups.topk(groups.shape[1] // 2, dim=1, largest=False, sorted=False).indices
        masks.append(torch.ones_like(groups, dtype=torch.bool).scatter_(1, lowest, False).view(score.shape))
        layer.weight *= masks[-1]
    return masks


CODE = """
from benchmarks.wanda import by_hand, made, ours
model, batches = made{shape}
small = made(1, 64)
{way}(*small, "{pattern}")
#---
kept = {way}(model, batches, "{pattern}")
"""


def measure(shape: tuple[int, int], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Medians, by pattern and way."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for pattern in ("element", "n-of-m"):
        runs: dict[str, list[tuple[float, float]]] = {"by_hand": [], "ours": []}
        for _ in range(rounds):
            for way, own in runs.items():
                own.append(peak_over_start(CODE.format(shape=shape, way=way, pattern=pattern), "process_time"))
        found[pattern] = {
            way: {"seconds": median(s for s, _ in own), "MiB": median(m for _, m in own) / 2**20}
            for way, own in runs.items()
        }
    return found


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--layers", type=int, default=12)
    args.add_argument("--width", type=int, default=1024)
    args.add_argument("--rounds", type=int, default=3)
    options = args.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    numbers = measure((options.layers, options.width), options.rounds)
    for pattern, ways in numbers.items():
        for way, one in ways.items():
            times = [one[what] / ways["by_hand"][what] for what in ("seconds", "MiB")]
            print(f"{pattern:9}{way:9}{one['seconds']:7.2f} s{times[0]:6.2f}x{one['MiB']:8.0f} MiB{times[1]:6.2f}x")
    record(options.json, numbers)
