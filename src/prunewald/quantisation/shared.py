"""Weights that share a few values, which training moves."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from prunewald.core.kmeans import kmeans_1d
from prunewald.model.optimizers import forget_history_, group_of
from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.quantisation.quantised import Quantised, by_target, check_pruner
from prunewald.util.arguments import one_of
from prunewald.util.tensors import dense


class SharedValues(Quantised):
    """The survivors of each target share `size` values, which the user's own loop trains.  Han, Mao & Dally (2016).

    k-means (linear initialisation) puts them into clusters, once, and every weight becomes the mean of its cluster.
    From then on each `optimizer.step()` moves the values: the members of a cluster get the sum of their gradients
    (`reduce="mean"`: the mean, at which plain SGD keeps its learning rate), and stay equal to the last bit. Zeros stay
    zero, and weights that are pruned later leave their clusters.

    - `pruner`: a Pruner with its optimizers, after any strategy; a surgery has to be finished.
    - `size`: 2 to 256, or a dict by target (names, modules, globs; the others stay free).

    The values are new parameters, so the optimizer's state of their weights starts anew. Gradients are shared when the
    step begins: what clips or logs them before sees each weight's own.
    """

    def __init__(
        self, pruner: Pruner, size: int | Mapping[str, int] = 32, *, reduce: Literal["sum", "mean"] = "sum"
    ) -> None:
        check_pruner(pruner, type(self).__name__)
        one_of("reduce", reduce, ("sum", "mean"))
        if reduce == "sum" and any(isinstance(optimizer, LBFGS) for optimizer in pruner.optimizers):
            raise ValueError("reduce='sum': LBFGS compares the gradient with the loss, which a mean fits: 'mean'")
        sizes = by_target(pruner, "size", size, 256)
        super().__init__(pruner, sizes)
        self.size, self.reduce = size, reduce
        self._tied = {name: self._cluster(part, sizes[name]) for name, part in self.slices.items()}
        self._forget_(part for part in self.slices.values() if not self._is_tied(part))
        self._write_()
        pruner.hold(self)

    def codes(self) -> dict[str, Tensor]:
        """Which value each weight has, by target: an index into its codebook, -1 where it is pruned."""
        return {name: self._coded(part) for name, part in self.slices.items()}

    def codebooks(self) -> dict[str, Tensor]:
        """The shared values, by target."""
        return {name: tied.values.clone() for name, tied in self._tied.items()}

    def state_dict(self) -> dict[str, Any]:
        """Codes and values: to go on exactly, beside the states of model, optimizer and Pruner."""
        codes = {name: code.to(torch.int16) for name, code in self.codes().items()}
        return {"codes": codes, "codebooks": self.codebooks()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, of the same targets; the weights become what it says."""
        self._check_state(state, ("codes", "codebooks"))
        for name, codes in state["codes"].items():
            values = state["codebooks"][name]
            if codes.numel() and not -1 <= int(codes.min()) <= int(codes.max()) < len(values):
                raise ValueError(f"the saved codes of {name!r} do not fit its codebook of {len(values)} values")
        for name, part in self.slices.items():
            param = self._params[part.param]
            codes, values = state["codes"][name].to(param.device, torch.int64), state["codebooks"][name].to(param)
            self._tied[name] = _Tied(_places(part, param, codes >= 0), codes[codes >= 0], values.clone())
        self._write_()

    def __repr__(self) -> str:
        held = sum(len(tied.values) for tied in self._tied.values())
        return f"SharedValues(size={self.size!r}, reduce={self.reduce!r}: {len(self.slices)} targets, {held} values)"

    # ---- a step --------------------------------------------------------------------------------------------------

    def ready_slices_(self, slices: Iterable[Slice]) -> None:
        """Let the members of a cluster have one gradient."""
        for part in slices:
            tied, param = self._living(part), self._params[part.param]
            if param.grad is None or not len(tied.codes):
                continue
            grad = dense(param.grad)
            shared = tied.sums(grad)
            if self.reduce == "mean":
                shared /= tied.counts
            _put_(grad, tied.places, shared.to(grad.dtype)[tied.codes])
            if param.grad.is_sparse:
                param.grad = grad.to_sparse(param.grad.sparse_dim())

    def settle_slices_(self, slices: Iterable[Slice]) -> None:
        """Make the members of a cluster equal again: most optimizers moved them alike, but for rounding."""
        for part in slices:
            tied, param = self._living(part), self._params[part.param].detach()
            if len(tied.codes):
                tied.values = tied.means(param).to(param)
                _put_(param, tied.places, tied.values[tied.codes])

    @torch.no_grad()
    def _write_(self) -> None:
        for name, part in self.slices.items():
            tied = self._tied[name]
            _put_(self._params[part.param].detach(), tied.places, tied.values[tied.codes])

    # ---- clusters ------------------------------------------------------------------------------------------------

    def _cluster(self, part: Slice, size: int) -> "_Tied":
        alive = part.take(self.pruner.zeros.mask(part.param))
        values, codes = kmeans_1d(self._weight(part)[alive], size)
        return _Tied(_places(part, self._params[part.param], alive), codes.to(torch.int64), values)

    def _is_tied(self, part: Slice) -> bool:
        """Whether the weights share their values already, as after a resume; then the optimizer's state is theirs."""
        tied = self._tied[part.name]
        return torch.equal(_take(self._params[part.param].detach(), tied.places), tied.values[tied.codes])

    def _living(self, part: Slice) -> "_Tied":
        """The cluster's members where the parameter is now, without those that were pruned since."""
        tied, param = self._tied[part.name], self._params[part.param]
        alive = self.pruner.zeros.mask(part.param)
        changes = self.pruner.zeros.changes
        if tied.seen != changes or tied.places.device != param.device:
            tied = tied.to(param.device)
            kept = _take(alive, tied.places)
            tied = _Tied(tied.places[kept], tied.codes[kept], tied.values, seen=changes)
            if len(tied.codes) < int(torch.count_nonzero(part.take(alive))):
                raise ValueError(
                    f"weights of {part.name!r} came back after SharedValues was made, and belong to no cluster: "
                    "detach() it, and make a new one"
                )
            self._tied[part.name] = tied
        return tied

    def _coded(self, part: Slice) -> Tensor:
        tied, param = self._living(part), self._params[part.param]
        codes = torch.full((param.numel(),), -1, device=param.device)
        return part.take(codes.index_copy_(0, tied.places, tied.codes).view(param.shape)).clone()

    def _forget_(self, slices: Iterable[Slice]) -> None:
        for name in {part.param for part in slices}:
            for optimizer in self.pruner.optimizers:
                _start_anew_(optimizer, self._params[name])
                forget_history_(optimizer)


