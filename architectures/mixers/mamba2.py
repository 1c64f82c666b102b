"""Mamba-2: a gated block around a state space recurrence with one decay per head.

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T,        y_t = S_t C_t + D x_t

Shapes: inner width `I = expand D`, `H = I / P` heads of `P = head_dim` channels, `N = d_state`, one group of B and C.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import finish, full
from ..layers import AlignedLinear, RMSNorm, ShortConvolution
from .base import Mixer, State


def inverse_softplus_steps(count: int, low: float = 1e-3, high: float = 1e-1) -> Tensor:
    """Biases whose softplus is log-uniform in [low, high], as Mamba starts its step sizes, `(count,)`."""
    dt = torch.exp(torch.rand(count) * (math.log(high) - math.log(low)) + math.log(low)).clamp(min=1e-4)
    return dt + torch.log(-torch.expm1(-dt))


class Mamba2(Mixer):
    """In one projection: gate z, x, B, C and the step sizes; short convolution with bias and SiLU over x, B, C; the
    recurrence; RMSNorm over the inner width after the gate; output projection.

    A = -exp(A_log) starts with A_log = log U(1, 16), dt_bias at the inverse softplus of log-uniform [1e-3, 1e-1], D at
    one. State: convolution `(B, K, I + 2N)` and `(B, H, P, N)`, both of the caches' dtype as in the reference code.

    Reference: Dao & Gu 2024, arXiv 2405.21060, section 7.
    """

    no_weight_decay = ("A_log", "dt_bias", "D")

    def __init__(
        self, d_model: int, *, expand: int = 2, head_dim: int, d_state: int, conv: int = 4, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.inner, self.head_dim, self.d_state = expand * d_model, head_dim, d_state
        self.heads = self.inner // head_dim
        mixed = self.inner + 2 * d_state
        self.project = AlignedLinear(d_model, self.inner + mixed + self.heads)
        self.conv = ShortConvolution(mixed, conv, bias=True, silu=True) if conv else None
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self.heads))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = RMSNorm(self.inner, norm_eps)
        self.out = nn.Linear(self.inner, d_model, bias=False)

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the recurrence's output before the gate."""
        return self.inner

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        y, _, state = self.mix_and_show(x, state, context)
        return y, state

    def mix_and_show(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, Tensor, State | None]:
        """As `mix`; between the two also the recurrence's input `(B, T, I)`, for a layer that shares it."""
        z, mixed, dt = self.project(x).split([self.inner, self.inner + 2 * self.d_state, self.heads], dim=-1)
        conv_state = None if state is None else state.get("conv")
        if self.conv is None:
            mixed = F.silu(mixed)
        else:
            mixed, conv_state = self.conv(mixed, conv_state, self.run)
        shown, b, c = mixed.split([self.inner, self.d_state, self.d_state], dim=-1)
        u = shown.unflatten(-1, (self.heads, self.head_dim))
        dt = F.softplus(full(dt) + full(self.dt_bias))
        y, last = self.run("ssd", u, dt, -full(self.A_log).exp(), b, c, None if state is None else state["ssm"])
        if self.stream is None and finish.usable(y):
            gate = z.unflatten(-1, (self.heads, self.head_dim))
            y = finish.fused(y, gate, self.norm.weight, self.norm.eps, before=True, u=u, skip=self.D)
        else:
            y = torch.addcmul(full(y), full(self.D)[:, None], full(u)).flatten(2)
            self.publish(context, y.to(x.dtype))
            y = self.norm(y * F.silu(full(z))).to(x.dtype)
        y = self.out(y)
        if state is not None:
            state = {"ssm": last.to(state["ssm"].dtype)}
            if conv_state is not None:
                state["conv"] = conv_state
        return y, shown, state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        shape = (batch_size, self.heads, self.head_dim, self.d_state)
        state: State = {"ssm": torch.zeros(shape, device=device, dtype=dtype)}
        if self.conv is not None:
            state["conv"] = self.conv.init_state(batch_size, device=device, dtype=dtype)
        return state
