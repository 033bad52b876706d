"""Which parameters of a model are meant: names, globs, module types, slices; tied weights once.

A target is one of

- a parameter or a module of the model, or a type of module: `model.fc.weight`, `model.fc`, `nn.Linear`;
- the full name of a parameter, which means just that one, be it a bias or the weight of a norm: "fc.bias";
- such a name with an index, for a slice of it: "conv.weight[2]", "conv.weight[:, 1:3]", ("conv.weight", index);
- the name of a module, or a glob over the names of modules and parameters, where `*` stands for dots too.

A module stands for the weights in it and in the modules inside: tensors of two or more dimensions that are no bias.
Biases, vectors, and the weights of norms and embeddings are meant only where they, or their norm or embedding, are
named: by the object, by the type, or by a glob whose word for them has letters or digits that fit. A wildcard alone
names nothing.

>>> block = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
>>> model = nn.ModuleDict({"conv": nn.Conv1d(2, 2, 3), "norm": nn.LayerNorm(2), "block": block})
>>> for target in ("conv", "b*", "block.*", "block.1", "norm*", "*.weight", "block.?.bias", "conv.weight[0]"):
...     print(f"{target:15}", *(found.name for found in match(model, target)))
conv            conv.weight
b*              block.0.weight block.2.weight
block.*         block.0.weight block.2.weight
block.1         block.1.weight
norm*           norm.weight
*.weight        conv.weight block.0.weight block.2.weight
block.?.bias    block.0.bias block.1.bias block.2.bias
conv.weight[0]  conv.weight[0]
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from prunewald.model.layouts import Layout, is_norm_or_lookup, survey
from prunewald.model.slices import Index, Slice, Slices
from prunewald.util.text import some

Target: TypeAlias = str | type[nn.Module] | nn.Module | nn.Parameter | tuple[str, Index]

_SHOWN = 8  # so many parameters are listed in an error
_SLICED = re.compile(r"^(?P<name>.+)\[(?P<index>[-\d:,\s]+)\]$")


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name a parameter goes by, mapped to its first one: tied tensors count once."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(param), name) for name, param in model.named_parameters(remove_duplicate=False)}


def find_slices(
    model: nn.Module, targets: Iterable[Target] | Target | None, ignore: Iterable[Target] | Target | None
) -> Slices:
    """The slices of a model to prune; an error for a target that matches nothing or slices that overlap."""
    params = dict(model.named_parameters())
    if lazy := [name for name, param in params.items() if nn.parameter.is_lazy(param)]:
        raise ValueError(f"{lazy[0]!r} has no shape yet: run one batch through the model before attaching")
    named = None if targets is None else _match_all(model, _as_list(targets), "target")
    dropped = [] if ignore is None else _match_all(model, _as_list(ignore), "ignore")
    known = survey(model)
    found = [Slice(name, name) for name in params if name in known.weights] if named is None else named
    odd = {name: layout for name, layout in known.weights.items() if layout != Layout()}
    if odd:
        found = [one for part in found for one in _laid_out(part, odd.get(part.param), params[part.param])]
    whole = {part.param for part in dropped if part.index is None}
    kept = [part for part in found if part.param not in whole]
    for hole in dropped:
        if hole.index is not None:
            kept = [rest for part in kept for rest in _without(part, hole, params[part.param])]
    if not kept:
        raise ValueError(
            f"nothing to prune: targets={targets!r} and ignore={ignore!r} leave no parameter of "
            f"{type(model).__name__}; name what you mean in targets=...; its parameters are {some(params, _SHOWN)}"
        )
    if derived := [part.param for part in kept if part.param in known.derived]:
        raise ValueError(f"{derived[0]!r} cannot be pruned: {known.derived[derived[0]]}, or set ignore={derived[0]!r}")
    if unfit := [part.param for part in kept if params[part.param].is_meta or params[part.param].element_size() < 2]:
        raise ValueError(_unfit(unfit[0], params[unfit[0]]))
    if targets is not None or ignore is not None:
        for part in kept:
            _check(part, params[part.param])
        _check_overlap(kept, params)
    slices = Slices(kept)
    slices.left_out = known.others if targets is None else ()
    slices.adapted = [name for name in known.adapted if any(part.param == name for part in kept)]
    return slices


def prunable(model: nn.Module) -> list[Tensor]:
    """All that is a weight by the table of layouts and holds numbers that can be pruned; what is tied, once."""
    found = (model.get_parameter(name) for name in survey(model).weights)
    return [param for param in found if not (param.is_meta or param.element_size() < 2)]


def _unfit(name: str, param: Tensor) -> str:
    """Why a parameter cannot be pruned as it is now, and what to do."""
    if param.is_meta:
        return (
            f"{name!r} has no values yet, it is on the meta device: model.to_empty(device=...) and load its state "
            f"before attaching, or ignore={name!r}"
        )
    return (
        f"{name!r} is of {param.dtype}, in which torch cannot compare or multiply: prune it in bfloat16 or more, and "
        f"convert it afterwards, or ignore={name!r}"
    )


def _laid_out(part: Slice, layout: Layout | None, param: Tensor) -> list[Slice]:
    """A slice with its layout where that is not (out, in, ...), and a stack as a slice for each of its weights."""
    if layout is None:
        return [part]
    if layout.stacked:
        one = Layout(transposed=True) if layout.transposed else None
        if part.index is None:
            return [Slice(f"{part.name}[{at}]", part.param, at, one) for at in range(len(param))]
        return [replace(part, layout=one if isinstance(part.index, int) else None)]
    index = part.index if isinstance(part.index, tuple) else (part.index,)
    # An index that takes single places or picks them changes the axes: what is left is taken as it lies.
    keeps_axes = part.index is None or (layout.groups == 1 and all(isinstance(one, slice) for one in index))
    return [replace(part, layout=layout if keeps_axes else None)]


def is_weight(name: str, param: Tensor) -> bool:
    """Whether a tensor looks like weights: floating, of two or more dimensions, and not called a bias."""
    return param.is_floating_point() and param.dim() >= 2 and not name.rpartition(".")[2].startswith("bias")


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _as_list(targets: Iterable[Target] | Target | None) -> list[Target]:
    if targets is None:
        return []
    if isinstance(targets, str | type | nn.Module | nn.Parameter) or _is_slice(targets):
        return [cast(Target, targets)]
    return list(targets) if isinstance(targets, Iterable) else [targets]


def _is_slice(target: object) -> bool:
    return isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], str) and not _names_type(target[1])


def _names_type(value: object) -> bool:
    return isinstance(value, str | type | nn.Module | nn.Parameter)


def _match_all(model: nn.Module, targets: list[Target], role: str) -> list[Slice]:
    """All slices the targets name, each once, in the order of the model."""
    found: dict[str, Slice] = {}
    for target in targets:
        parts = match(model, target)
        if not parts:
            raise ValueError(
                f"{role} {target!r} matches no parameter of {type(model).__name__}; "
                f"its parameters are {some(dict(model.named_parameters()), _SHOWN)}"
            )
        for part in parts:
            name = _free_name(part, found)
            found[name] = replace(part, name=name)
    order = {name: i for i, name in enumerate(canonical_names(model))}
    return sorted(found.values(), key=lambda part: order[part.param])


def _free_name(part: Slice, taken: Mapping[str, Slice]) -> str:
    """A name for a slice; two sets of places that would have the same name are numbered."""
    name, number = part.name, 1
    while isinstance(part.index, Tensor) and name in taken and taken[name].index is not part.index:
        number += 1
        name = f"{part.name} #{number}"
    return name


def match(model: nn.Module, target: Target) -> list[Slice]:
    """The slices that one target names, in the grammar above; none where nothing matches."""
    names = canonical_names(model)
    if isinstance(target, tuple):
        return [_sliced(names, *target)]
    if isinstance(target, str):
        if target in names:
            return [Slice(names[target], names[target])]
        if (match := _SLICED.match(target)) and match["name"] in names:
            return [_sliced(names, match["name"], _parse(match["index"]))]
    chosen = (names[name] for name, param in _params(model) if _means(model, target, name, param))
    return [Slice(name, name) for name in dict.fromkeys(chosen)]


def _params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))


def _means(model: nn.Module, target: Target, name: str, param: Tensor) -> bool:
    """Whether a target means this parameter, by itself or by a module around it."""
    if param is target:
        return True
    owner, _, leaf = name.rpartition(".")
    own_module = _owner(model, name)
    if is_norm_or_lookup(own_module):
        inside = _names_module(target, owner, own_module, spelled=True) and not leaf.startswith("bias")
    else:
        owners = [owner[: m.start()] for m in re.finditer(r"\.", owner)] + [owner]
        inside = any(_names_module(target, o, model.get_submodule(o), spelled=False) for o in {*owners, ""})
        inside = inside and is_weight(name, param)
    return param.is_floating_point() and (inside or _globs_param(target, name, param, own_module))


def _names_module(target: Target, name: str, module: nn.Module, spelled: bool) -> bool:
    """Whether a target is this module, its type, or a glob over its name; where `spelled`, no wildcard alone."""
    if isinstance(target, type):
        return isinstance(module, target)
    if isinstance(target, str):
        return bool(name) and fnmatchcase(name, target) and (not spelled or _spells(target, name))
    return module is target


def _globs_param(target: Target, name: str, param: Tensor, owner: nn.Module) -> bool:
    """Whether a target is a glob over the name of this parameter, and names it where a wildcard alone is not enough."""
    if not isinstance(target, str) or not fnmatchcase(name, target):
        return False
    if name.rpartition(".")[2].startswith("bias") or (param.dim() < 2 and not is_norm_or_lookup(owner)):
        return _spells(target, name)
    return not is_norm_or_lookup(owner) or _spells(target.rpartition(".")[0], name.rpartition(".")[0])


def _spells(pattern: str, name: str) -> bool:
    """Whether the last word of a pattern has letters or digits, and fits the last word of a name."""
    last = pattern.rpartition(".")[2]
    anchored = "." in pattern or pattern.startswith("*") or "." not in name  # "b*" means "block", not "block.bias"
    return anchored and any(c.isalnum() for c in last) and fnmatchcase(name.rpartition(".")[2], last)


def _sliced(names: Mapping[str, str], name: str, index: Index) -> Slice:
    if name not in names:
        raise ValueError(f"target {(name, index)!r}: there is no parameter {name!r}; there are {some(names, _SHOWN)}")
    return Slice(f"{names[name]}[{_spell(index)}]", names[name], index)


def _parse(text: str) -> Index:
    def one(word: str) -> int | slice:
        ends = [int(end) if end.strip() else None for end in word.split(":")]
        return slice(*ends) if len(ends) > 1 else int(word)

    words = tuple(one(word) for word in text.split(","))
    return words if len(words) > 1 else words[0]


def _spell(index: Index) -> str:
    if isinstance(index, tuple):
        return ", ".join(_spell(one) for one in index)
    if isinstance(index, slice):
        ends = [index.start, index.stop] + ([index.step] if index.step is not None else [])
        return ":".join("" if end is None else str(end) for end in ends)
    if isinstance(index, Tensor):
        return f"{int(index.sum())} places" if index.dtype == torch.bool else f"{index.numel()} indices"
    return str(index)


def _without(part: Slice, hole: Slice, param: Tensor) -> list[Slice]:
    """A slice less what another takes from the same parameter: itself, a set of places, or nothing."""
    if part.param != hole.param:
        return [part]
    inside = torch.zeros(param.shape, dtype=torch.bool, device=param.device)
    part.put_(inside, torch.tensor(True, device=param.device))
    before = int(inside.sum())
    hole.put_(inside, torch.tensor(False, device=param.device))
    left = int(inside.sum())
    return [part] if left == before else [Slice(part.name, part.param, inside)] if left else []


def _check(part: Slice, param: Tensor) -> None:
    if not param.is_floating_point():
        raise TypeError(f"{part.name!r} is {param.dtype}; only floating tensors can be pruned: ignore it")
    try:
        empty = part.take(param).numel() == 0
    except (IndexError, TypeError) as error:
        raise ValueError(f"{part.name!r} does not fit {part.param!r} of shape {tuple(param.shape)}: {error}") from error
    if empty:
        raise ValueError(f"{part.name!r} of {part.param!r}, shape {tuple(param.shape)}, holds no weights")
    if part.index is not None:
        inside = torch.zeros(param.shape, dtype=torch.bool, device=param.device)
        part.put_(inside, torch.tensor(True, device=param.device))
        if int(inside.sum()) != part.take(param).numel():
            raise ValueError(f"{part.name!r} names some weights of {part.param!r} twice: give each place once")


def _check_overlap(parts: list[Slice], params: Mapping[str, Tensor]) -> None:
    by_param: dict[str, list[Slice]] = {}
    for part in parts:
        by_param.setdefault(part.param, []).append(part)
    for name, several in by_param.items():
        if len(several) == 1:
            continue
        seen = torch.zeros(params[name].shape, dtype=torch.bool, device=params[name].device)
        for part in several:
            if part.take(seen).any():
                raise ValueError(f"{part.name!r} overlaps with another target: {[p.name for p in several]}")
            part.put_(seen, torch.tensor(True, device=seen.device))
