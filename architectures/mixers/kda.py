"""Kimi delta attention: the delta rule with one input-dependent decay per key channel.

S_t = (I - b_t k_t k_t^T) diag(a_t) S_{t-1} + b_t k_t v_t^T,        o_t = S_t^T q_t / sqrt(d)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import full
from .association import Association
from .base import State
from .mamba2 import inverse_softplus_steps


class KimiDeltaAttention(Association):
    """The association of the delta rules with a = exp(-exp(A_log) softplus(W_2 W_1 x + dt_bias)) per channel, A_log per
    head, and a sigmoid gate W_4 W_3 x + c on the normalised output; W_1 and W_3 map to `head_dim` channels.

    A_log starts at log U(1, 16), dt_bias at the inverse softplus of log-uniform [1e-3, 1e-1], as in
    flash-linear-attention's layer.

    Reference: Kimi Team 2025, arXiv 2510.26692.
    """

    no_weight_decay = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        head_dim: int,
        heads: int,
        expand_v: float = 1.0,
        conv: int = 4,
        negative_eigenvalues: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(
            d_model,
            head_dim=head_dim,
            heads=heads,
            expand_v=expand_v,
            conv=conv,
            negative_eigenvalues=negative_eigenvalues,
            norm_eps=norm_eps,
            extra=2 * head_dim,
        )
        self.decay_up = nn.Linear(head_dim, self.key_width, bias=False)
        self.gate_up = nn.Linear(head_dim, self.value_width)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self.key_width))

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        sizes = [self.mixed, self.heads, self.head_dim, self.head_dim]
        mixed, b, a, gate = self.project(x).split(sizes, dim=-1)
        q, k, v, conv_state = self.associate(mixed, state)
        rate = F.softplus(full(self.decay_up(a)) + full(self.dt_bias)).unflatten(-1, (self.heads, self.head_dim))
        decay = -full(self.A_log).exp()[:, None] * rate
        memory = None if state is None else state["memory"]
        o, memory = self.run("kda", q, k, v, self.write_strength(b), decay, memory)
        self.publish(context, o.flatten(2).to(x.dtype))
        o = self.norm(full(o)) * torch.sigmoid(self.by_head(self.gate_up(gate)))
        return self.out(o.flatten(2).to(x.dtype)), self.next_state(state, memory, conv_state)
