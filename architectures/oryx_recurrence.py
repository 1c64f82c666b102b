"""The linear half of an Oryx block: a recurrence with a key-value association, fed with the block's q, k and v.

    S_t = A_t S_{t-1} + (write of k_t, v_t),        o_t = q_t S_t

Shapes: `B` sequences, `T` tokens, `H` heads of `d = head_dim` channels, `H d = D`; `q, k, v (B, T, H, d)`, the block's
input `x (B, T, D)`, memory `(B, H, d, d)` in float32 at least. Each recurrence has only what its decays, write
strengths and skip need; projections, convolution, gate and norm are the block's. A_log, dt_bias and D start as in the
mixers of the same name and are not decayed by the optimiser.

Reference: Li et al., Oryx, arXiv 2605.28769, sections 2 and 3, appendix B; the mixers' own in `architectures.mixers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .kernels import full
from .mixers.mamba2 import inverse_softplus_steps

Run = Callable[..., Any]
"""`run(operation, *tensors)`: an operation of `architectures.kernels` with its backend already chosen."""


class Recurrence(nn.Module):
    """One recurrence; `read` gives the outputs `(B, T, H, d)` and the memory after the last token."""

    unit_keys = False
    """Whether queries and keys have unit length, the query then scaled by 1 / sqrt(d)."""

    def __init__(self, d_model: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = d_model // head_dim, head_dim

    def forward(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs and memory for tokens `x` that follow those in `memory` (None: the sequence starts here)."""
        if self.unit_keys:
            q, k = unit(q) * self.head_dim**-0.5, unit(k)
        return self.read(run, x, q, k, v, memory)

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def unit(x: Tensor) -> Tensor:
    """`x / sqrt(|x|^2 + 1e-6)` over the last dimension."""
    wide = full(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


class SSD(Recurrence):
    """Mamba-2: `S_t = exp(dt_t A) S_{t-1} + dt_t k_t^T v_t`, `o_t = q_t S_t + D v_t`, one decay a head.

    `dt = softplus(W x + dt_bias)`, `A = -exp(A_log)`, A_log from log U(1, 16). Without `skip` there is no D. Queries
    are not scaled.
    """

    no_weight_decay = ("A_log", "dt_bias", "D")

    def __init__(self, d_model: int, head_dim: int, *, skip: bool) -> None:
        super().__init__(d_model, head_dim)
        self.step = nn.Linear(d_model, self.heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self.heads))
        self.D = nn.Parameter(torch.ones(self.heads)) if skip else None

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        dt = F.softplus(full(self.step(x)) + full(self.dt_bias))
        o, memory = run("ssd", v, dt, -full(self.A_log).exp(), k, q, memory)
        if self.D is not None:
            o = o + (full(self.D)[:, None] * full(v)).to(o.dtype)
        return o, memory


class GatedDelta(Recurrence):
    """Gated DeltaNet: `S_t = a_t (I - b_t k_t^T k_t) S_{t-1} + b_t k_t^T v_t`, one decay a head.

    `b = sigmoid(W_b x)`, doubled with `negative_eigenvalues`; `a = exp(-exp(A_log) softplus(W_a x + dt_bias))`, A_log
    from log U(0, 16).
    """

    unit_keys = True
    no_weight_decay = ("A_log", "dt_bias")

    def __init__(self, d_model: int, head_dim: int, *, negative_eigenvalues: bool) -> None:
        super().__init__(d_model, head_dim)
        self.beta_scale = 2.0 if negative_eigenvalues else 1.0
        self.strengths = nn.Linear(d_model, 2 * self.heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(0, 16).clamp_(min=1e-4).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self.heads))

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a, b = full(self.strengths(x)).chunk(2, dim=-1)
        decay = -full(self.A_log).exp() * F.softplus(a + full(self.dt_bias))
        return run("gated_delta", q, k, v, torch.sigmoid(b) * self.beta_scale, decay, memory)


class Delta(Recurrence):
    """DeltaNet: the gated delta rule without decay."""

    unit_keys = True

    def __init__(self, d_model: int, head_dim: int, *, negative_eigenvalues: bool) -> None:
        super().__init__(d_model, head_dim)
        self.beta_scale = 2.0 if negative_eigenvalues else 1.0
        self.strengths = nn.Linear(d_model, self.heads, bias=False)

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        beta = torch.sigmoid(full(self.strengths(x))) * self.beta_scale
        return run("delta", q, k, v, beta, None, memory)


class KimiDelta(Recurrence):
    """Kimi delta attention: `S_t = (I - b_t k_t^T k_t) diag(a_t) S_{t-1} + b_t k_t^T v_t`, one decay a key channel.

    `a = exp(-exp(A_log) softplus(W_2 W_1 x + dt_bias))`, W_1 to `decay_rank` channels, A_log per head from
    log U(1, 16), dt_bias per channel from 0.
    """

    unit_keys = True
    no_weight_decay = ("A_log", "dt_bias")

    def __init__(self, d_model: int, head_dim: int, *, decay_rank: int, negative_eigenvalues: bool) -> None:
        super().__init__(d_model, head_dim)
        self.beta_scale = 2.0 if negative_eigenvalues else 1.0
        self.strengths = nn.Linear(d_model, self.heads, bias=False)
        self.decay_down = nn.Linear(d_model, decay_rank, bias=False)
        self.decay_up = nn.Linear(decay_rank, d_model, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.zeros(d_model))

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        beta = torch.sigmoid(full(self.strengths(x))) * self.beta_scale
        rate = F.softplus(full(self.decay_up(self.decay_down(x))) + full(self.dt_bias))
        decay = -full(self.A_log).exp()[:, None] * rate.unflatten(-1, (self.heads, self.head_dim))
        return run("kda", q, k, v, beta, decay, memory)


class GatedLinear(Recurrence):
    """Gated linear attention: `S_t = diag(a_t) S_{t-1} + k_t^T v_t`, queries over sqrt(d), one decay a key channel.

    `a = sigmoid(W_2 W_1 x + c)^(1 / gate_divisor)`, W_1 to `decay_rank` channels.
    """

    def __init__(self, d_model: int, head_dim: int, *, decay_rank: int, gate_divisor: float) -> None:
        super().__init__(d_model, head_dim)
        self.gate_divisor = gate_divisor
        self.decay_down = nn.Linear(d_model, decay_rank, bias=False)
        self.decay_up = nn.Linear(decay_rank, d_model)

    def read(
        self, run: Run, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        decay = F.logsigmoid(full(self.decay_up(self.decay_down(x)))) / self.gate_divisor
        return run("gla", q * self.head_dim**-0.5, k, v, decay.unflatten(-1, (self.heads, self.head_dim)), memory)
