"""Pruning and refitting a decoder against SparseGPT as published, on the same tokens: seconds, and peak memory.

The decoder is a Llama of random weights, made from a configuration: 205 M weights in 16 blocks. SparseGPT is the
transcription in `benchmarks.published`, block by block as in its authors' code: what a block is given is kept, one pass
over it gathers a Hessian for each linear layer, and another gives the next block its inputs. Each way runs in a process
of its own, in turn; seconds are medians over the rounds, and memory is what a process holds at its peak above what it
held with the model loaded.
"""

import statistics
from contextlib import suppress

from benchmarks.bench import parser, peak_over_start, record

SETUP = """
import warnings
warnings.simplefilter("ignore")
import torch
import transformers
import prunewald as pw
from benchmarks.refit import sparsegpt_decoder
torch.set_num_threads({threads})
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=8192, hidden_size={width}, intermediate_size={inner}, num_hidden_layers={layers},
    num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=True, max_position_embeddings={length},
)
model = transformers.LlamaForCausalLM(config).eval()
tokens = torch.randint(0, 8192, ({tokens} // {length}, {length}))
data = [{{"input_ids": row[None]}} for row in tokens]
small = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2))
pw.Pruner(small).prune(0.5, refit=[{{"input_ids": torch.randint(0, 64, (8, 16))}}])  # all is loaded and warm
"""
WAYS = {
    "SparseGPT": "sparsegpt_decoder(model, data, {level})",
    "prune and refit": "pw.Pruner(model, scope='layer').prune({level}, refit=data)",
    "prune and refit, folder": "pw.Pruner(model, scope='layer').prune({level}, refit=data, folder='/tmp')",
}


def sparsegpt_decoder(model, data, sparsity):
    """SparseGPT for every linear layer in the blocks of a Hugging Face decoder, as its authors run it."""
    import torch
    from torch import nn

    from benchmarks.published import sparsegpt

    class Catcher(Exception):
        pass

    kept = {}

    def catch(_, args, kwargs):
        given.append(args[0] if args else kwargs["hidden_states"])
        kept.update({name: value for name, value in kwargs.items() if name != "hidden_states"})
        raise Catcher

    blocks, given = model.model.layers, []
    model.config.use_cache = False
    handle = blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
    with torch.no_grad():
        for batch in data:
            with suppress(Catcher):
                model(**batch)
        handle.remove()
        for block in blocks:
            layers = [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
            grams = {layer: torch.zeros(layer.in_features, layer.in_features) for layer in layers}

            def add(layer, args, _, grams=grams):
                x = args[0].reshape(-1, args[0].shape[-1]).float()
                grams[layer] += x.T @ x

            handles = [layer.register_forward_hook(add) for layer in layers]
            for x in given:
                block(x, **kept)
            for handle in handles:
                handle.remove()
            for layer in layers:
                layer.weight.copy_(sparsegpt(layer.weight, grams.pop(layer), sparsity))
            for at, x in enumerate(given):
                found = block(x, **kept)
                given[at] = found[0] if isinstance(found, tuple) else found


def main() -> None:
    made = parser(__doc__)
    for name, value in {"layers": 16, "width": 1024, "inner": 2816, "tokens": 16384, "length": 512}.items():
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--level", type=float, nargs="+", default=[0.5, 0.9])
    made.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument(
        "--clock", default="perf_counter", choices=("perf_counter", "process_time"), help="process_time: of processors"
    )
    given = made.parse_args()
    numbers = {}
    for level in given.level:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in given.ways}
        for _ in range(given.rounds):
            for way in given.ways:
                job = WAYS[way].format(level=level)
                found[way].append(peak_over_start(f"{SETUP.format(**vars(given))}#---\n{job}", given.clock))
        for way, runs in found.items():
            seconds, peak = (statistics.median(values) for values in zip(*runs, strict=True))
            numbers[f"{way}, {level:.0%}"] = {"seconds": seconds, "peak": peak}
            print(f"{level:.0%}  {way:30} {seconds:8.1f} s  {peak / 1e6:8.0f} MB over the model", flush=True)
    record(given.json, numbers)


if __name__ == "__main__":
    main()
