"""Gated DeltaNet: the delta rule with one input-dependent decay per head.

S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T,        o_t = S_t q_t / sqrt(d)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import finish, full
from .association import Association
from .base import State
from .mamba2 import inverse_softplus_steps


class GatedDeltaNet(Association):
    """The association of the delta rules with a = exp(-exp(A_log) softplus(W_a x + dt_bias)), and a SiLU gate on the
    normalised output.

    A_log starts at log U(0, 16), dt_bias at the inverse softplus of log-uniform [1e-3, 1e-1].

    Reference: Yang, Kautz & Hatamizadeh 2025, arXiv 2412.06464.
    """

    no_weight_decay = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        *,
        head_dim: int,
        heads: int,
        expand_v: float = 2.0,
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
            extra=heads * round(expand_v * head_dim) + heads,
        )
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0, 16).clamp_(min=1e-4).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(heads))

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        sizes = [self.mixed, self.value_width, self.heads, self.heads]
        mixed, gate, a, b = self.project(x).split(sizes, dim=-1)
        q, k, v, conv_state = self.associate(mixed, state)
        decay = -full(self.A_log).exp() * F.softplus(full(a) + full(self.dt_bias))
        memory = None if state is None else state["memory"]
        o, memory = self.run("gated_delta", q, k, v, self.write_strength(b), decay, memory)
        self.publish(context, o.flatten(2).to(x.dtype))
        if finish.usable(o):
            by_head = gate.unflatten(-1, (self.heads, self.value_dim))
            o = finish.fused(o, by_head, self.norm.weight, self.norm.eps, before=False)
        else:
            o = (self.norm(full(o)) * F.silu(self.by_head(gate))).flatten(2).to(x.dtype)
        return self.out(o), self.next_state(state, memory, conv_state)
