"""Adapters of PEFT on a pruned model: what they add is zero where the base is pruned, so a merge keeps the zeros.

pruner = pw.Pruner(model, optimizer, criterion="magnitude")  # the frozen base; adapters are never targets
adapters = mask_adapters(model, pruner)
pruner.prune(0.5)
train(model, optimizer)
merged = model.merge_and_unload()  # as sparse as the base, and with the outputs that the adapted model had
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from prunewald.integrations.framework import framework
from prunewald.pruner import Pruner
from prunewald.pruning.plan import adapter_notes
from prunewald.util.text import some

_SHOWN = 3  # so many layers are named


def mask_adapters(model: nn.Module, pruner: Pruner) -> "MaskedAdapters":
    """Mask what the LoRA adapters of a model add to its weights, wherever the Pruner prunes these, now and later.

    The outputs, with several adapters, dropout and mixed batches too, are those of W + mask * (B A) * scaling, and
    PEFT merges and unmerges the same. It holds for adapters that are added later, and until `remove()` of what is
    returned. A layer of which nothing is pruned computes as before. For one that is pruned B A is made in full, as
    large as its weight, at every pass, and again in the backward pass: none is kept between, but a step takes two to
    three times as long.

    Adapters of IA3 scale weights, and need no mask. Other kinds (DoRA and other variants, embeddings, attention,
    grouped convolutions) on a weight that is pruned are an error, and so are adapters that are merged already, a
    Pruner of another model, or one whose targets are adapters; then nothing has changed.
    """
    peft = framework("peft")
    if not isinstance(pruner, Pruner):
        raise TypeError(f"mask_adapters(model, {type(pruner).__name__}): give the Pruner of the model")
    layers = _adapted(model, pruner, peft)
    for name, layer in layers:
        if reason := _why_not(name, layer, peft):
            raise ValueError(f"{name!r} {reason}; or leave it out of the pruning: Pruner(..., ignore={name!r})")
    return MaskedAdapters(model, pruner, layers)


def take_along(model: nn.Module, earlier: Pruner | None, pruner: Pruner) -> None:
    """Let the adapters of a model that go by the masks of one Pruner go by those of the one that takes its place."""
    variants = (getattr(layer, "lora_variant", None) for layer in model.modules())
    found = {id(one.whose): one.whose for one in variants if isinstance(one, _Every) and one.whose is not None}
    for masked in found.values():
        if earlier is not None and masked.pruner is earlier:
            masked.go_by(pruner)


class MaskedAdapters:
    """The adapters of a model that are masked, until `remove()`; `layers` are the names of the weights they add to."""

    def __init__(self, model: nn.Module, pruner: Pruner, layers: Sequence[tuple[str, Any]]) -> None:
        self.layers = tuple(dict.fromkeys(name for name, _ in layers))
        self._model, self.pruner, self._held = model, pruner, [layer for _, layer in layers]
        for name, layer in layers:
            layer.lora_variant = _Every(MaskedLora(pruner.zeros, name), self)
        self._say(masked=self.layers)

    def go_by(self, pruner: Pruner) -> None:
        """Go by the masks of another Pruner of these weights from now on."""
        self.pruner = pruner
        for layer in self._held:
            layer.lora_variant.variant.zeros = pruner.zeros
        self._say(masked=self.layers)

    def remove(self) -> None:
        """Let the adapters add to pruned weights too, as PEFT has it: the outputs change, and a merge fills zeros."""
        present = set(map(id, self._model.modules()))
        held = [layer for layer in self._held if id(layer) in present]
        if merged := [layer.lora_variant.variant.name for layer in held if layer.merged]:
            raise ValueError(f"the adapters of {some(merged, _SHOWN)} are merged: model.unmerge_adapter() first")
        for layer in held:
            layer.lora_variant = {}
        self._held = []
        self._say(adapted=self.layers)

    def _say(self, **layers: tuple[str, ...]) -> None:
        """Let every report tell what is so, and the last one too."""
        slices, report = self.pruner.slices, self.pruner.report
        before = adapter_notes(slices)
        slices.adapted, slices.masked = layers.get("adapted", ()), layers.get("masked", ())
        if report is not None:
            notes = [note for note in report.notes if note not in before]
            self.pruner.report = replace(report, notes=[*notes, *adapter_notes(slices)])

    def __repr__(self) -> str:
        return f"MaskedAdapters({len(self._held)} layers: {some(self.layers, _SHOWN)})"


class _Masks(Protocol):
    """What is asked of a Pruner's zeros."""

    @property
    def alive(self) -> Mapping[str, Tensor]:
        """The masks of the parameters where anything was pruned."""

    def mask(self, name: str) -> Tensor:
        """True where a weight is alive."""


