"""Tiny models of Transformers from configurations, data that they can learn, and a Trainer for them."""

import gc
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers", reason="Transformers is not installed")
pytest.importorskip("accelerate", reason="the Trainer needs Accelerate, which is not installed")

WORDS, CLASSES, LENGTH = 24, 3, 6
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
DECODER = {**SMALL, "vocab_size": WORDS, "num_key_value_heads": 1, "max_position_embeddings": 16, "pad_token_id": 0}


def bert():
    config = transformers.BertConfig(**SMALL, vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES)
    return transformers.BertForSequenceClassification(config)


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, **options))


def vit():
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, vocab_size=WORDS, decoder_start_token_id=0)
    )


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**DECODER, num_local_experts=4))


# Every train() collects garbage, which takes half a second with all that an import of Transformers leaves.
gc.freeze()

KINDS = {kind.__name__: kind for kind in (bert, llama, vit, t5, mixtral)}


def made(kind, seed=0, **options):
    torch.manual_seed(seed)
    return kind(**options)


def rows(model, count=32):
    """Data that can be learnt, as the model wants it."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    if model.config.model_type == "bert":
        return [{"input_ids": x, "labels": x[0] % CLASSES} for x in words]
    if model.config.model_type == "vit":
        return [{"pixel_values": torch.full((1, 8, 8), x[0] / WORDS), "labels": x[0] % CLASSES} for x in words]
    return [{"input_ids": x, "labels": x} for x in words]


def trainer(model, folder, *callbacks, steps=6, **options):
    chosen = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "save_strategy": "no", "logging_steps": 2}
    args = transformers.TrainingArguments(
        str(folder), max_steps=steps, use_cpu=True, disable_tqdm=True, report_to="none", **{**chosen, **options}
    )
    data = rows(model)
    return transformers.Trainer(model, args, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))


def share_of_zeros(model, pruner):
    weights = [model.get_parameter(name) for name in pruner.masks]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
