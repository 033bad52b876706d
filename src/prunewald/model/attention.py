"""torch's MultiheadAttention with fewer heads than its width has room for, which torch's own cannot have."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FewerHeads(nn.MultiheadAttention):
    """A MultiheadAttention some heads of which were removed; it is called as before, and has the same parameters.

    Queries, keys and values are `num_heads` times `head_dim` wide, which is less than `embed_dim`.
    """

    def __getattribute__(self, name: str) -> Any:
        """Torch's encoder layers take a shortcut around attention, unless it says that its weights are not alike."""
        return False if name == "_qkv_same_embed_dim" else super().__getattribute__(name)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the weights of attention where they are asked for."""
        if query.dim() == 2:
            q, k, v = (x.unsqueeze(0) for x in (query, key, value))
            padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
            found, weights = self._attend(q, k, v, padding, attn_mask)
            found, weights = found.squeeze(0), weights.squeeze(0)
        elif self.batch_first:
            found, weights = self._attend(query, key, value, key_padding_mask, attn_mask)
        else:
            q, k, v = (x.transpose(0, 1) for x in (query, key, value))
            found, weights = self._attend(q, k, v, key_padding_mask, attn_mask)
            found = found.transpose(0, 1)
        return found, None if not need_weights else weights.mean(-3) if average_attn_weights else weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs and weights of a batch, which is the first dimension."""
        q, k, v = (self._heads(x, at) for at, x in enumerate((query, key, value)))
        scores = q @ k.transpose(2, 3) / self.head_dim**0.5
        if (added := self._mask(padding, mask, q)) is not None:
            scores = scores + added
        weights = scores.softmax(-1)
        mixed = F.dropout(weights, self.dropout, self.training) @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), weights

    def _heads(self, x: Tensor, at: int) -> Tensor:
        """Queries, keys or values by head: (batch, heads, length, head_dim)."""
        bias = None if self.in_proj_bias is None else self.in_proj_bias.chunk(3)[at]
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weight = apart[at] if self.in_proj_weight is None else self.in_proj_weight.chunk(3)[at]
        found: Tensor = F.linear(x, weight, bias).unflatten(2, (self.num_heads, self.head_dim))
        return found.transpose(1, 2)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
        """What is added to the scores."""
        found = None
        if mask is not None:
            found = _added(mask, q)
            found = found.unflatten(0, (len(q), self.num_heads)) if found.dim() == 3 else found
        if padding is not None:
            own = _added(padding, q)[:, None, None, :]
            found = own if found is None else found + own
        return found


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to be added; True leaves a position out."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
