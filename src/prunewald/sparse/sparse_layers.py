"""Layers that run without their zeros. From outside they have the dense weight, which is rebuilt when asked for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from prunewald.sparse.backends import Kernel, MissingBackend, Way, kernel, program
from prunewald.sparse.compressed import Compressed
from prunewald.sparse.native import Step, kinds
from prunewald.util.notices import warn

_MOVED = (
    "what run_sparse() made runs in float32 on a CPU, and cannot become {} on {}: do that with the dense model, and "
    "call run_sparse() again"
)
_WRITTEN = (
    "the weight of a layer that runs sparse cannot be set: give others by load_state_dict(), or change the dense model "
    "and call run_sparse() again"
)
_ELSEWHERE = "{}: layers that were to run by {!s} run by {!s}, more slowly; call run_sparse() again here"
_SHAPE = "size mismatch for {}: it has shape {} in the checkpoint, and the shape in current model is {}."

_loads = [0]  # how many weights were loaded so far: programs that were made before hold others


class SparseLinear(nn.Module):
    """A linear layer that runs without its zeros, for inference.

    An input that asks for a gradient, a graph that is traced or exported, autocast's other dtypes and whatever torch
    would refuse take the dense way: right, and no faster. `weight` is the dense matrix, built anew each time.
    """

    def __init__(self, weight: Compressed, way: Way, samples: int, transposed: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.inputs, weight.outputs
        self.transposed, self.way, self.samples = transposed, way, samples
        self.set_(weight)

    def set_(self, weight: Compressed) -> None:
        """Take another weight of the same shape."""
        self.compressed, self.bias = weight, weight.bias
        self._kernel: Kernel | None = None
        _loads[0] += 1

    @property
    def weight(self) -> Tensor:
        """The dense weight as the layer had it, zeros included; what is written to it is lost."""
        dense = self.compressed.dense()
        return dense.t().contiguous() if self.transposed else dense

    @weight.setter
    def weight(self, value: object) -> None:
        raise AttributeError(_WRITTEN)

    def forward(self, input: Tensor) -> Tensor:
        """W x + b."""
        if not fits(input, self.in_features):
            return _eagerly(self, input) if torch.compiler.is_dynamo_compiling() else self.dense(input)
        run = self._kernel or self._made()
        if input.dim() == 2:
            return run(input.contiguous())
        return run(input.reshape(-1, self.in_features)).view(*input.shape[:-1], self.out_features)

    def dense(self, x: Tensor) -> Tensor:
        """The same by torch's dense layer, with all that it can do and refuses."""
        return F.linear(x, self.compressed.dense(), self.bias)

    def _made(self) -> Kernel:
        try:
            self._kernel = kernel(self.compressed, self.way, self.samples)
        except MissingBackend as error:
            instead = Way("c", "rows") if kinds() else Way("torch")
            warn(_ELSEWHERE.format(error, self.way, instead))
            self._kernel = kernel(self.compressed, instead, self.samples)
        return self._kernel

    def extra_repr(self) -> str:
        """What is shown of it."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, zeros={self.compressed.zeros:.1%}, by {self.way}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernel": None}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Weights of a dense layer, whose zeros may be elsewhere; they run as these were chosen to."""
        weight, bias = (state_dict.get(prefix + name) for name in ("weight", "bias"))
        names = ["weight"] if self.bias is None else ["weight", "bias"]
        missing = [prefix + name for name in names if prefix + name not in state_dict]
        known = {prefix + name for name in names}
        here = [name for name in state_dict if name.startswith(prefix) and name not in known]
        shape = (self.out_features, self.in_features)
        shapes = {"weight": shape[::-1] if self.transposed else shape, "bias": shape[:1]}
        wrong = [
            _SHAPE.format(prefix + name, tuple(state_dict[prefix + name].shape), shapes[name])
            for name in names
            if prefix + name in state_dict and tuple(state_dict[prefix + name].shape) != shapes[name]
        ]
        if strict:
            missing_keys += missing
            unexpected_keys += here
        error_msgs += wrong
        if missing or wrong or weight is None:
            return
        dense = weight.detach().to("cpu", torch.float32)
        bias = None if self.bias is None or bias is None else bias.detach().to("cpu", torch.float32)
        with torch.inference_mode(False), torch.no_grad():
            self.set_(Compressed.of(dense.t() if self.transposed else dense, bias))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SparseLinear":
        found = fn(torch.empty(1))
        if found.device.type != "cpu" or found.dtype != torch.float32:
            raise RuntimeError(_MOVED.format(found.dtype, found.device))
        return self


