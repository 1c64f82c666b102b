"""The SwiGLU MLP, in every block and as a layer of its own (`mlp`) in patterns that place it freely."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from .base import Mixer, State


class SwiGLU(Mixer):
    """`W_down (SiLU(W_gate x) * W_up x)`, no biases, hidden width `d_ff`.

    Reference: Shazeer 2020, arXiv 2002.05202.
    """

    def __init__(self, d_model: int, *, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 2 * d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return {}
