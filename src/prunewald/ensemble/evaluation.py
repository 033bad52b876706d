"""Many models evaluated at once, in eval mode: dropout is off, and BatchNorm takes its running statistics."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from prunewald.ensemble.chunks import in_chunks, memory
from prunewald.ensemble.job import How, TensorDict, check_data, check_rows
from prunewald.ensemble.replicas import Make, build, separate, tensors
from prunewald.ensemble.swap import Swap
from prunewald.util.arguments import one_of, whole
from prunewald.util.progress import note

Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_ENOUGH = 1 << 32  # bytes of activations at once that keep any GPU busy


def correct(output: Tensor, target: Tensor) -> Tensor:
    """Whether the largest output is that of the right class, for each sample."""
    return output.argmax(1) == target


class EvaluationOptions(TypedDict, total=False):
    """What can be chosen in every evaluation; the docstring of `evaluate` says what each of them means."""

    rows: Tensor | None
    batch_size: int
    chunk: int | None
    how: How
    device: torch.device | str | None


def accuracies(
    make_model: Make, state: Mapping[str, Tensor], x: Tensor, y: Tensor, **options: Unpack[EvaluationOptions]
) -> Tensor:
    """The share of samples that each replica gets right, (R,); with the options of `evaluate`."""
    return evaluate(make_model, state, x, y, correct, **options).double().mean(1)


def evaluate(
    make_model: Make,
    state: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    metric: Metric = correct,
    *,
    rows: Tensor | None = None,
    batch_size: int = 1000,
    chunk: int | None = None,
    how: How = "auto",
    device: torch.device | str | None = None,
) -> Tensor:
    """A metric of each replica and sample, (R, N), on the CPU.

    - `make_model`: a function without arguments that builds the model, or a model, which is copied.
    - `state`: parameters and buffers by name, (R, ...), such as `result.state`.
    - `metric`: a function of the outputs and targets of a batch, which gives one value for each sample.
    - `rows`: (R, m), the rows of the data that each replica is evaluated on; then the answer is (R, m).
    - `batch_size`: how many samples are evaluated at once.
    - `how`: "vmap" evaluates the replicas together, "loop" one after the other; "auto" takes vmap on a GPU where it is
      possible, and the loop on a CPU, which one model at a time keeps busy.
    - `chunk`: how many replicas at once under vmap; None: as many as memory allows, and no more than a GPU needs.
    - `device`: where to evaluate; None: where `x` is.

    Dropout is off, and BatchNorm takes its running statistics.
    """
    where = torch.device(x.device if device is None else device)
    model = copy.deepcopy(make_model) if isinstance(make_model, nn.Module) else build(separate(make_model), 0)
    batch_size = whole("batch_size", batch_size, 1)
    chunk = None if chunk is None else whole("chunk", chunk, 1)
    one_of("how", how, get_args(How))
    replicas = _check(model, state, x, y, rows)
    rows = None if rows is None else rows.to(where)
    task = Evaluation(model.to(where).eval(), state, x.to(where), y.to(where), metric, rows, batch_size, where)
    with torch.no_grad():
        found = None if how == "loop" else _together(task, replicas, chunk, how)
        return torch.stack([_alone(task, r) for r in range(replicas)]).cpu() if found is None else found


def _together(task: "Evaluation", replicas: int, chunk: int | None, how: How) -> Tensor | None:
    """The metric of all replicas by vmap; None where "auto" takes the loop instead, and if vmap failed, it says why."""
    if how == "auto" and not _vectorised(task.device):
        return None
    try:
        size = chunk or max(1, min(replicas, min(memory(task.device), _ENOUGH) // _footprint(task)))
        return torch.cat(in_chunks(lambda first, last: _chunk(task, first, last), replicas, size))
    except Exception as error:  # whatever vmap cannot do
        if how == "vmap":
            raise
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
        note(f"prunewald: the replicas are evaluated one by one, since the model cannot be vectorised: {said}")
        return None


def _vectorised(device: torch.device) -> bool:
    return device.type == "cuda"


@dataclass(frozen=True)
class Evaluation:
    """The model, the replicas' tensors and the data of one evaluation, all checked and on its device."""

    model: nn.Module
    state: Mapping[str, Tensor]
    x: Tensor
    y: Tensor
    metric: Metric
    rows: Tensor | None
    batch_size: int
    device: torch.device

    def batches(self, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, batch by batch; (R, batch, ...) where each replica has rows of its own."""
        if self.rows is None:
            yield from zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)
        else:
            for rows in self.rows[first:last].split(self.batch_size, dim=1):
                yield self.x[rows], self.y[rows]

    def values(self, call: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> Tensor:
        """The metric of a batch of one replica; `call` is its forward pass."""
        with Swap(
            torch.zeros(2, device="cpu"), torch.zeros((), device="cpu"), fast=_vectorised(self.device), noise=False
        ):
            values = self.metric(call(x), y)
        if values.shape[:1] != y.shape[:1]:
            raise ValueError(f"metric gives {tuple(values.shape)}: must be one value for each sample, such as (n,)")
        return values


def _chunk(task: Evaluation, first: int, last: int) -> Tensor:
    """The metric of some replicas by one vectorised forward pass for each batch."""
    state = {name: tensor[first:last].to(task.device) for name, tensor in task.state.items()}

    def one(own: TensorDict, x: Tensor, y: Tensor) -> Tensor:
        return task.values(lambda inputs: functional_call(task.model, own, (inputs,)), x, y)

    shared = 0 if task.rows is not None else None
    many = vmap(one, in_dims=(0, shared, shared))
    return torch.cat([many(state, x, y) for x, y in task.batches(first, last)], 1).cpu()


def _alone(task: Evaluation, r: int) -> Tensor:
    """The metric of one replica, whose values are put into the model."""
    own = tensors(task.model)
    for name, tensor in task.state.items():
        own[name].copy_(tensor[r])  # which keeps the layout that the model has chosen
    batches = task.batches(r, r + 1)
    if task.rows is not None:
        batches = ((x[0], y[0]) for x, y in batches)
    return torch.cat([task.values(task.model, x, y) for x, y in batches])


class _Counting(TorchFunctionMode):
    """Adds up the bytes of all that is computed while it is active."""

    held: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.held += sum(t.nbytes for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor))
        return out


def _footprint(task: Evaluation) -> int:
    """How many bytes a replica takes in a batch: more than enough, since not all of it is there at once."""
    few = min(len(task.x), task.batch_size, 8)
    with _Counting() as counting:
        task.model(task.x[:few])
    batch = task.x[:few].nbytes + counting.held
    weights = sum(tensor[:1].nbytes for tensor in task.state.values())
    return int(batch * task.batch_size / few) + weights


def _check(model: nn.Module, state: Mapping[str, Tensor], x: Tensor, y: Tensor, rows: Tensor | None) -> int:
    """Refuse what does not fit together; returns how many replicas there are."""
    check_data(x, y)
    own, saved = tensors(model), model.state_dict().keys()
    if wrong := (saved & own.keys()) - state.keys() or state.keys() - own.keys():
        raise ValueError(f"state and the model differ in {sorted(wrong)[0]!r}; the model has {', '.join(own)}")
    replicas = len(next(iter(state.values())))
    for name, tensor in state.items():
        if tensor.shape != (replicas, *own[name].shape):
            shape = ", ".join(("R", *map(str, own[name].shape)))
            raise ValueError(
                f"state[{name!r}] has shape {tuple(tensor.shape)}: must be ({shape}), a row for each replica"
            )
    if rows is not None:
        check_rows("rows", rows, replicas, len(x))
    return replicas
