"""torch.nn.utils.prune, both ways: our criteria in its functions, and its masks in a Pruner.

The form that its state dicts have, `_orig` and `_mask`, is known to `prunewald.export` alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import Optimizer

from prunewald.core.base import Criterion
from prunewald.core.ranking import Ranked, in_order
from prunewald.export import from_torch_prune, to_torch_prune
from prunewald.integrations.pruned_modules import Live, Place, live, masks, take_over
from prunewald.model.optimizers import owned
from prunewald.model.slices import Slice, Slices
from prunewald.pruner import Pruner
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Choices, Request, resolve
from prunewald.pruning.scoring import PlannedScores, weigh
from prunewald.pruning.watching import Watcher
from prunewald.util.arguments import real, whole
from prunewald.util.notices import warn
from prunewald.util.text import some

__all__ = [
    "CriterionUnstructured",
    "criterion_unstructured",
    "from_torch_prune",
    "importance_scores",
    "masks",
    "parameter_scores",
    "take_over",
    "to_torch_prune",
]

# Of one parameter a tensor, of several a dict by place; or the optimizer that steps them, for its second moment.
Sigma: TypeAlias = Tensor | Mapping[Place, Tensor] | Optimizer | Sequence[Optimizer]
_SHOWN = 6


class CriterionUnstructured(prune.BasePruningMethod):
    """Prunes the weights that score lowest by a criterion, as `prune.L1Unstructured` does by |w|.

    `CriterionUnstructured.apply(module, "weight", amount, criterion=..., sigma=...)` for one parameter; for several,
    `prune.global_unstructured(parameters, CriterionUnstructured, amount=..., sigma={(module, "weight"): ..., ...})`,
    where the dict has the same parameters in the same order, or `importance_scores=importance_scores(pruner)`.

    `amount` is torch's: a share of the weights that are *left*, so that twice 0.5 is 0.75, or a number of weights.
    """

    PRUNING_TYPE = "unstructured"

    def __init__(
        self,
        amount: float,
        *,
        criterion: Criterion | str = "magnitude-uncertainty",
        sigma: Sigma | None = None,
    ) -> None:
        self.amount = _checked(amount)
        self._scored: tuple[Tensor, Tensor] | None = None  # weights and their scores, where these are known already
        if isinstance(sigma, Mapping):
            found = [live(*place) for place in sigma]
            self._scored = _flat([one.values for one in found], found), _flat(_scores(found, criterion, sigma), found)

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """What `default_mask` keeps, less the lowest of the scores `t`, or of those that belong to the weights `t`."""
        scored, self._scored = self._scored, None  # which would be copied and saved with the module
        if scored is not None:
            values, scores = scored
            if not torch.equal(values, t):
                raise ValueError(
                    f"sigma is for {values.numel():,} weights, and not for these {t.numel():,} in this order: give it "
                    "the parameters of this call, in the same order"
                )
            t = scores
        elif bool((t < 0).any()):
            raise ValueError(
                "importance_scores are at least 0, as importance_scores(pruner) gives them; without any, "
                "CriterionUnstructured needs sigma={(module, name): ...} for the parameters of this call"
            )
        mask = default_mask.clone(memory_format=torch.contiguous_format)
        lowest = t.reshape(-1).argsort(stable=True)[: _number(self.amount, t.numel())]
        mask.view(-1)[lowest] = 0
        return mask

    @classmethod
    def apply(  # type: ignore[override]
        cls,
        module: nn.Module,
        name: str,
        amount: float,
        *,
        criterion: Criterion | str = "magnitude-uncertainty",
        sigma: Sigma | None = None,
        importance_scores: Tensor | None = None,
    ) -> Any:
        """Prune a parameter of a module by a criterion; on any error the module is as it was.

        `sigma` is a tensor, or the optimizer that steps the parameter, for its second moment; with
        `importance_scores` these are taken as they are.
        """
        own = live(module, name)
        _number(_checked(amount), own.left)
        if importance_scores is None:
            importance_scores = _scores([own], criterion, sigma)[0]
        elif importance_scores.shape != own.param.shape:
            raise ValueError(
                f"importance_scores have shape {tuple(importance_scores.shape)}, {own.label} {tuple(own.param.shape)}"
            )
        return super().apply(module, name, amount, importance_scores=importance_scores)  # type: ignore[no-untyped-call]


def criterion_unstructured(
    module: nn.Module,
    name: str,
    amount: float,
    *,
    criterion: Criterion | str = "magnitude-uncertainty",
    sigma: Sigma | None = None,
    importance_scores: Tensor | None = None,
) -> nn.Module:
    """Prune a parameter of a module by a criterion, as `prune.l1_unstructured` does by |w|, and return the module.

    >>> layer = nn.Linear(4, 1)
    >>> layer.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> criterion_unstructured(layer, "weight", 0.5, sigma=torch.tensor([[0.1, 0.1, 9.0, 9.0]])).weight_mask
    tensor([[1., 1., 0., 0.]])
    """
    CriterionUnstructured.apply(
        module, name, amount, criterion=criterion, sigma=sigma, importance_scores=importance_scores
    )
    return module


def importance_scores(pruner: Pruner, module: nn.Module | None = None, name: str = "weight") -> Any:
    """A Pruner's scores in the form that torch.nn.utils.prune takes, at least 0, the lowest to go first.

    - Without a module, for `prune.global_unstructured(list(scores), ..., importance_scores=scores)`: a dict by module
      and name of all targets, in one unit for all of them, as with `scope="global"`.
    - With one, for `prune.l1_unstructured(module, name, amount, importance_scores=...)`: the tensor of that parameter,
      scored by itself.

    Scores above 0 are the Pruner's own. Below them all are its dead weights in their order, then zeros and what it has
    pruned, at 0.
    """
    names = _names(pruner)
    if module is not None and (module, name) not in names:
        raise ValueError(
            f"{name!r} of this {type(module).__name__} is no target of the Pruner; its targets are "
            f"{some(names.values(), _SHOWN)}"
        )
    scores = pruner.scores(scope=None if module is not None else "global")
    if pruner.criterion is None and scores.criterion.is_magnitude:
        warn(scores.notes[0])  # nobody chose it
    wanted = names if module is None else [(module, name)]
    risen = _risen([Ranked(scores[names[one]], pruner.zeros.params[names[one]].detach()) for one in wanted])
    return dict(zip(wanted, risen, strict=True)) if module is None else risen[0]


def parameter_scores(
    parameters: Iterable[Place],
    *,
    criterion: Criterion | str = "magnitude-uncertainty",
    sigma: Sigma | None = None,
) -> dict[Place, Tensor]:
    """The scores of parameters, pruned by torch.nn.utils.prune or not, for `importance_scores=`; without a Pruner.

    They are in one unit, as those of `importance_scores(pruner)`. `sigma` is a dict by module and name, or the
    optimizer that steps them, for its second moment.
    """
    places = list(parameters)
    return dict(zip(places, _scores([live(*place) for place in places], criterion, sigma), strict=True))


def _names(pruner: Pruner) -> dict[Place, str]:
    """The names of the targets, by module and name there."""
    if not isinstance(pruner, Pruner):
        raise TypeError(f"{type(pruner).__name__} is no Pruner: give Pruner(model, optimizer)")
    found: dict[Place, str] = {}
    for name, param in pruner.zeros.params.items():
        parts = [part for part in pruner.slices if part.param == name]
        if sum(part.take(param).numel() for part in parts) < param.numel():
            raise ValueError(
                f"{parts[0].name!r} is a slice, and torch.nn.utils.prune takes whole parameters: make {name!r} a target"
            )
        owner, _, leaf = name.rpartition(".")
        found[pruner.model.get_submodule(owner), leaf] = name
    return found


def _risen(ranked: Sequence[Ranked]) -> list[Tensor]:
    """Scores in the same order that are at least 0, as torch takes |score|: what is not above 0 goes below the rest."""
    low = torch.cat([one.score[one.score <= 0] for one in ranked])
    size = torch.cat([one.weight[one.score <= 0].abs().to(low.dtype) for one in ranked])
    least = min((float(high.min()) for one in ranked if (high := one.score[one.score > 0]).numel()), default=1.0)
    rank = torch.empty_like(low, dtype=torch.float64)
    rank[in_order(Ranked(low, size))] = torch.arange(1.0, len(low) + 1, dtype=torch.float64, device=low.device)
    rank -= int(torch.count_nonzero(low <= torch.finfo(low.dtype).min))  # what is pruned, and zeros, are all 0
    values = rank.clamp_(min=0).mul_(min(least, 1.0) / (len(low) + 1)).to(low.dtype)
    parts = values.split([int(torch.count_nonzero(one.score <= 0)) for one in ranked])
    pairs = zip(ranked, parts, strict=True)
    return [one.score.masked_scatter(one.score <= 0, part) for one, part in pairs]


# ---- amounts and scores ---------------------------------------------------------------------------------------------


def _checked(amount: float) -> float:
    if isinstance(amount, Integral) and not isinstance(amount, bool):
        return whole("amount", amount)
    return real("amount", amount, least=0, most=1, what="a share of the weights that are left, or a number of weights:")


def _number(amount: float, left: int) -> int:
    """How many weights go."""
    if isinstance(amount, int) and amount > left:
        raise ValueError(f"amount={amount} is more than the {left:,} weights that are left")
    return amount if isinstance(amount, int) else round(amount * left)


def _flat(tensors: Sequence[Tensor], found: Sequence[Live]) -> Tensor:
    """All that torch has not pruned, one after another, as a method is given it."""
    pairs = zip(tensors, found, strict=True)
    return torch.cat([t.reshape(-1) if one.mask is None else t[one.mask == 1] for t, one in pairs])


def _scores(found: Sequence[Live], criterion: Criterion | str, sigma: Sigma | None) -> list[Tensor]:
    """The scores of some parameters by a criterion, those of several in one unit."""
    if not found:
        raise ValueError("parameters=[]: give some, as [(model.fc1, 'weight'), (model.fc2, 'weight')]")
    names = [f"{one.label} ({at})" if len(found) > 1 else one.label for at, one in enumerate(found)]
    params = {name: one.param for name, one in zip(names, found, strict=True)}
    optimizers: list[Optimizer] = []
    source: Any = sigma
    if isinstance(sigma, Tensor):
        source = {names[0]: sigma}
    elif isinstance(sigma, Mapping):
        source = {name: sigma[one.place] for name, one in zip(names, found, strict=True) if one.place in sigma}
    elif sigma is not None:
        source, optimizers = None, [sigma] if isinstance(sigma, Optimizer) else list(sigma)
    choices = Choices.of(criterion, source, "global" if len(found) > 1 else "layer", "element", None)
    if sigma is None and choices.uncertainty is not None:
        raise ValueError(
            f"criterion={criterion!r} needs a sigma: give sigma=, the optimizer that steps {names[0]} or a tensor of "
            "its shape; or criterion='magnitude'"
        )
    slices, nowhere = Slices(Slice(name, name) for name in names), nn.Module()
    plan = resolve(choices, Request(0.0), nowhere, slices, params, optimizers, {})
    zeros = Zeros(params)
    zeros.put_({name: one.alive for name, one in zip(names, found, strict=True) if one.alive is not None})
    weights = weigh(zeros, params, all_alive=False)
    watcher = Watcher(nowhere, params, optimizers, owned(params, optimizers), None, None)
    scores = PlannedScores(plan, slices, weights, watcher.read(plan.uncertainty))
    return _risen([scores[name] for name in names])
