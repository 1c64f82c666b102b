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
        wide = full(x)
        if wide.is_cuda:
            return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)
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


def rotary(start: int, length: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `(T, head_dim / 2)` of positions `start` to `start + length - 1`, in float32 at least.

    Reference: Su et al. 2021, arXiv 2104.09864.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, device=x.device, dtype=dtype) / head_dim
    position = torch.arange(start, start + length, device=x.device, dtype=dtype)
    angle = position[:, None] * base**-exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates channel pairs `(i, i + head_dim / 2)` of `x (..., T, head_dim)` by the angles."""
    first, second = full(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
