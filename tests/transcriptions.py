"""Optimizers of other packages, transcribed from their published update rules: what they keep is not what it seems.

- SOAP: Vyas et al. (2024), Algorithm 3: Adam in the eigenbasis of Shampoo's preconditioner.
- NovoGrad: Ginsburg et al. (2019), Algorithm 1: one second moment a layer.
- GaLore: Zhao et al. (2024), Algorithm 2: Adam of gradients projected on r singular vectors.
- Adam with 8-bit states, once as a tensor of its own kind with the shape of the weight, as torchao keeps it, and once
  as codes with a table, as bitsandbytes does: Dettmers et al. (2022), in blocks of one row.
- Yogi: Zaheer et al. (2018), Algorithm 2: state of Adam's names and shape, but no mean.
"""

from collections import defaultdict

import torch
from torch.optim import Optimizer


class _Each(Optimizer):
    """Steps each parameter by `update(param, grad, state, group)`, and counts the steps in its state."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, **more):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, **more})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    self.update(p, p.grad, state, group)

    @staticmethod
    def adam(grad, state, group):
        """Adam's direction, its averages kept in the state."""
        (b1, b2), t = group["betas"], state["step"]
        m = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 1 - b1)
        v = state.setdefault("exp_avg_sq", torch.zeros_like(grad)).lerp_(grad.square(), 1 - b2)
        return (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + group["eps"])


class SOAP(_Each):
    def update(self, p, grad, state, group):
        b1, b2 = group["betas"]
        if p.dim() != 2:
            return p.add_(self.adam(grad, state, group), alpha=-group["lr"])
        if "Q" not in state:
            state["GG"] = [grad @ grad.T, grad.T @ grad]
            state["Q"] = [torch.linalg.eigh(one).eigenvectors for one in state["GG"]]
        left, right = state["Q"]
        rotated = left.T @ grad @ right
        m = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 1 - b1)
        v = state.setdefault("exp_avg_sq", torch.zeros_like(grad)).lerp_(rotated.square(), 1 - b2)
        t = state["step"]
        direction = (left.T @ m @ right / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + group["eps"])
        p.sub_(left @ direction @ right.T, alpha=group["lr"])
        state["GG"][0].lerp_(grad @ grad.T, 1 - b2)
        state["GG"][1].lerp_(grad.T @ grad, 1 - b2)
        state["Q"] = [torch.linalg.qr(gg @ q).Q for gg, q in zip(state["GG"], state["Q"], strict=True)]
        return None


class NovoGrad(_Each):
    def update(self, p, grad, state, group):
        b1, b2 = group["betas"]
        norm = grad.square().sum()
        v = state["exp_avg_sq"] = norm if "exp_avg_sq" not in state else b2 * state["exp_avg_sq"] + (1 - b2) * norm
        m = state.setdefault("exp_avg", torch.zeros_like(grad))
        m.mul_(b1).add_(grad / (v.sqrt() + group["eps"]))
        p.sub_(m, alpha=group["lr"])


class GaLore(_Each):
    def __init__(self, params, rank=3, **more):
        super().__init__(params, rank=rank, **more)

    def update(self, p, grad, state, group):
        if p.dim() != 2:
            return p.add_(self.adam(grad, state, group), alpha=-group["lr"])
        if "projector" not in state:
            state["projector"] = torch.linalg.svd(grad).U[:, : group["rank"]]
        basis = state["projector"]
        return p.sub_(basis @ self.adam(basis.T @ grad, state, group), alpha=group["lr"])


class State8bit(torch.Tensor):
    """Codes of 8 bits and a scale a row, which show themselves with the shape and type of what they stand for."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, value):
        return cls(*quantised(value))

    def dequantize(self):
        return self.codes.float() / 255 * self.scale

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"{cls.__name__}: no {function}")


def quantised(value):
    """A non-negative matrix as 8-bit codes, and the largest value of each row."""
    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return (value / scale * 255).round().to(torch.uint8), scale


class AdamW8bit(_Each):
    """As torchao keeps it: under Adam's keys, in a tensor of its own kind."""

    def update(self, p, grad, state, group):
        wide = {"step": state["step"], "exp_avg": state.get("exp_avg", torch.zeros_like(grad))}
        if "exp_avg_sq" in state:
            wide["exp_avg_sq"] = state["exp_avg_sq"].dequantize()
        p.sub_(self.adam(grad, wide, group), alpha=group["lr"])
        state |= {"exp_avg": wide["exp_avg"], "exp_avg_sq": State8bit.of(wide["exp_avg_sq"])}


class Adam8bit(_Each):
    """As bitsandbytes keeps it: codes of 8 bits, and what they stand for beside them."""

    def update(self, p, grad, state, group):
        wide = {"step": state["step"], "exp_avg": state.get("state1", torch.zeros_like(grad))}
        if "state2" in state:
            wide["exp_avg_sq"] = state["state2"].float() / 255 * state["absmax2"]
        p.sub_(self.adam(grad, wide, group), alpha=group["lr"])
        codes, scale = quantised(wide["exp_avg_sq"])
        state |= {"state1": wide["exp_avg"], "state2": codes, "absmax2": scale}


