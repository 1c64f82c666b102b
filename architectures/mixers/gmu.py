"""Layers that read another layer's stream: SambaY's gated memory unit, and attention to a shared cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from .base import Mixer, State


class GatedMemoryUnit(Mixer):
    """`W_2 (m * SiLU(W_1 x))`, with m the stream of the last earlier layer named `source`: what its recurrence put out
    before norm and gate. It has no state.

    Reference: Ren et al. 2025 (SambaY), arXiv 2507.06607, section 2.
    """

    def __init__(self, d_model: int, *, source: str, provider: Any) -> None:
        super().__init__()
        self.source = source
        self.gate = nn.Linear(d_model, provider.stream_width, bias=False)
        self.out = nn.Linear(provider.stream_width, d_model, bias=False)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        return self.out(context.streams[self.source] * F.silu(self.gate(x))), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return {}
