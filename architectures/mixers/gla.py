"""Gated linear attention: a matrix memory with one input-dependent decay per key channel.

S_t = diag(a_t) S_{t-1} + k_t v_t^T,        o_t = S_t^T q_t / sqrt(d)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import full
from ..layers import AlignedLinear, RMSNorm
from .base import Mixer, State


class GatedLinearAttention(Mixer):
    """Keys and queries of `expand_k D` channels and values of `expand_v D` over all heads; a = sigmoid(W_2 W_1 x + c)
    to the power 1 / `gate_divisor`, W_1 mapping to `gate_rank` channels; RMSNorm of each head's output, then a SiLU
    gate.

    State: memory `(B, H, d, e)` in float32 at least.

    Reference: Yang et al. 2024, arXiv 2312.06635.
    """

    def __init__(
        self,
        d_model: int,
        *,
        heads: int,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        gate_rank: int = 16,
        gate_divisor: float = 16.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.heads, self.gate_rank, self.gate_divisor = heads, gate_rank, gate_divisor
        self.key_width, self.value_width = round(expand_k * d_model), round(expand_v * d_model)
        self.project = AlignedLinear(d_model, 2 * self.key_width + 2 * self.value_width + gate_rank)
        self.decay_up = nn.Linear(gate_rank, self.key_width)
        self.norm = RMSNorm(self.value_width // heads, norm_eps)
        self.out = nn.Linear(self.value_width, d_model, bias=False)

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the memory's output before norm and gate."""
        return self.value_width

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        sizes = [self.key_width, self.key_width, self.value_width, self.value_width, self.gate_rank]
        q, k, v, gate, a = self.project(x).split(sizes, dim=-1)
        decay = F.logsigmoid(full(self.decay_up(a))) / self.gate_divisor
        q, k, v, decay, gate = (y.unflatten(-1, (self.heads, -1)) for y in (q, k, v, decay, gate))
        memory = None if state is None else state["memory"]
        o, memory = self.run("gla", q * q.shape[-1] ** -0.5, k, v, decay, memory)
        self.publish(context, o.flatten(2).to(x.dtype))
        o = self.norm(full(o)) * F.silu(full(gate))
        return self.out(o.flatten(2).to(x.dtype)), None if state is None else {"memory": memory}

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        shape = (batch_size, self.heads, self.key_width // self.heads, self.value_width // self.heads)
        return {"memory": torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))}