class _Fixed(NamedTuple):
    """Masks that no Pruner changes any more, in a model that was saved whole."""

    alive: Mapping[str, Tensor]

    def mask(self, name: str) -> Tensor:
        return self.alive[name]


@dataclass(eq=False)
class MaskedLora:
    """A variant of LoRA, in the shape that peft gives to these: with what it adds masked as a weight is pruned.

    A copy of the model shares it, so that its outputs are those of the model.
    """

    zeros: _Masks
    name: str

    def init(self, layer: Any, adapter_name: str, **_: object) -> None:
        """There is nothing to prepare for an adapter that is added."""

    def forward(self, layer: Any, active_adapter: str, x: Tensor, result: Tensor, **_: object) -> Tensor:
        """The output of the layer, from that of its base."""
        x = layer.lora_dropout[active_adapter](x)
        if self.name not in self.zeros.alive:
            scale: float = layer.scaling[active_adapter]
            plain: Tensor = layer.lora_B[active_adapter](layer.lora_A[active_adapter](x)) * scale
            return result + plain
        if not torch.is_grad_enabled():
            return result + self._added(layer, active_adapter, x)
        # Made again in the backward pass: kept, the deltas of all layers would take as much memory as the weights.
        masked: Tensor = checkpoint(
            self._added, layer, active_adapter, x, use_reentrant=False, preserve_rng_state=False
        )
        return result + masked

    def merge_safe(self, layer: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        """The weight with the adapter in it."""
        return orig_weight + self._delta(layer, active_adapter).to(orig_weight.dtype)

    def merge_unsafe(self, layer: Any, active_adapter: str, orig_weight: Tensor) -> None:
        """Merge the adapter into the weight itself."""
        orig_weight.data += self._delta(layer, active_adapter)

    def unmerge(self, layer: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        """The weight without the adapter."""
        return orig_weight - self._delta(layer, active_adapter).to(orig_weight.dtype)

    def supports_lora_conversion(self) -> bool:
        """What it adds is of no low rank any more."""
        return False

    def _delta(self, layer: Any, adapter: str) -> Tensor:
        """What an adapter adds to the weight."""
        delta: Tensor = layer.get_delta_weight(adapter)
        alive = self.name in self.zeros.alive
        return torch.where(self.zeros.mask(self.name).to(delta.device), delta, 0) if alive else delta

    def _added(self, layer: Any, adapter: str, x: Tensor) -> Tensor:
        """What an adapter adds to the output."""
        delta, bias, base = self._delta(layer, adapter), layer.lora_B[adapter].bias, layer.get_base_layer()
        bias = None if bias is None else bias * layer.scaling[adapter]
        if isinstance(base, nn.modules.conv._ConvNd):
            convolved: Tensor = base._conv_forward(x, delta, bias)
            return convolved
        return F.linear(x, delta.T if layer.fan_in_fan_out else delta, bias)

    def __deepcopy__(self, memo: object) -> "MaskedLora":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        alive = {self.name: self.zeros.mask(self.name)} if self.name in self.zeros.alive else {}
        return MaskedLora, (_Fixed(alive), self.name)


class _Every:
    """In the place of a layer's dict of variants by adapter: each has the same, also one that is added later.

    It is no dict: where one is empty, a model that is compiled does not see that what its attributes have has changed.
    """

    def __init__(self, variant: MaskedLora, whose: MaskedAdapters | None = None) -> None:
        self.variant, self.whose = variant, whose  # whose it is, is not known in a copy

    def __contains__(self, adapter: object) -> bool:
        return True

    def __getitem__(self, adapter: str) -> MaskedLora:
        return self.variant

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def get(self, adapter: str, default: object = None) -> MaskedLora:
        """What an adapter has."""
        return self.variant

    def pop(self, adapter: str, default: object = None) -> None:
        """There is nothing to forget for an adapter that is deleted."""

    def __setitem__(self, adapter: str, variant: object) -> None:
        raise ValueError(
            f"adapter {adapter!r} is a {type(variant).__name__} on {self.variant.name!r}, where adapters are masked as "
            "it is pruned: this is done for LoRA without variants; remove() the masks first, or add plain LoRA"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _Every, (self.variant,)


def _adapted(model: nn.Module, pruner: Pruner, peft: Any) -> list[tuple[str, Any]]:
    """What adapters add to of all that a Pruner prunes, each with the layer that does; an error where it has none."""
    held = {id(param): name for name, param in pruner.zeros.params.items()}
    if not pruner.zeros.attached:
        raise ValueError("this Pruner was detached: make a new one, as pw.Pruner(model, optimizer)")
    if other := [name for one, name in held.items() if one not in set(map(id, model.parameters()))]:
        raise ValueError(
            f"this Pruner prunes another model: its {other[0]!r} is no parameter of this {type(model).__name__}; give "
            "the model of pw.Pruner(model, optimizer); where PEFT replaces a weight itself, as it does in attention, "
            f"pw.Pruner(..., ignore={other[0]!r})"
        )
    tuners = [one for one in model.modules() if isinstance(one, peft.tuners.tuners_utils.BaseTunerLayer)]
    if not tuners:
        raise ValueError(
            f"this {type(model).__name__} has no adapters in its layers: get_peft_model(model, LoraConfig(...)) first; "
            "a merged model, or one with prompts alone, needs no masks"
        )
    found: list[tuple[str, Any]] = []
    for layer in tuners:
        base = {id(param) for param in layer.get_base_layer().parameters()}
        if own := [held[id(param)] for param in layer.parameters() if id(param) in held.keys() - base]:
            raise ValueError(f"{own[0]!r} is an adapter, and a target of this Pruner: Pruner(..., ignore='*.lora_*')")
        if not isinstance(layer, peft.tuners.ia3.IA3Layer):
            found += [(held[one], layer) for one in base & held.keys()]
    return [
        (name, layer)
        for name, layer in found
        if not name.endswith("bias") or any(getattr(layer, "lora_bias", {}).values())
    ]


def _why_not(name: str, layer: Any, peft: Any) -> str:
    """Why what the adapters of a layer add cannot be masked, and what to do; empty where it can."""
    lora, kind = peft.tuners.lora.layer, type(layer)
    if kind not in (lora.Linear, lora.Conv1d, lora.Conv2d, lora.Conv3d):
        return (
            f"has adapters of {kind.__module__}.{kind.__name__}: only LoRA on linear layers and convolutions is masked"
        )
    if name.endswith("bias"):
        return "is a bias to which adapters add: lora_bias=False in the LoraConfig"
    if isinstance(layer.lora_variant, _Every):
        return "has adapters that are masked already: remove() of what mask_adapters returned then"
    if layer.lora_variant:
        variants = some(sorted({type(one).__name__ for one in layer.lora_variant.values()}), _SHOWN)
        return f"has adapters of the kind {variants}: only LoRA without variants is masked, as with use_dora=False"
    if layer.merged:
        return f"has adapters that are merged ({some(layer.merged_adapters, _SHOWN)}): model.unmerge_adapter() first"
    if getattr(layer.get_base_layer(), "groups", 1) > 1:
        return "is a grouped convolution, into which PEFT does not merge adapters"
    return ""
