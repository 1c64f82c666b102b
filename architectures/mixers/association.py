"""What the delta rules share: keys, queries and values from one convolved projection, a matrix memory, a head norm.

Shapes: `H` heads, keys and queries of `d = head_dim` channels, values of `e = expand_v d`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels import full
from ..layers import AlignedLinear, RMSNorm, ShortConvolution
from .base import Mixer, State


class Association(Mixer):
    """Short convolution without bias and SiLU on q, k and v; q and k of unit length; beta = sigmoid(W x), doubled with
    `negative_eigenvalues`; RMSNorm of each head's output.

    State: convolution `(B, K, H (2d + e))` of the caches' dtype and the memory `(B, H, d, e)` in float32 at least.

    Reference: negative eigenvalues: Grazzi et al. 2025, arXiv 2411.12537.
    """

    def __init__(
        self,
        d_model: int,
        *,
        head_dim: int,
        heads: int,
        expand_v: float,
        conv: int,
        negative_eigenvalues: bool,
        norm_eps: float,
        extra: int = 0,
    ) -> None:
        """`extra`: further outputs of the projection, for a subclass."""
        super().__init__()
        self.heads, self.head_dim, self.value_dim = heads, head_dim, round(expand_v * head_dim)
        self.key_width, self.value_width = heads * head_dim, heads * self.value_dim
        self.beta_scale = 2.0 if negative_eigenvalues else 1.0
        self.mixed = 2 * self.key_width + self.value_width
        self.project = AlignedLinear(d_model, self.mixed + heads + extra)
        self.conv = ShortConvolution(self.mixed, conv, bias=False, silu=True) if conv else None
        self.norm = RMSNorm(self.value_dim, norm_eps)
        self.out = nn.Linear(self.value_width, d_model, bias=False)

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the memory's output before norm and gate."""
        return self.value_width

    def associate(self, mixed: Tensor, state: State | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """From `mixed (B, T, H (2d + e))`: unit queries over sqrt(d), unit keys, values, the convolution's state.

        Lengths are regularised as in the reference code, x / sqrt(|x|^2 + 1e-6).
        """
        conv_state = None if state is None else state.get("conv")
        if self.conv is None:
            mixed = F.silu(mixed)
        else:
            mixed, conv_state = self.conv(mixed, conv_state, self.run)
        keys, v = mixed.split([2 * self.key_width, self.value_width], dim=-1)
        keys = full(keys.unflatten(-1, (2 * self.heads, self.head_dim)))
        keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + 1e-6)
        q, k = keys.to(v.dtype).chunk(2, dim=2)
        return q * self.head_dim**-0.5, k, v.unflatten(-1, (self.heads, self.value_dim)), conv_state

    def write_strength(self, logits: Tensor) -> Tensor:
        """beta `(B, T, H)` of its logits, in float32 at least."""
        return torch.sigmoid(full(logits)) * self.beta_scale

    def by_head(self, x: Tensor) -> Tensor:
        """`(B, T, H e)` as `(B, T, H, e)`, in float32 at least."""
        return full(x).unflatten(-1, (self.heads, self.value_dim))

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        shape = (batch_size, self.heads, self.head_dim, self.value_dim)
        state: State = {"memory": torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))}
        if self.conv is not None:
            state["conv"] = self.conv.init_state(batch_size, device=device, dtype=dtype)
        return state

    def next_state(self, state: State | None, memory: Tensor, conv_state: Tensor | None) -> State | None:
        """The state after a segment; None in training."""
        if state is None:
            return None
        return {"memory": memory} if conv_state is None else {"memory": memory, "conv": conv_state}