class Chain(NamedTuple):
    """Children of a Sequential that one call of our kernel runs: from `begin` to before `end`."""

    begin: int
    end: int
    kinds: tuple[str, ...]  # how the weight of each linear layer in it is stored
    way: Way  # the width and the threads of all


class FusedSequential(nn.Sequential):
    """A Sequential in which chains of linear layers and ReLUs are one call each. Its children are where they were.

    Once a child is another module, all of them run one by one.
    """

    chains: tuple[Chain, ...] = ()
    _made_for: Sequence[nn.Module] = ()
    _ready: tuple[int, list[nn.Module], list[Any]] | None = None

    def fuse_(self, chains: tuple[Chain, ...]) -> None:
        """Run these chains of the children by a call each."""
        self.chains, self._made_for, self._ready = chains, [*self._modules.values()], None

    def forward(self, input: Any) -> Any:
        """All children, one after the other."""
        ready = self._ready
        if ready is None or ready[0] != _loads[0] or ready[1] != [*self._modules.values()]:
            ready = self._steps()
        for step in ready[2]:
            input = step(input)
        return input

    def _steps(self) -> tuple[int, list[nn.Module], list[Any]]:
        children: list[Any] = [*self._modules.values()]
        found: list[Any] = []
        at = 0
        for chain in self.chains if children == self._made_for else ():
            found += [*children[at : chain.begin], *_fused(children[chain.begin : chain.end], chain)]
            at = chain.end
        self._ready = (_loads[0], children, [*found, *children[at:]])
        return self._ready

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}


class _Fused:
    """One chain, ready to run; what its kernel cannot take goes through the children."""

    def __init__(self, children: list[Any], run: Kernel) -> None:
        self._children, self._run = children, run
        self._inputs = next(child for child in children if isinstance(child, SparseLinear)).in_features
        self._dropouts = [child for child in children if isinstance(child, nn.Dropout)]
        self._hooks = [hooks for child in children for hooks in (child._forward_hooks, child._forward_pre_hooks)]

    def __call__(self, x: Any) -> Any:
        if not fits(x, self._inputs) or any(self._hooks) or any(one.training for one in self._dropouts):
            for child in self._children:
                x = child(x)
            return x
        if x.dim() == 2:
            return self._run(x.contiguous())
        y = self._run(x.reshape(-1, self._inputs))
        return y.view(*x.shape[:-1], y.shape[-1])


def _fused(children: list[Any], chain: Chain) -> list[Any]:
    try:
        return [_Fused(children, program(steps(children, chain.kinds), chain.way))]
    except MissingBackend:
        return children  # each of which says so


def steps(children: list[Any], kinds: tuple[str, ...]) -> list[Step]:
    """What a chain computes; a ReLU belongs to the linear layer before it."""
    found: list[Step] = []
    for child in children:
        if isinstance(child, SparseLinear):
            found.append(Step(child.compressed, kinds[len(found)], False))
        elif isinstance(child, nn.ReLU):
            found[-1] = found[-1]._replace(relu=True)
    return found


def fits(x: Any, inputs: int) -> bool:
    """Whether a kernel can take an input as it is: a plain float32 tensor on the CPU that asks for no gradient."""
    return (
        torch._C._get_tracing_state() is None
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None  # vmap, jvp and the like
        and forward_ad._current_level < 0
        and type(x) is Tensor
        and x.dtype is torch.float32
        and x.is_cpu
        and x.dim() > 0
        and x.shape[-1] == inputs
        and not (x.requires_grad and torch.is_grad_enabled())
        and not x.is_neg()  # what x.imag can be: the memory has the other sign
    )


def swapped(model: nn.Module, instead: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """A model with other modules in the place of some, wherever these stand; the model itself may be one of them."""
    for module in [*model.modules(), *instead.values()]:
        for name, child in module._modules.items():
            if child is not None and child in instead:
                module._modules[name] = instead[child]
    for module in instead.values():
        if isinstance(module, FusedSequential):
            module.fuse_(module.chains)  # which knows its children
    return instead.get(model, model)


_eagerly = torch.compiler.disable(SparseLinear.forward)  # torch.compile breaks its graph here
