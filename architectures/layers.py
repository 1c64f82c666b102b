"""The small layers that mixers share: RMSNorm, the short causal convolution, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .kernels import full


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in float32 at least.

    Reference: Zhang & Sennrich 2019, arXiv 1910.07467.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dtype == self.weight.dtype:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)  # in float32 inside, rounded once
        wide = full(x)
        if wide.is_cuda:
            # The fused kernel's gradient of the weight is slow for narrow rows, so the weight stays outside.
            return (F.rms_norm(wide, self.weight.shape, None, self.eps) * self.weight).to(x.dtype)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution: `y_t = sum_i w_i x_{t-K+1+i} (+ bias)`, `(B, T, C)` to `(B, T, C)`.

    Its state is the last K inputs, `(B, K, C)`. Initialised as `torch.nn.Conv1d`, as in Mamba.
    """

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def init_state(self, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Zeros, `(B, K, C)`."""
        return torch.zeros(batch_size, self.width, self.weight.shape[0], device=device, dtype=dtype)

    def forward(self, x: Tensor, state: Tensor | None, run: Callable[..., Any]) -> tuple[Tensor, Tensor | None]:
        """`x (B, T, C)` after the inputs in `state`, and the state after `x`; `run` is the mixer's."""
        y, after = run("short_conv", x, self.weight, self.bias, state)
        return y, None if state is None else after.to(state.dtype)


_ANGLES: dict[tuple[int, float, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}


def rotary(start: int, length: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `(T, head_dim / 2)` of positions `start` to `start + length - 1`, in float32 at least.

    Rows of a table that is kept for each width, base, device and type, and made anew, longer, when it is outgrown.

    Reference: Su et al. 2021, arXiv 2104.09864.
    """
    dtype, stop = torch.promote_types(x.dtype, torch.float32), start + length
    key = (head_dim, base, x.device, dtype)
    if key not in _ANGLES or _ANGLES[key][0].shape[0] < stop:
        _ANGLES[key] = _angles(1 << (stop - 1).bit_length(), head_dim, base, x.device, dtype)
    cos, sin = _ANGLES[key]
    return cos[start:stop], sin[start:stop]


@torch.inference_mode(False)
def _angles(length: int, head_dim: int, base: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=dtype) / head_dim
    angle = torch.arange(length, device=device, dtype=dtype)[:, None] * base**-exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates channel pairs `(i, i + head_dim / 2)` of `x (..., T, head_dim)` by the angles."""
    first, second = full(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
