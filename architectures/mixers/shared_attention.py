"""Attention with queries of its own to the keys and values of an earlier attention layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..context import Context
from ..layers import rotary, rotate
from .attention import attend
from .base import Mixer, State


class SharedAttention(Mixer):
    """Causal attention whose rotated keys and values are those of the last earlier layer named `source`, heads and
    rotation included. It has no state: the cache is that layer's.

    Reference: Sun et al. 2024 (YOCO), arXiv 2405.05254; Ren et al. 2025 (SambaY), arXiv 2507.06607.
    """

    def __init__(self, d_model: int, *, source: str = "attention", provider: Any) -> None:
        super().__init__()
        self.source = source
        self.head_dim, self.rope_base = provider.head_dim, provider.rope_base
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        k, v = context.streams[self.source]
        q = self.query(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        if self.rope_base is not None:
            length = x.shape[1]
            q = rotate(q, *rotary(k.shape[2] - length, length, self.head_dim, self.rope_base, x))
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2)), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return {}
