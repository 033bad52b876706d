"""Torch-Pruning: the scores of a Pruner as its importance. It removes channels for good; ours say which."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from prunewald.core.unit_sums import reduced, row_sums
from prunewald.integrations.framework import framework
from prunewald.model.layouts import Layout
from prunewald.pruner import Pruner
from prunewald.pruning.scoring import Scored
from prunewald.util.arguments import one_of
from prunewald.util.notices import warn
from prunewald.util.registry import brief

Rows: TypeAlias = Callable[[Tensor], Tensor]  # a tensor shaped like a parameter, as one row for each channel
Normalizer: TypeAlias = Callable[[Tensor], Tensor] | str
_NORMS = ("Batchnorm", "Layernorm", "GroupNorm", "InstanceNorm")


class WaldImportance:
    """How important is a channel? The mean squared Wald statistic of the weights that go with it, in all its layers.

    `tp.pruner.BasePruner(model, example_inputs, importance=WaldImportance(pruner), ...)`, or any other pruner of
    Torch-Pruning. The statistic is the score by the Pruner's criterion: |w| / sigma with `criterion="wald"`, tau or |w|
    with others. Sigma is the Pruner's. All tensors have one unit, as with `scope="global"`, since a channel has weights
    in several layers and `global_pruning=True` compares groups.

    - The weights are those among the Pruner's targets that go when the channel does: rows of the layer that makes it,
      columns of those that read it, filters of a depthwise convolution. What the Pruner has pruned does not count;
      weights that are dead count 0. By default biases and norms are no targets, and `targets=` can name them.
    - `reduction`: over all these weights the "mean" or the "sum" (with |w| that is Torch-Pruning's own with p=2), the
      "max" of the means of the layers, or that of the "first" layer alone.
    - `normalizer`: within each group, by a function or one of Torch-Pruning's names, "mean", "max", ...; None: not.

    It reads the Pruner when Torch-Pruning asks, before anything is removed. Removal puts new parameters in the place of
    the old ones: for a further step make a new optimizer and a new Pruner, and set `importance.pruner`.
    """

    def __init__(self, pruner: Pruner, *, reduction: str = "mean", normalizer: Normalizer | None = None) -> None:
        self._tp = framework("torch_pruning")
        one_of("reduction", reduction, ("mean", "sum", "max", "first"))
        self.reduction, self.normalizer = reduction, normalizer
        self._normalise(torch.ones(4))
        self.pruner = pruner
        self._tp.importance.Importance.register(type(self))

    @property
    def pruner(self) -> Pruner:
        """Whose scores are taken."""
        return self._pruner

    @pruner.setter
    def pruner(self, pruner: Pruner) -> None:
        if not isinstance(pruner, Pruner):
            raise TypeError(f"{type(pruner).__name__} is no Pruner: give prunewald.Pruner(model, optimizer)")
        self._pruner = pruner
        self._scored: Scored | None = None
        self._moment: list[tuple[Tensor | None, int]] = []  # when they were computed
        self._roots: set[tuple[nn.Module, str]] = set()  # the groups that were asked for since
        self._said: set[str] = set()

    @property
    def notes(self) -> tuple[str, ...]:
        """How the scores were found that were computed last."""
        return () if self._scored is None else self._scored.notes

    def __repr__(self) -> str:
        how = f"reduction={self.reduction!r}, normalizer={self.normalizer!r}"
        if self._scored is None:
            return f"WaldImportance({how}, not asked yet)"
        sigma = "" if self._scored.uncertainty is None else f", sigma from {brief(self._scored.uncertainty)}"
        return f"WaldImportance({how}, scores by {brief(self._scored.criterion)}{sigma})"

    @torch.no_grad()
    def __call__(self, group: Any, **_: Any) -> Tensor | None:
        """The importance of each channel of a group; None, which leaves it alone, where no weight in it is a target."""
        root = group[0]
        scored = self._scores(group)
        at = _positions(root.root_idxs)
        found = []
        for item in group.items:
            cuts = [] if None in item.root_idxs else self._cuts(item.dep)  # None: heads of several channels at once
            for name, rows in cuts:
                own = rows(scored[name])[item.idxs]
                found.append(
                    _sums(own, torch.tensor([at[index] for index in item.root_idxs], device=own.device), len(at))
                )
        if not found:
            self._say(
                f"the group of {root.dep.target.name} has no weight that is a target of the Pruner: it is not pruned"
            )
            return None
        return self._normalise(reduced(found, self.reduction))

    def _normalise(self, importance: Tensor) -> Tensor:
        if self.normalizer is None or callable(self.normalizer):
            return importance if self.normalizer is None else self.normalizer(importance)
        try:
            own = self._tp.importance.GroupMagnitudeImportance(normalizer=self.normalizer)
            done: Tensor = own._normalize(importance.clone(), self.normalizer)
        except (NotImplementedError, AttributeError, ValueError, IndexError):
            raise ValueError(
                f"normalizer={self.normalizer!r}: give a function, None, or one of Torch-Pruning's: 'mean', 'sum', "
                "'max', 'gaussian', 'standarization', 'lamp', 'sentinel_0.5'"
            ) from None
        return done

    def _scores(self, group: Any) -> Scored:
        """The Pruner's scores now: computed once for all groups of a step, and anew when one is asked for again."""
        dep = group[0].dep
        moment, root = _moment(self.pruner), (dep.target.module, dep.handler.__name__)
        if self._scored is None or root in self._roots or not _same(moment, self._moment):
            self._scored, self._moment, self._roots = self.pruner.scores(scope="global"), moment, set()
            if self.pruner.criterion is None and self._scored.criterion.is_magnitude:
                self._say(self._scored.notes[0])
        self._roots.add(root)
        return self._scored

    def _cuts(self, dep: Any) -> list[tuple[str, Rows]]:
        """The targets in a member of a group, and how each is laid out as one row for each channel of the member."""
        layer, pruner = dep.target.module, self.pruner
        targets = {id(param): name for name, param in pruner.zeros.params.items()}
        held = [layer] if isinstance(layer, nn.Parameter) else list(layer.parameters())
        known = {id(param) for param in pruner.model.parameters()}
        if any(id(param) not in known for param in held):
            raise ValueError(
                f"{dep.target.name} is no layer of the {type(pruner.model).__name__} of this Pruner: give "
                "WaldImportance a Pruner(model, ...) of the model that Torch-Pruning was given"
            )
        if not any(id(param) in targets for param in held):
            return []
        try:
            rows = _rows(self._tp.pruner.function, dep)
        except LookupError:
            self._say(f"the weights of {dep.target.name} are left out: which of them go with a channel is not known")
            return []
        return [(targets[id(param)], lay) for param, lay in rows if param is not None and id(param) in targets]

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warn(message)


def _moment(pruner: Pruner) -> list[tuple[Tensor | None, int]]:
    """What scores are made from, as far as torch counts writes to it."""
    present = dict(pruner.model.named_parameters(remove_duplicate=False))
    params = [present.get(name) for name in pruner.zeros.params]
    grads = [None if param is None else param.grad for param in params]
    counts = [(None, pruner.steps), (None, pruner.zeros.changes)]
    return [(tensor, 0 if tensor is None else tensor._version) for tensor in (*params, *grads)] + counts


def _same(a: Sequence[tuple[Tensor | None, int]], b: Sequence[tuple[Tensor | None, int]]) -> bool:
    return all(x is y and m == n for (x, m), (y, n) in zip(a, b, strict=True))


# ---- which weights go with a channel -------------------------------------------------------------------------------


def _axis(at: int) -> Rows:
    return lambda tensor: tensor.movedim(at, 0).reshape(tensor.shape[at], -1)


def _blocks(count: int) -> Rows:
    """Rows of which each channel has one in every block, as those of queries, keys and values."""
    return lambda tensor: tensor.unflatten(0, (count, -1)).transpose(0, 1).flatten(1)


def _rows(function: Any, dep: Any) -> list[tuple[Tensor | None, Rows]]:
    """The parameters of a member, with their layouts, as Torch-Pruning's own functions cut them; else LookupError."""
    layer, out, by = dep.target.module, dep.handler.__name__ == "prune_out_channels", dep.handler.__self__
    if isinstance(by, function.ParameterPruner):
        return [(layer, _axis(dep.target.pruning_dim))]
    if isinstance(by, function.DepthwiseConvPruner):
        return [(layer.weight, _axis(0)), (layer.bias, _axis(0))]
    if isinstance(by, function.ConvPruner):
        swap = Layout(groups=layer.groups).swap
        weight = _axis(0) if out != layer.transposed else lambda tensor: swap(tensor).flatten(1)
        return [(layer.weight, weight), *([(layer.bias, _axis(0))] if out else [])]
    if isinstance(by, function.LinearPruner):
        return [(layer.weight, _axis(0)), (layer.bias, _axis(0))] if out else [(layer.weight, _axis(1))]
    if isinstance(by, function.EmbeddingPruner):
        return [(layer.weight, _axis(1))]
    if isinstance(by, function.MultiheadAttentionPruner):
        return _attention(layer)
    if isinstance(by, tuple(getattr(function, f"{kind}Pruner") for kind in _NORMS)):
        return [(layer.weight, _axis(-1)), (layer.bias, _axis(-1))]
    raise LookupError(layer)


def _attention(layer: nn.MultiheadAttention) -> list[tuple[Tensor | None, Rows]]:
    """Of nn.MultiheadAttention: a channel is one of its input, of queries, keys and values, and of its output."""
    square: list[tuple[Tensor | None, Rows]] = [(layer.in_proj_weight, _blocks(3)), (layer.in_proj_weight, _axis(1))]
    square += [(layer.out_proj.weight, _axis(0)), (layer.out_proj.weight, _axis(1)), (layer.out_proj.bias, _axis(0))]
    apart = [(weight, _axis(0)) for weight in (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)]
    return [*square, *apart, (layer.in_proj_bias, _blocks(3)), (layer.bias_k, _axis(2)), (layer.bias_v, _axis(2))]


# ---- from scores to importance -------------------------------------------------------------------------------------


def _positions(roots: Sequence[int]) -> dict[int, int]:
    """Where each channel of a group stands in its importance: at its own place; where only some are meant, in order."""
    whole = set(roots) == set(range(len(roots)))
    return {root: root if whole else at for at, root in enumerate(roots)}


def _sums(scores: Tensor, at: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Of each channel the sum of the squares of its scores, and of how many weights."""
    nothing = torch.zeros(channels, dtype=torch.float64, device=scores.device)
    sums, counts = (nothing.index_add(0, at, one) for one in row_sums(scores))
    return sums, counts
