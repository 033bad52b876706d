"""Derivatives of each sample by itself: all at once by torch.func, or one after the other where that cannot be."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn import functional as F

from prunewald.model.returned import outputs
from prunewald.uncertainty.batches import Inputs

Head: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # numbers of one sample, from its output and its target

_NO_RULE = "There is a performance drop because we have not yet implemented the batching rule"


class Derivatives:
    """Derivatives by a model's parameters, of numbers that a head makes of the output and the target of one sample.

    torch.func takes many samples at once, but not through recurrent layers, sparse embeddings and whatever else it has
    no rule for. From the first piece that it cannot take on, samples go through the model one by one. With `double` it
    is a copy in double precision that computes, unless it cannot take the first inputs.
    """

    def __init__(self, model: nn.Module, double: bool = False) -> None:
        self._given = self._model = model
        self._double = double  # whether a copy in double precision is still to be tried
        self._singly = False  # whether torch.func was found not to be able
        self._columns_singly = False  # the same of second derivatives

    def fitted(self, x: Inputs) -> Inputs:
        """Inputs as the model takes them: in double, where a copy of it computes in double."""
        if self._double:
            self._model, self._double = _in_double(self._model, x.split(1)[0]), False
        return x if self._model is self._given else x.changed(_wider)

    def output(self, x: Inputs) -> Tensor:
        """What the model gives for fitted inputs."""
        return x.given_to(self._model)

    def jacobian(self, head: Head, names: Sequence[str], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        """The derivatives of each number of each sample, by parameter: (samples, numbers, *shape)."""
        if not self._singly:
            try:
                with _without_advice():
                    return self._together(head, names, x, y)
            except RuntimeError as error:
                self._check_fixed(error)
                self._singly = True  # an error of the model itself comes up again below
        rows = [self._one(head, names, *pair) for pair in zip(x.split(1), y.split(1), strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in names}

    def hessian(self, head: Head, names: Sequence[str], at: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """Rows `at` of the second derivatives of the head's sum over samples, parameters laid end to end."""
        if not self._columns_singly:
            try:
                with _without_advice():
                    return self._columns(head, names, at, x, y)
            except RuntimeError as error:
                self._check_fixed(error)
                self._columns_singly = True
        return self._rows(head, names, at, x, y)

    def _check_fixed(self, error: RuntimeError) -> None:
        """A model that draws random numbers in eval mode has no derivatives that another pass would find again."""
        if "randomness" in str(error):
            raise ValueError(
                f"{type(self._model).__name__} draws random numbers in eval mode, as F.dropout(x) does: give that "
                "training=self.training, or use nn.Dropout"
            ) from error

    # ---- many samples at once ----

    def _together(self, head: Head, names: Sequence[str], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        def one(params: Mapping[str, Tensor], row: list[Tensor], y: Tensor) -> Tensor:
            return head(self._output(params, x, row), y)

        params = {name: self._model.get_parameter(name).detach() for name in names}
        found: dict[str, Tensor] = vmap(jacrev(one), in_dims=(None, 0, 0))(params, x.rows, y)
        return found

    def _columns(self, head: Head, names: Sequence[str], at: Tensor, x: Inputs, y: Tensor) -> Tensor:
        params = [self._model.get_parameter(name).detach() for name in names]
        sizes, point = [p.numel() for p in params], torch.cat([p.reshape(-1) for p in params])

        def total(vector: Tensor) -> Tensor:
            parts = zip(names, vector.split(sizes), params, strict=True)
            given = {name: part.view(param.shape) for name, part, param in parts}
            return vmap(lambda row, b: head(self._output(given, x, row), b))(x.rows, y).sum()

        def column(direction: Tensor) -> Tensor:
            derivative: Tensor = jvp(grad(total), (point,), (direction,))[1]
            return derivative

        found: Tensor = vmap(column)(F.one_hot(at, len(point)).to(point))
        return found

    def _output(self, params: Mapping[str, Tensor], x: Inputs, row: list[Tensor]) -> Tensor:
        """What the model gives for one sample, by its row of each tensor, with some parameters given."""
        fixed = {n: p.detach() for n, p in self._model.named_parameters() if p.requires_grad}
        one = x.of([tensor[None] for tensor in row], 1)
        return outputs(functional_call(self._model, {**fixed, **params}, one.args, dict(one.kwargs)))[0]

    # ---- one sample after the other ----

    def _one(self, head: Head, names: Sequence[str], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        params = [self._model.get_parameter(name) for name in names]
        with plain_autograd():
            numbers = head(x.given_to(self._model)[0], y[0])
            rows = [_gradient(number, params) for number in numbers]
        return {name: torch.stack([row[i].detach() for row in rows]) for i, name in enumerate(names)}

    def _rows(self, head: Head, names: Sequence[str], at: Tensor, x: Inputs, y: Tensor) -> Tensor:
        params = [self._model.get_parameter(name) for name in names]
        try:
            with plain_autograd():
                each = [head(output, target) for output, target in zip(x.given_to(self._model), y, strict=True)]
                slopes = torch.cat([g.reshape(-1) for g in _gradient(torch.cat(each).sum(), params, graph=True)])
                rows = [_gradient(slopes[i], params) for i in at.tolist()]
        except RuntimeError as error:
            raise ValueError(
                f"observed=True: torch has no second derivatives of {type(self._model).__name__} ({error}): use "
                "observed=False, or layers that have them (for an EmbeddingBag, an Embedding and its mean)"
            ) from error
        return torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows]).detach()


def _in_double(model: nn.Module, x: Inputs) -> nn.Module:
    """A copy of a model that computes in double precision; the model itself where it does, or where none can be had."""
    if all(param.dtype == torch.float64 for param in model.parameters()):
        return model
    try:
        twin = deepcopy(model).double()
        with torch.no_grad():
            x.changed(_wider).given_to(twin)
    except (RuntimeError, TypeError):  # a device without doubles, a layer of a fixed type, what cannot be copied
        return model
    return twin


def _wider(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _gradient(number: Tensor, params: Sequence[Tensor], graph: bool = False) -> list[Tensor]:
    """The gradient of a number by each parameter, zero where it plays no part; sparse gradients made dense.

    What it was computed from stays for further gradients; with `graph` they can be gradients of this one.
    """
    if not number.requires_grad:
        return [torch.zeros_like(param) for param in params]
    found = torch.autograd.grad(number, params, retain_graph=True, create_graph=graph, allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for g, p in zip(found, params, strict=True)
    ]


@contextmanager
def _without_advice() -> Iterator[None]:
    """That vmap takes some operation sample by sample is a matter of speed, and nothing a caller could change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_RULE, category=UserWarning)
        yield


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Gradients are recorded; cuDNN's recurrent layers have none in eval mode, so torch's own are used."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield
