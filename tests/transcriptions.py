"""Optimizers of other packages, transcribed from their published update rules: what they keep is not what it seems.

- SOAP: Vyas et al. (2024), Algorithm 3: Adam in the eigenbasis of Shampoo's preconditioner.
- NovoGrad: Ginsburg et al. (2019), Algorithm 1: one second moment a layer.
- GaLore: Zhao et al. (2024), Algorithm 2: Adam of gradients projected on r singular vectors.
- Adam with 8-bit states, once as a tensor of its own kind with the shape of the weight, as torchao keeps it, and once
  as codes with a table, as bitsandbytes does: Dettmers et al. (2022), in blocks of one row.
- Yogi: Zaheer et al. (2018), Algorithm 2: state of Adam's names and shape, but no mean.
- Schedule-free SGD and AdamW: Defazio et al. (2024), as schedulefree 1.4 has them; SAM: Foret et al. (2021), as
  davda54/sam has it; Lookahead: Zhang et al. (2019), as two packages have it.
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


# ---- weights kept beside the model's -----------------------------------------------------------------------------


class SlowLookahead(Optimizer):
    """lonePatient/lookahead_pytorch, optimizer.py: slow weights in a list of its own, which no state shows."""

    def __init__(self, base_optimizer, alpha=0.5, k=2):
        self.optimizer, self.alpha, self.k = base_optimizer, alpha, k
        self.param_groups = self.optimizer.param_groups
        for group in self.param_groups:
            group["step_counter"] = 0
        self.slow_weights = [[p.clone().detach() for p in group["params"]] for group in self.param_groups]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group, slow_weights in zip(self.param_groups, self.slow_weights, strict=True):
            group["step_counter"] += 1
            if group["step_counter"] % self.k == 0:
                for p, q in zip(group["params"], slow_weights, strict=True):
                    if p.grad is not None:
                        q.data.add_(p.data - q.data, alpha=self.alpha)
                        p.data.copy_(q.data)
        return loss


class SAM(Optimizer):
    """davda54/sam, sam.py: two steps, of which neither is called step(), around one of another optimizer."""

    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([grad.norm(p=2) for grad in grads]).norm(p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


class _ScheduleFree(Optimizer):
    """schedulefree 1.4, sgd_schedulefree.py and adamw_schedulefree.py, without warm-up, decay and foreach."""

    def __init__(self, params, lr, **more):
        super().__init__(params, {"lr": lr, "k": 0, "train_mode": False, "weight_sum": 0.0, "lr_max": -1.0, **more})

    def eval(self):
        self._switch(to_train=False)

    def train(self):
        self._switch(to_train=True)

    @torch.no_grad()
    def _switch(self, to_train):
        for group in self.param_groups:
            momentum = self.momentum(group)
            if group["train_mode"] != to_train:
                for p in group["params"]:
                    if "z" in self.state[p]:  # p becomes y for training, x for evaluation
                        p.lerp_(self.state[p]["z"], 1 - momentum if to_train else 1 - 1 / momentum)
                group["train_mode"] = to_train

    @torch.no_grad()
    def step(self, closure=None):
        if not self.param_groups[0]["train_mode"]:
            raise Exception("Optimizer was not in train mode when step is called.")
        for group in self.param_groups:
            lr, momentum = group["lr"], self.momentum(group)
            group["lr_max"] = max(lr, group["lr_max"])
            weight = group["lr_max"] ** 2
            group["weight_sum"] += weight
            ckp1 = weight / group["weight_sum"]
            for y in group["params"]:
                if y.grad is not None:
                    z = self.state[y].setdefault("z", y.detach().clone())
                    self.normalise_(y, group)
                    y.lerp_(z, ckp1)
                    y.add_(y.grad, alpha=lr * (momentum * (1 - ckp1) - 1))
                    z.sub_(y.grad, alpha=lr)
            group["k"] += 1


class SGDScheduleFree(_ScheduleFree):
    def __init__(self, params, lr=1.0, momentum=0.9):
        super().__init__(params, lr, momentum=momentum)

    def momentum(self, group):
        return group["momentum"]

    def normalise_(self, y, group):
        """Its gradients are taken as they come."""


class AdamWScheduleFree(_ScheduleFree):
    def __init__(self, params, lr=0.0025, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, lr, betas=betas, eps=eps)

    def momentum(self, group):
        return group["betas"][0]

    def normalise_(self, y, group):
        beta2 = group["betas"][1]
        exp_avg_sq = self.state[y].setdefault("exp_avg_sq", torch.zeros_like(y))
        exp_avg_sq.mul_(beta2).addcmul_(y.grad, y.grad, value=1 - beta2)
        denom = exp_avg_sq.div(1 - beta2 ** (group["k"] + 1)).sqrt_().add_(group["eps"])
        y.grad.div_(denom)  # in place, "for memory efficiency": after the step no gradient is what it was


class OptimState8bit(torch.Tensor):
    """torchao 0.18, subclass_8bit.py, with evenly spaced values and a scale a row: 8 bits that look like floats."""

    @staticmethod
    def __new__(cls, codes, scale, qmap):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, device=codes.device, dtype=torch.float32)

    def __init__(self, codes, scale, qmap):
        self.codes, self.scale, self.qmap = codes, scale, qmap

    @classmethod
    def zeros(cls, shape, signed):
        qmap = torch.linspace(-1.0 if signed else 0.0, 1.0, 255)
        return cls(torch.full(shape, 127 if signed else 0, dtype=torch.uint8), torch.zeros(shape[0], 1), qmap)

    def dequantize(self):
        return self.qmap[self.codes.int()] * self.scale

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if function is aten.copy_.default:
            state, value = args
            state.scale.copy_(value.abs().amax(1, keepdim=True))
            scaled = value / state.scale.clamp(min=1e-12)
            state.codes.copy_((scaled[..., None] - state.qmap).abs().argmin(-1))
            return state
        if function is aten.lerp.Scalar:
            return function(*(x.dequantize() if isinstance(x, cls) else x for x in args))
        if function is aten.detach.default:
            return cls(args[0].codes, args[0].scale, args[0].qmap)
        raise NotImplementedError(f"{cls.__name__} dispatch: attempting to run unimplemented operator: {function}")


class AdamBoth8bit(_Each):
    """torchao 0.18, adam.py, single_param_adam: both moments in 8 bits, where the matrix is large enough."""

    def update(self, p, grad, state, group):
        (b1, b2), t = group["betas"], state["step"]
        for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
            if key not in state:
                state[key] = OptimState8bit.zeros(p.shape, signed) if p.dim() == 2 else torch.zeros_like(p)
        m, v = state["exp_avg"].lerp(grad, 1 - b1), state["exp_avg_sq"].lerp(grad.square(), 1 - b2)
        state["exp_avg"].copy_(m)
        state["exp_avg_sq"].copy_(v)
        p.sub_((m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + group["eps"]), alpha=group["lr"])


NO_MEAN_SQUARE[AdamBoth8bit] = "quantised"


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
