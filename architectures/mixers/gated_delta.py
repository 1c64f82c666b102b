"""Gated DeltaNet: the delta rule with one input-dependent decay per head.

    S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T,        o_t = S_t q_t / sqrt(d)

Shapes: `H` heads, keys and queries of `d = head_dim` channels, values of `e = expand_v d`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import full
from ..layers import RMSNorm, ShortConvolution
from .base import Mixer, State
from .mamba2 import inverse_softplus_steps


class GatedDeltaNet(Mixer):
    """Short convolution without bias and SiLU on q, k and v; q and k of unit length; b = sigmoid(W_b x), doubled with
    `negative_eigenvalues`; a = exp(-exp(A_log) softplus(W_a x + dt_bias)); RMSNorm of each head's output, then a
    SiLU gate; output projection.

    A_log starts at log U(0, 16), dt_bias at the inverse softplus of log-uniform [1e-3, 1e-1]. State: convolution
    `(B, K, H (2d + e))` of the caches' dtype and `(B, H, d, e)` in float32 at least.

    Reference: Yang, Kautz & Hatamizadeh 2025, arXiv 2412.06464; eigenvalues: Grazzi et al. 2025, arXiv 2411.12537.
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
        super().__init__()
        self.heads, self.head_dim, self.value_dim = heads, head_dim, round(expand_v * head_dim)
        self.key_width, self.value_width = heads * head_dim, heads * self.value_dim
        self.beta_scale = 2.0 if negative_eigenvalues else 1.0
        mixed = 2 * self.key_width + self.value_width
        self.project = nn.Linear(d_model, mixed + self.value_width + 2 * heads, bias=False)
        self.conv = ShortConvolution(mixed, conv, bias=False) if conv else None
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0, 16).clamp_(min=1e-4).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(heads))
        self.norm = RMSNorm(self.value_dim, norm_eps)
        self.out = nn.Linear(self.value_width, d_model, bias=False)

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the recurrence's output before norm and gate."""
        return self.value_width

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        sizes = [2 * self.key_width + self.value_width, self.value_width, self.heads, self.heads]
        mixed, gate, a, b = self.project(x).split(sizes, dim=-1)
        q, k, v, conv_state = associate(self, mixed, state)
        beta = torch.sigmoid(full(b)) * self.beta_scale
        decay = -full(self.A_log).exp() * F.softplus(full(a) + full(self.dt_bias))
        o, last = self.run("gated_delta", q, k, v, beta, decay, None if state is None else state["memory"])
        self.publish(context, o.flatten(2).to(x.dtype))
        o = self.norm(full(o)) * F.silu(full(gate).unflatten(-1, (self.heads, self.value_dim)))
        return self.out(o.flatten(2).to(x.dtype)), next_state(state, last, conv_state)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return memory_state(self, batch_size, device=device, dtype=dtype)


def associate(mixer: GatedDeltaNet, mixed: Tensor, state: State | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Convolves and activates `mixed (B, T, H (2d + e))` and splits it: unit queries over sqrt(d), unit keys, values.

    Lengths are regularised as in the reference code, x / sqrt(|x|^2 + 1e-6).
    """
    conv_state = None if state is None else state.get("conv")
    if mixer.conv is not None:
        mixed, conv_state = mixer.conv(mixed, conv_state)
    keys, v = F.silu(mixed).split([2 * mixer.key_width, mixer.value_width], dim=-1)
    keys = full(keys.unflatten(-1, (2 * mixer.heads, mixer.head_dim)))
    keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + 1e-6)
    q, k = keys.to(v.dtype).chunk(2, dim=2)
    return q * mixer.head_dim**-0.5, k, v.unflatten(-1, (mixer.heads, mixer.value_dim)), conv_state


def memory_state(mixer: GatedDeltaNet, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> State:
    """Zero memory in float32 at least, and the convolution's state if there is one."""
    shape = (batch_size, mixer.heads, mixer.head_dim, mixer.value_dim)
    state: State = {"memory": torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))}
    if mixer.conv is not None:
        state["conv"] = mixer.conv.init_state(batch_size, device=device, dtype=dtype)
    return state


def next_state(state: State | None, memory: Tensor, conv_state: Tensor | None) -> State | None:
    """The state after a segment; None in training."""
    if state is None:
        return None
    after: State = {"memory": memory}
    if conv_state is not None:
        after["conv"] = conv_state
    return after
