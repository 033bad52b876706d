"""Models of many shapes, each with an input: what can be shrunk, and what is special about it."""

import torch
from torch import nn
from torch.nn import functional as F

IMAGES = torch.randn(2, 4, 12, 12, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))


class Depthwise(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8)
        self.d, self.n2 = nn.Conv2d(8, 16, 3, padding=1, groups=8), nn.BatchNorm2d(16)
        self.b, self.h = nn.Conv2d(16, 6, 1), nn.Linear(6, 3)

    def forward(self, x):
        h = F.hardswish(self.n2(self.d(F.relu(self.n(self.a(x))))))
        return self.h(F.relu6(self.b(h)).mean((2, 3)))


class Grouped(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.d = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 16, 3, padding=1, groups=4, bias=False)
        self.n, self.b, self.h = nn.BatchNorm2d(16), nn.Conv2d(16, 6, 1), nn.Linear(6, 3)

    def forward(self, x):
        return self.h(self.b(F.relu(self.n(self.d(self.a(x))))).flatten(2).mean(2))


class Transposed(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.u = nn.Conv2d(4, 8, 3, 2, 1), nn.ConvTranspose2d(8, 6, 2, 2)
        self.g, self.b = nn.ConvTranspose2d(6, 12, 2, groups=6), nn.Conv2d(12, 2, 1)

    def forward(self, x):
        return self.b(F.leaky_relu(self.g(F.relu(self.u(F.relu(self.a(x)))))))


class Concatenated(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1)
        self.n2, self.c, self.h = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 3, padding=1), nn.Linear(16 * 36, 3)

    def forward(self, x):
        x = F.relu(self.n(self.a(x)))
        y = F.relu(self.n2(torch.cat([x, self.b(x)], 1)))
        return self.h(F.avg_pool2d(torch.cat([y, self.c(y)], 1), 2).flatten(1))


class Squeezed(nn.Module):
    """Channels weighted by what a small network makes of their means."""

    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.f1, self.f2 = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.c, self.h = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.n(self.a(x)))
        weight = self.f2(F.relu(self.f1(F.adaptive_avg_pool2d(x, 1)))).sigmoid()
        return self.h(F.adaptive_avg_pool2d(self.c(x * weight), 1).flatten(1))


class UNet(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.u1 = self.block(4, 8), self.block(8, 16), self.block(24, 8)
        self.up, self.o = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 2, 1)

    def block(self, i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(True))

    def forward(self, x):
        a = self.d1(x)
        return self.o(self.u1(torch.cat([a, self.up(self.d2(F.max_pool2d(a, 2)))], 1)))


class Padded(nn.Module):
    """A way around that fills up with channels of zeros."""

    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.b, self.h = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1), nn.Linear(16, 3)

    def forward(self, x):
        x = F.relu(self.a(x))
        return self.h((self.b(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))).mean((2, 3)))


class Normed(nn.Module):
    x = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.n, self.c = nn.Conv2d(4, 16, 1), nn.GroupNorm(4, 16), nn.Conv2d(16, 8, 1)
        self.n2, self.d = nn.GroupNorm(1, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.d(F.relu(self.n2(self.c(F.relu(self.n(self.a(x)))))))


class Mixer(nn.Module):
    x = TOKENS

    def __init__(self):
        super().__init__()
        self.e, self.n, self.h = nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.t1, self.t2, self.c1, self.c2 = nn.Linear(5, 8), nn.Linear(8, 5), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        x = self.e(x)
        x = x + self.t2(F.gelu(self.t1(self.n(x).transpose(1, 2)))).transpose(1, 2)
        return self.h((x + self.c2(F.gelu(self.c1(self.n(x))))).mean(1))


class Packed(nn.Module):
    """Queries, keys and values of one layer, told apart in one of the ways that are in use."""

    x = TOKENS

    def __init__(self, form="unbound"):
        super().__init__()
        self.form, self.num_heads, self.head_dim = form, 4, 8
        self.n, self.qkv, self.proj = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        batch, length, _ = x.shape
        mixed = F.scaled_dot_product_attention(*getattr(self, self.form)(self.qkv(self.n(x)), batch, length))
        mixed = mixed.transpose(1, 2)
        return x + self.proj(mixed.reshape(batch, length, 32) if self.form == "written" else mixed.flatten(2))

    def unbound(self, qkv, batch, length):
        return qkv.reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)

    def chunked(self, qkv, batch, length):
        return (x.view(batch, length, -1, self.head_dim).transpose(1, 2) for x in qkv.chunk(3, -1))

    def by_head(self, qkv, batch, length):
        return qkv.view(batch, length, -1, 3 * self.head_dim).transpose(1, 2).chunk(3, -1)

    written = chunked


class Twice(nn.Module):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    def __init__(self):
        super().__init__()
        self.i, self.f, self.h = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.h(F.relu(self.f(F.relu(self.f(F.relu(self.i(x)))))))


KINDS = [Depthwise, Grouped, Transposed, Concatenated, Squeezed, UNet, Padded, Normed, Mixer, Packed, Twice]


def settled(model):
    """A model whose norms have shifts, scales and statistics of their own."""
    for _ in range(3):
        model(model.x)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
    return model
