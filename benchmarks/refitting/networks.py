"""The six networks: what they are, what they are trained on and how."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from prunewald.lab.architectures import MLP, PaperCNN, _channels_last, _convolutions, _dense
from prunewald.lab.newer import ResNet8, Transformer


@dataclass(frozen=True)
class Network:
    """One network and its training. `train` images or sequences, drawn anew for each seed."""

    title: str
    data: str
    make: Callable[[], nn.Module]
    train: int
    epochs: int
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float = 1e-3
    batch: int = 128
    blocks: tuple[str, ...] = ()  # layers within one of these are pruned together, as SparseGPT and Wanda do
    head: str = "fc"  # the layer that those leave dense
    positions: int = 1  # of so many calibration examples one is taken, since a sequence has as many to fit to

    @property
    def text(self) -> bool:
        """Whether it reads text."""
        return self.data == "text"


class AlexLike(nn.Module):
    """Three convolutions to 64 maps of 4x4, then 256-128-10: a third of the paper's small AlexNet."""

    def __init__(self) -> None:
        super().__init__()
        self.features = _convolutions(3, (32, "pool", 48, "pool", 64, "pool"))
        self.classifier = _dense((64 * 4 * 4, 256, 128, 10), 0.1)
        _channels_last(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images (n, 3, 32, 32)."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def _decoder() -> nn.Module:
    """A decoder of two blocks over bytes, as Hugging Face's transformers has them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    made: nn.Module = LlamaForCausalLM(config)
    return made


def _resnet() -> nn.Module:
    made = ResNet8(1, 28, 10)
    _channels_last(made)
    return made


_ADAMW: Any = partial(torch.optim.AdamW, weight_decay=0.01)
_LAYERS = tuple(f"model.layers.{i}" for i in range(2))
NETWORKS = {
    "mlp": Network(
        "MLP 784-512-1024-512-10, MNIST", "mnist", partial(MLP, 0.1), 55_000, 6, torch.optim.RMSprop,
        head="classifier.9",
    ),
    "cnn": Network("the paper's CNN, Fashion-MNIST", "fashion-mnist", partial(PaperCNN, 0.1), 5_400, 100,
                   torch.optim.RMSprop, head="fc3"),
    "alexnet": Network("AlexNet-like, CIFAR-10", "cifar10", AlexLike, 20_000, 8, torch.optim.RMSprop,
                       head="classifier.6"),
    "resnet": Network("ResNet-8 with BatchNorm, Fashion-MNIST", "fashion-mnist", _resnet, 12_000, 6, _ADAMW),
    "transformer": Network(
        "vision transformer, Fashion-MNIST", "fashion-mnist", partial(Transformer, 1, 28, 10, 0.1), 12_000, 20, _ADAMW,
        blocks=("blocks.0", "blocks.1"),
    ),
    "text": Network("decoder over bytes, Python's documentation", "text", _decoder, 9_600, 2, _ADAMW, lr=2e-3,
                    batch=16, blocks=_LAYERS, head="lm_head", positions=4),
}  # fmt: skip
