"""Triton kernels for many small models: convolution with weights of each replica's own, and max pooling.

Torch's libraries are slow there: a grouped convolution with 6 channels for each group leaves a GPU nearly idle. Here a
thread has all output channels of its pixels, or all sums of its taps, in registers. Arithmetic is float32, and sums
have a fixed order: a result repeats to the last bit and does not depend on the number of replicas.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

_WORK = 2048  # pixels over which one program sums a weight gradient
_SUMS = 64  # sums a thread holds in registers: more of them leave room for too few threads


@triton.jit
def _corners(p, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr):
    """Where the windows of output pixels begin in the input."""
    return p // (HO * WO) * (C * H * W) + p % (HO * WO) // WO * W + p % WO


@triton.jit
def _conv_kernel(x, weight, bias, y, COUNT, CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                 HO: tl.constexpr, WO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr,
                 BO: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    r = tl.program_id(1).to(tl.int64)
    images = COUNT // (HO * WO)
    x += r * images * CI * H * W
    y += r * images * CO * HO * WO
    weight += r * CI * KH * KW * BO
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = p < COUNT
    corner = x + _corners(tl.minimum(p, COUNT - 1), CI, H, W, HO, WO)
    o = tl.arange(0, BO)
    total = tl.zeros((BO, BP), dtype=tl.float32)
    if BIAS:
        total += tl.load(bias + r * CO + o, mask=o < CO, other=0.0)[:, None]
    for c in range(CI):
        for t in tl.static_range(KH * KW):
            seen = tl.load(corner + (c * (H * W) + t // KW * W + t % KW))
            own = tl.load(weight + (c * (KH * KW) + t) * BO + o)
            total += own[:, None] * seen[None, :]
    at = p // (HO * WO) * (CO * HO * WO) + p % (HO * WO)
    tl.store(y + at[None, :] + o[:, None] * (HO * WO), total, mask=(o < CO)[:, None] & inside[None, :])


@triton.jit
def _weight_kernel(x, grad, dw, db, COUNT, PER, CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr,
                   HO: tl.constexpr, WO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BO: tl.constexpr,
                   BK: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    K: tl.constexpr = CI * KH * KW
    r = tl.program_id(2).to(tl.int64)
    images = COUNT // (HO * WO)
    x += r * images * CI * H * W
    grad += r * images * CO * HO * WO
    part = r * tl.num_programs(1) + tl.program_id(1)
    o = tl.arange(0, BO)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    tap = tl.where(k < K, k // (KH * KW) * (H * W) + k % (KH * KW) // KW * W + k % KW, 0)
    total = tl.zeros((BK, BO, BP), dtype=tl.float32)
    sums = tl.zeros((BO, BP), dtype=tl.float32)
    first = tl.program_id(1) * PER
    last = tl.minimum(first + PER, COUNT)
    for start in range(first, last, BP):
        p = start + tl.arange(0, BP)
        at = p // (HO * WO) * (CO * HO * WO) + p % (HO * WO)
        ok = (o < CO)[:, None] & (p < last)[None, :]
        g = tl.load(grad + at[None, :] + o[:, None] * (HO * WO), mask=ok, other=0.0)
        seen = tl.load(x + _corners(tl.minimum(p, COUNT - 1), CI, H, W, HO, WO)[None, :] + tap[:, None])
        total += seen[:, None, :] * g[None, :, :]
        sums += g
    at = part * CO * K + o[None, :] * K + k[:, None]
    tl.store(dw + at, tl.sum(total, 2), mask=(o < CO)[None, :] & (k < K)[:, None])
    if tl.program_id(0) == 0:
        tl.store(db + part * CO + o, tl.sum(sums, 1), mask=o < CO)


@triton.jit
def _pool_kernel(x, y, which, COUNT, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
                 KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = p < COUNT
    corner = x + p // (HO * WO) * (H * W) + p % (HO * WO) // WO * KH * W + p % WO * KW
    best = tl.load(corner, mask=inside)
    tap = tl.zeros((BLOCK,), dtype=tl.int32)
    for t in tl.static_range(1, KH * KW):
        value = tl.load(corner + t // KW * W + t % KW, mask=inside)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        tap = tl.where(better, t, tap)
    tl.store(y + p, best, mask=inside)
    tl.store(which + p, tap.to(tl.uint8), mask=inside)


@triton.jit
def _unpool_kernel(grad, which, dx, COUNT, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
                   KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h, w = p % (H * W) // W, p % W
    ok = (p < COUNT) & (h // KH < HO) & (w // KW < WO)
    at = p // (H * W) * (HO * WO) + h // KH * WO + w // KW
    mine = tl.load(which + at, mask=ok, other=255).to(tl.int32) == h % KH * KW + w % KW
    tl.store(dx + p, tl.where(mine, tl.load(grad + at, mask=ok, other=0.0), 0.0), mask=p < COUNT)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of each replica, stride 1, of a padded input: (R, B, C, H, W) by weights (R, O, C, h, w)."""
    replicas, batch, channels, high, wide = x.shape
    out, kh, kw = weight.shape[1], *weight.shape[3:]
    ho, wo = high - kh + 1, wide - kw + 1
    y = x.new_empty(replicas, batch, out, ho, wo)
    room = triton.next_power_of_2(out)
    own = F.pad(weight.flatten(2).transpose(1, 2), (0, room - out)).contiguous()
    count, block = batch * ho * wo, 4096 // max(room, 8)
    _conv_kernel[(triton.cdiv(count, block), replicas)](
        x, own, own if bias is None else bias, y, count, channels, high, wide, out, ho, wo, kh, kw,
        BIAS=bias is not None, BO=room, BP=block,
    )  # fmt: skip
    return y


