"""What is a weight by default, and which axis of it holds the outputs of its layer.

A table of module types (or names of classes) and parameter names decides; `register_layout` adds to it. A parameter
that the table does not know is a weight only where all of this holds:

- at least two of its dimensions are above 1, so layer scales (C, 1, 1) and class tokens (1, 1, C) are none;
- its name says weight: "weight", "kernel", "filter", "matrix", "proj", "w" as a word of it, or one like "W1" and "Wq";
  the name of a ParameterList or ParameterDict counts too for what is in it;
- its name does not say otherwise: bias, scale, embedding, token, position, temperature, norm, mask, ...;
- its module is no norm and no embedding by the name of its class: LlamaRMSNorm, PatchEmbedding.

A parameter of three dimensions is a stack of experts, one matrix each, where the name of its class, its module or
itself says "expert". Routers, which choose among experts, are left out. So are adapters, which add to the weight beside
them, and are known by the names that PEFT gives them: "lora_A", "hada_w1_a", ..., and the original of a layer that is
trained whole beside them, in a copy.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import prune
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


@dataclass(frozen=True)
class Layout:
    """Where the outputs and the inputs of a layer are in its weight: (out, in, ...) unless `transposed`.

    A `stacked` weight holds one such weight for each index of its first dimension, as experts do. With `groups`, as in
    a grouped transposed convolution, the first dimension is cut into so many, each with outputs of its own.
    """

    transposed: bool = False
    stacked: bool = False
    groups: int = 1

    def swap(self, tensor: Tensor) -> Tensor:
        """A transposed weight as (out, in, ...), or what was made from that back as the weight has it."""
        if self.groups == 1:
            return tensor.transpose(0, 1).contiguous()
        grouped: Tensor = tensor.unflatten(0, (self.groups, -1))
        return grouped.transpose(1, 2).flatten(0, 1)

    def swapped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that `swap` gives."""
        return (shape[1] * self.groups, shape[0] // self.groups, *shape[2:])


class _Entry(NamedTuple):
    """A line of the table: parameters by a glob over their names, in modules of a type or of a class so named."""

    kind: type[nn.Module] | str
    name: str
    layout: Layout | None  # None: no weight
    dims: int | None = None  # how many dimensions the parameter has; None: any number


_PLAIN, _TRANSPOSED = Layout(), Layout(transposed=True)
_EXPERTS = Layout(transposed=True, stacked=True)
_NORMS: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_LOOKUPS: tuple[type[nn.Module], ...] = (nn.Embedding, nn.EmbeddingBag)
_TABLE = [
    *(_Entry(kind, "*", None) for kind in _NORMS + _LOOKUPS),
    _Entry(nn.Linear, "weight", _PLAIN),
    _Entry(_ConvTransposeNd, "weight", _TRANSPOSED),  # (in, out/groups, ...)
    _Entry(_ConvNd, "weight", _PLAIN),
    _Entry(nn.Bilinear, "weight", _PLAIN),
    _Entry(nn.MultiheadAttention, "in_proj_weight", _PLAIN),
    _Entry(nn.MultiheadAttention, "[qkv]_proj_weight", _PLAIN),
    _Entry(nn.RNNBase, "weight_*", _PLAIN),  # (gates x hidden, in)
    _Entry(nn.RNNCellBase, "weight_*", _PLAIN),
    _Entry("Conv1D", "weight", _TRANSPOSED, 2),  # GPT-2's, (in, out)
    _Entry("GptOssExperts", "*_proj", _EXPERTS, 3),  # these multiply from the right: (experts, in, out)
    _Entry("Llama4TextExperts", "*_proj", _EXPERTS, 3),
]

# Whether a module is of the kind of an entry, by its type, or by the name of its class or of one it is made from.
_KINDS: dict[bool, Callable[[nn.Module, Any], bool]] = {
    False: lambda module, kind: isinstance(module, kind),
    True: lambda module, kind: any(fnmatchcase(cls.__name__, kind) for cls in type(module).__mro__),
}

_NORM = re.compile(r"[Nn]orm(?![a-z])|Normali[sz]ation")
_LOOKUP = re.compile(r"Embed")
_LAYER = re.compile(r"Linear|Conv|Dense")  # NormedLinear is a linear layer
_WEIGHT = re.compile(r"(^|_)(w|weights?|kernels?|filters?|matrix|proj|projection)\d*(_|$)", re.IGNORECASE)
_ADAPTER = re.compile(r"(lora|hada|lokr|oft|boft|vera|ia3|hra|randlora)_")
_ADDS = re.compile(r"(?!ia3_)" + _ADAPTER.pattern)  # the others scale a weight: zero stays zero
_BESIDE = re.compile(_ADAPTER.pattern + r"|(original_module|modules_to_save)\b")  # copies that are not in use, too
_SHORT = re.compile(r"^(W[A-Za-z]{0,2}|w[qkvo]?)\d*$")
_OTHER = re.compile(
    r"bias|scale|gamma|embed|token|pos_|position|temperature|norm|mask|logit|alpha|table", re.IGNORECASE
)


def register_layout(
    kind: type[nn.Module] | str, name: str = "weight", layout: Layout | None = _PLAIN, *, dims: int | None = None
) -> None:
    """Say what a parameter of a kind of module is: its layout, or with None that it is no weight.

    `kind` is a type, or a glob over names of classes; `name` a glob over names of parameters; `dims` limits it to
    parameters of so many dimensions. The latest entry that fits decides.
    """
    if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, nn.Module))):
        raise TypeError(f"kind={kind!r}: give a type of module, or the name of its class")
    if not isinstance(layout, Layout | None):
        raise TypeError(f"layout={layout!r}: give a Layout, or None for what is no weight")
    _TABLE.insert(0, _Entry(kind, name, layout, dims))


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter, by its name."""
    return any(map(_ADAPTER.match, name.split(".")))


def is_norm_or_lookup(module: nn.Module) -> bool:
    """Whether a module is a norm or an embedding, by its type or by the name of its class."""
    if isinstance(module, _NORMS + _LOOKUPS):
        return True
    name = type(module).__name__
    return bool(_NORM.search(name)) and not _LAYER.search(name) and not isinstance(module, nn.Linear | _ConvNd)


@dataclass
class Survey:
    """What the parameters of a model are, by name: weights with their layouts, and others of two or more dimensions.

    Biases are in neither. `derived` says why a parameter is not what its layer multiplies with: that is made from it at
    every pass. `adapted` are the weights that adapters add to.
    """

    weights: dict[str, Layout] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    derived: dict[str, str] = field(default_factory=dict)
    adapted: list[str] = field(default_factory=list)


def survey(model: nn.Module) -> Survey:
    """Go through the parameters of a model; a tied one is no weight where one of its places says so."""
    found, names, barred = Survey(), {id(p): name for name, p in model.named_parameters()}, set(_routed(model))
    for module in model.modules():
        if any(map(_BESIDE.match, (*module._modules, *module._parameters))):
            barred |= {id(param) for name, param in module.named_parameters() if _BESIDE.match(name)}
    for place, module in model.named_modules():
        for leaf, param in module._parameters.items():
            if param is None or param.dim() < 2 or not param.is_floating_point() or not param.numel():
                continue
            name = names[id(param)]
            layout = None if id(param) in barred else _layout(model, module, place, leaf, param)
            if layout is None:
                barred.add(id(param))
                found.weights.pop(name, None)
            else:
                found.weights.setdefault(name, layout)
        if isinstance(module, ParametrizationList) or module._forward_pre_hooks:
            found.derived |= _derived(place, module)
    large = [name for name, param in model.named_parameters() if param.dim() >= 2]
    found.others = [n for n in large if n not in found.weights and not n.rpartition(".")[2].startswith("bias")]
    adding = (m for m in model.modules() if any(map(_ADDS.match, (*m._modules, *m._parameters))))
    beside = {id(param) for module in adding for param in module.parameters()}
    found.adapted = [name for name in found.weights if id(model.get_parameter(name)) in beside] if beside else []
    return found


def _layout(model: nn.Module, module: nn.Module, place: str, leaf: str, param: Tensor) -> Layout | None:
    """The layout of a parameter, or None where it is no weight."""
    above, _, word = place.rpartition(".")
    if isinstance(module, ParametrizationList):  # the parameter stands for the weight that is made from it
        if param.numel() < max(one.numel() for one in module.parameters(recurse=False)):
            return None  # the norms of the rows, in weight normalisation
        above = above.rpartition(".")[0]
        return _layout(model, model.get_submodule(above), above, word, param)
    named = [entry for entry in _TABLE if fnmatchcase(leaf, entry.name) and entry.dims in (None, param.dim())]
    if (fits := next((entry for entry in named if _KINDS[type(entry.kind) is str](module, entry.kind)), None)) is None:
        return _by_name(module, word, leaf, param)
    if fits.layout is not None and fits.layout.transposed and isinstance(module, _ConvTransposeNd):
        return replace(fits.layout, groups=module.groups)
    return fits.layout


def _by_name(module: nn.Module, word: str, leaf: str, param: Tensor) -> Layout | None:
    """The layout of a parameter that the table does not know, by its name and the names around it."""
    kind = type(module).__name__
    said = f"{word}_{leaf}" if isinstance(module, nn.ParameterList | nn.ParameterDict) else leaf
    lookup = _LOOKUP.search(kind) and not _LAYER.search(kind)
    if lookup or is_norm_or_lookup(module) or _OTHER.search(said) or sum(length > 1 for length in param.shape) < 2:
        return None
    if param.dim() == 3 and "expert" in f"{kind} {word} {said}".lower():
        return Layout(stacked=True)
    return _PLAIN if _WEIGHT.search(said) or _SHORT.search(said) else None


def _routed(model: nn.Module) -> Iterator[int]:
    """The parameters of routers, by id: of classes called so, and of "router" and "...gate" beside experts."""
    for module in model.modules():
        children = dict(module.named_children())
        beside = any("expert" in name for name in (*children, *module._parameters))
        for name, child in children.items():
            said = beside and name.lower().endswith(("gate", "router"))
            if (said or "Router" in type(child).__name__) and "expert" not in "".join(dict(child.named_children())):
                yield from (id(param) for param in child.parameters())


# ---- weights that are made from others at every pass -------------------------------------------------------------


def _derived(place: str, module: nn.Module) -> dict[str, str]:
    """Parameters from which a weight is made, by parametrize or by hooks, and what to do about each."""
    if isinstance(module, ParametrizationList):
        owner, _, tensor = place.rpartition(".")
        owner = owner.removesuffix("parametrizations").removesuffix(".")
        made = ", ".join(type(one).__name__ for one in module)
        remedy = f"torch.nn.utils.parametrize.remove_parametrizations(model{_dot(owner)}, {tensor!r})"
        reason = _MADE.format(tensor, made, remedy)
        return {f"{place}.{leaf}": reason for leaf in module._parameters}
    found: dict[str, str] = {}
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            tensor, made = hook.name, type(hook).__name__
            undo = "weight_norm" if isinstance(hook, WeightNorm) else "spectral_norm"
            remedy = f"torch.nn.utils.remove_{undo}(model{_dot(place)})"
        elif isinstance(hook, prune.BasePruningMethod):
            tensor, made = hook._tensor_name, "torch.nn.utils.prune"
            removed = f"torch.nn.utils.prune.remove(model{_dot(place)}, {tensor!r})"
            remedy = f"{removed}, or prunewald.integrations.nn_prune.take_over(model),"
        else:
            continue
        reason = _MADE.format(tensor, made, remedy)
        leaves = [leaf for leaf in module._parameters if leaf in {f"{tensor}{end}" for end in ("_orig", "_v", "_g")}]
        found |= {f"{place}.{leaf}".lstrip("."): reason for leaf in leaves}
    return found


_MADE = "{0} is made from it at every pass by {1}, so zeros in it are no zeros in {0}: call {2} first"


def _dot(place: str) -> str:
    """A place in a model as code."""
    return "".join(f"[{word}]" if word.isdigit() else f".{word}" for word in place.split(".") if word)
