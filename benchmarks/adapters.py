"""A step of LoRA on all linear layers of a Llama, with masked adapters beside PEFT's own: time, and peak memory.

Memory is of a process of its own, told to give what it frees back at once, so that a peak is what was held.
"""

import os
from collections.abc import Callable

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import prunewald as pw
from benchmarks.bench import interleaved, parser, peak_over_start, record
from prunewald.integrations.peft import mask_adapters


def tuned(masked: bool, layers: int, width: int) -> tuple[Callable[[], None], int]:
    """A training step of four sequences of 64 tokens, and the bytes of all that adapters add to."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        vocab_size=256,
        num_attention_heads=8,
    )
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), lora)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad])
    ids = torch.randint(0, 256, (4, 64))
    if masked:
        pruner = pw.Pruner(model, optimizer, criterion="magnitude")
        mask_adapters(model, pruner)
        pruner.prune(0.5)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step, sum(param.nbytes for name, param in model.named_parameters() if "base_layer" in name)


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--layers", type=int, default=8)
    args.add_argument("--width", type=int, default=768)
    args.add_argument("--blocks", type=int, default=5, help="times that each way takes its turn")
    options = args.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    shape = options.layers, options.width
    steps = {"PEFT": tuned(False, *shape), "masked": tuned(True, *shape)}
    seconds = interleaved({name: step for name, (step, _) in steps.items()}, options.blocks, 1)
    code = "from benchmarks.adapters import tuned\nstep, _ = tuned({}, *{})\nstep()\n#---\nstep()"
    peaks = {name: peak_over_start(code.format(name == "masked", shape))[1] for name in steps}
    weights = steps["PEFT"][1]
    print(f"{weights / 2**20:.0f} MiB of weights that adapters add to")
    for name in steps:
        print(f"  {name:8}{seconds[name]:8.2f} s a step, {peaks[name] / 2**20:6.0f} MiB over the start")
    times, more = seconds["masked"] / seconds["PEFT"], (peaks["masked"] - peaks["PEFT"]) / weights
    print(f"  masked takes {times:.2f} times as long, and {more:.2f} of the weights more at its peak")
    record(options.json, {"weights": weights, "seconds": seconds, "peaks": peaks, "times": times, "more": more})