class _Tied:
    """The surviving weights of one target, each with the code of the value it shares."""

    def __init__(self, places: Tensor, codes: Tensor, values: Tensor, seen: int = -1) -> None:
        self.places, self.codes, self.values = places, codes, values  # places: in the flat parameter, ascending
        self.seen = seen  # how often the masks had changed when these were last compared with them
        counts = torch.bincount(codes, minlength=len(values))
        self._full, self.counts = counts > 0, counts.clamp(min=1)
        last = torch.full_like(counts, len(codes) - 1)
        self._first = last.scatter_reduce(0, codes, torch.arange(len(codes), device=codes.device), "amin")

    def to(self, device: torch.device) -> "_Tied":
        """The same on another device."""
        return _Tied(self.places.to(device), self.codes.to(device), self.values.to(device))

    def sums(self, tensor: Tensor) -> Tensor:
        """The sum over the members of each cluster."""
        return self._sums(_take(tensor, self.places))

    def means(self, tensor: Tensor) -> Tensor:
        """The mean of each cluster's members, exact where they are equal; without members, the value as it was."""
        members = _take(tensor, self.places).to(torch.float64)
        first = members[self._first]
        means = first + self._sums(members - first[self.codes]) / self.counts
        return torch.where(self._full, means, self.values.to(torch.float64))

    def _sums(self, members: Tensor) -> Tensor:
        # In double: there may be millions, and a GPU adds them in any order.
        zeros = torch.zeros(len(self.values), dtype=torch.float64, device=members.device)
        return zeros.index_add_(0, self.codes, members.to(torch.float64))


def _places(part: Slice, param: Tensor, alive: Tensor) -> Tensor:
    """Where the living weights of a slice are in the flat parameter."""
    numbers = torch.arange(param.numel(), device=param.device).view(param.shape)
    return part.take(numbers)[alive]


def _take(tensor: Tensor, places: Tensor) -> Tensor:
    return tensor.reshape(-1).index_select(0, places)


def _put_(tensor: Tensor, places: Tensor, values: Tensor) -> None:
    flat = tensor.reshape(-1)  # a copy where the memory is in another order, as in channels_last
    flat.index_copy_(0, places, values.to(flat.dtype))
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _start_anew_(optimizer: Optimizer, param: Tensor) -> None:
    """Drop what an optimizer has gathered for a parameter."""
    state = optimizer.state.get(param, {})
    if "sum" in state:  # Adagrad makes its state only once
        group = group_of(optimizer, param)
        assert group is not None
        state["step"].zero_()
        state["sum"].fill_(group["initial_accumulator_value"])
    elif list(state) == ["momentum_buffer"]:  # fused SGD makes those of all its parameters, or none
        if state["momentum_buffer"] is not None:
            state["momentum_buffer"].zero_()
    else:
        optimizer.state.pop(param, None)