def conv_input(grad: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    """The gradient with respect to the input before padding: a convolution with the weights turned around."""
    down, right = weight.shape[3] - 1 - padding[0], weight.shape[4] - 1 - padding[1]
    turned = weight.transpose(1, 2).flip(3, 4)
    return conv(F.pad(grad, (right, right, down, down)), turned, None)


def conv_weight(x: Tensor, grad: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the weights and to the bias, for a padded input."""
    replicas, batch, channels, high, wide = x.shape
    out, kh, kw = shape[1], *shape[3:]
    ho, wo = grad.shape[3:]
    count, block, room = batch * ho * wo, 64, triton.next_power_of_2(out)
    # The parts depend on the layer alone, so that a replica's sum does not depend on the others.
    parts = min(64, triton.cdiv(count, _WORK))
    per = triton.cdiv(triton.cdiv(count, parts), block) * block
    most = max(2, _SUMS // room)
    taps = min((most // 2, most), key=lambda size: (triton.cdiv(channels * kh * kw, size) * size, -size))
    dw, db = x.new_empty(replicas, parts, *shape[1:]), x.new_empty(replicas, parts, out)
    _weight_kernel[(triton.cdiv(channels * kh * kw, taps), parts, replicas)](
        x, grad, dw, db, count, per, channels, high, wide, out, ho, wo, kh, kw, BO=room, BK=taps, BP=block, num_warps=2,
    )  # fmt: skip
    return dw.sum(1), db.sum(1)


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Max pooling of windows that lie side by side, and which element of each window was the largest."""
    ho, wo = x.shape[-2] // kernel[0], x.shape[-1] // kernel[1]
    y = x.new_empty(*x.shape[:-2], ho, wo)
    which = torch.empty_like(y, dtype=torch.uint8)
    _pool_kernel[_grid(y)](x, y, which, y.numel(), *x.shape[-2:], ho, wo, *kernel, BLOCK=1024)
    return y, which


def unpool(grad: Tensor, which: Tensor, shape: torch.Size, kernel: tuple[int, int]) -> Tensor:
    """The gradient of `pool` with respect to its input."""
    dx = grad.new_empty(shape)
    _unpool_kernel[_grid(dx)](grad, which, dx, dx.numel(), *shape[-2:], *grad.shape[-2:], *kernel, BLOCK=1024)
    return dx


def _grid(tensor: Tensor) -> tuple[int]:
    return (triton.cdiv(tensor.numel(), 1024),)