class Yogi(_Each):
    def update(self, p, grad, state, group):
        b1, b2 = group["betas"]
        square = grad.square()
        m = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 1 - b1)
        v = state.setdefault("exp_avg_sq", torch.full_like(grad, 1e-6))
        v.sub_((v - square).sign() * square, alpha=1 - b2)
        p.sub_(m / (v.sqrt() + group["eps"]), alpha=group["lr"])


# Each with a word of why its second moment is not read.
NO_MEAN_SQUARE = {
    SOAP: "rotated",
    NovoGrad: r"shape \(\)",
    GaLore: "projected",
    AdamW8bit: "quantised",
    Adam8bit: "quantised",
    Yogi: "not known",
    torch.optim.Adafactor: "row and column",
}


# ---- wrappers ----------------------------------------------------------------------------------------------------


class AcceleratedOptimizer(Optimizer):
    """Accelerate 1.15, optimizer.py, without devices and gradient scaling: torch's __init__ is never called."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def defaults(self):
        return self.optimizer.defaults

    def add_param_group(self, param_group):
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        self.optimizer.step(closure)


class LightningOptimizer:
    """Lightning 2.6, core/optimizer.py, without strategies: it takes on the class of what it wraps."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type(
            "Lightning" + optimizer.__class__.__name__, (self.__class__, optimizer.__class__), {}
        )  # as there, so that isinstance says yes

    @property
    def optimizer(self):
        return self._optimizer

    def step(self, closure=None, **kwargs):
        return self._optimizer.step(closure, **kwargs)

    def __getattr__(self, item):
        return getattr(self._optimizer, item)


class Lookahead(Optimizer):
    """torch_optimizer 0.3, lookahead.py: slow weights that are kept and written outside the step of what it wraps."""

    def __init__(self, optimizer, k=2, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0
        self.defaults = {"k": k, "alpha": alpha, **optimizer.defaults}

    def zero_grad(self, set_to_none=False):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.optimizer.step(closure=closure)
        for group in self.param_groups:
            for fast in group["params"] if group["counter"] == 0 else ():
                slow = self.state[fast].setdefault("slow_param", fast.detach().clone())
                fast.data.mul_(self.alpha).add_(slow, alpha=1 - self.alpha)
                slow.copy_(fast.data)
            group["counter"] = (group["counter"] + 1) % self.k
        return loss


class Unhooked(Optimizer):
    """As hand-written optimizers that set what they need themselves, and never call torch's __init__."""

    def __init__(self, params, lr):
        self.param_groups, self.lr = [{"params": list(params)}], lr

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.lr)


class LoraLinear(torch.nn.Module):
    """PEFT 0.17, tuners/lora/layer.py, of one adapter, without dropout, DoRA and casts."""

    def __init__(self, base_layer, adapter_name="default", r=2, lora_alpha=4):
        super().__init__()
        self.base_layer = base_layer
        self.scaling = {adapter_name: lora_alpha / r}
        self.lora_dropout = torch.nn.ModuleDict({adapter_name: torch.nn.Identity()})
        self.lora_A = torch.nn.ModuleDict({adapter_name: torch.nn.Linear(base_layer.in_features, r, bias=False)})
        self.lora_B = torch.nn.ModuleDict({adapter_name: torch.nn.Linear(r, base_layer.out_features, bias=False)})
        self.lora_embedding_A = torch.nn.ParameterDict({})
        self.lora_embedding_B = torch.nn.ParameterDict({})
        torch.nn.init.zeros_(self.lora_B[adapter_name].weight)
        self.merged_adapters = []

    def get_delta_weight(self, adapter):
        return self.lora_B[adapter].weight @ self.lora_A[adapter].weight * self.scaling[adapter]

    def merge(self):
        for active_adapter in self.lora_A:
            self.base_layer.weight.data += self.get_delta_weight(active_adapter)
            self.merged_adapters.append(active_adapter)

    def unmerge(self):
        while self.merged_adapters:
            self.base_layer.weight.data -= self.get_delta_weight(self.merged_adapters.pop())

    def forward(self, x):
        result = self.base_layer(x)
        if not self.merged_adapters:
            for active_adapter in self.lora_A:
                dropped = self.lora_dropout[active_adapter](x)
                low = self.lora_A[active_adapter](dropped)
                result = result + self.lora_B[active_adapter](low) * self.scaling[active_adapter]
        return result


def with_lora(model):
    """PEFT's LoraModel, as get_peft_model leaves a model: linear layers are replaced, all but adapters are frozen."""
    for name, child in list(model.named_modules()):
        if type(child) is torch.nn.Linear:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], LoraLinear(child))
    for name, param in model.named_parameters():
        param.requires_grad = "lora_" in name
    return model
