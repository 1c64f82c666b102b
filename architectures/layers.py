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
        fused = x.is_cuda and not torch.compiler.is_compiling()  # a compiler that sees the formula keeps x alone
        if fused and x.dtype == self.weight.dtype:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)  # in float32 inside, rounded once
        wide = full(x)
        if fused:
            # The fused kernel's gradient of the weight is slow for narrow rows, so the weight stays outside.
            return (F.rms_norm(wide, self.weight.shape, None, self.eps) * self.weight).to(x.dtype)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution: `y_t = sum_i w_i x_{t-K+1+i} (+ bias)`, `(B, T, C)` to `(B, T, C)`; with `silu`,
    SiLU of it, as one operation.

    Its state is the last K inputs, `(B, K, C)`. Initialised as `torch.nn.Conv1d`, as in Mamba.
    """

    def __init__(self, channels: int, width: int, *, bias: bool, silu: bool = False) -> None:
        super().__init__()
        self.width, self.operation = width, "short_conv_silu" if silu else "short_conv"
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def init_state(self, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Zeros, `(B, K, C)`."""
        return torch.zeros(batch_size, self.width, self.weight.shape[0], device=device, dtype=dtype)

    def forward(self, x: Tensor, state: Tensor | None, run: Callable[..., Any]) -> tuple[Tensor, Tensor | None]:
        """`x (B, T, C)` after the inputs in `state`, and the state after `x`; `run` is the mixer's."""
        y, after = run(self.operation, x, self.weight, self.bias, state)
        return y, None if state is None else after.to(state.dtype)


class AlignedLinear(nn.Linear):
    """A linear map without bias whose weight is padded, in training on a GPU, to a multiple of `ALIGNMENT` rows.

    With an odd number of outputs they fall back to kernels half as fast, and every slice of the output is misaligned.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        spare = -self.out_features % ALIGNMENT
        if not (x.is_cuda and spare and torch.is_grad_enabled()):
            return F.linear(x, self.weight)
        return self.padded(x, spare)

    def padded(self, x: Tensor, spare: int) -> Tensor:
        """The same through a weight with `spare` rows of zeros more."""
        return F.linear(x, F.pad(self.weight, (0, 0, 0, spare)))[..., : self.out_features]


ALIGNMENT = 8
"""Elements: 16 bytes in half precision."""


def embed(weight: Tensor, tokens: Tensor) -> Tensor:
    """Rows `(B, T, D)` of `weight (V, D)`. On a GPU the gradient is formed without the sort of torch's own.

    torch.compile has its own way without a sort.
    """
    if weight.is_cuda and not torch.compiler.is_compiling():
        return Lookup.apply(weight, tokens)
    return F.embedding(tokens, weight)


class Lookup(torch.autograd.Function):
    """`F.embedding` whose gradient is a matrix product with one-hot rows, or a scattered sum where that is large."""

    LARGE = 5e8
    """Multiply-adds of the product beyond which it is not formed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows = weight.shape[0]
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        index, grad = ctx.saved_tensors[0].flatten(), grads[0].flatten(0, -2)
        if ctx.rows * grad.numel() > Lookup.LARGE:
            return grad.new_zeros(ctx.rows, grad.shape[-1]).index_add_(0, index, grad), None
        hot = index[None] == torch.arange(ctx.rows, device=index.device)[:, None]
        return hot.to(grad.dtype) @ grad, None


_ANGLES: dict[tuple[int, float, torch.device, torch.dtype], tuple[Tensor, ...]] = {}


def rotary(start: int, length: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `(T, head_dim / 2)` of positions `start` to `start + length - 1`, in float32 at least.

    Rows of a table that is kept for each width, base, device and type, and made anew, longer, when it is outgrown.

    Reference: Su et al. 2021, arXiv 2104.09864.
    """
    cos, sin, _, _ = _tables(start, length, head_dim, base, x)
    return cos, sin


def rotary_pairs(start: int, length: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """As `rotary`, for `rotate_pairs`: both channels of a pair have their factors, `(T, head_dim)`."""
    _, _, cos, sin = _tables(start, length, head_dim, base, x)
    return cos, sin


def _tables(start: int, length: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, ...]:
    dtype, stop = torch.promote_types(x.dtype, torch.float32), start + length
    key = (head_dim, base, x.device, dtype)
    if key not in _ANGLES or _ANGLES[key][0].shape[0] < stop:
        _ANGLES[key] = _angles(1 << (stop - 1).bit_length(), head_dim, base, x.device, dtype)
    return tuple(table[start:stop] for table in _ANGLES[key])


@torch.inference_mode(False)
def _angles(length: int, head_dim: int, base: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=dtype) / head_dim
    angle = torch.arange(length, device=device, dtype=dtype)[:, None] * base**-exponent
    cos, sin = angle.cos(), angle.sin()
    return cos, sin, torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates channel pairs `(i, i + head_dim / 2)` of `x (..., T, head_dim)` by the angles."""
    first, second = full(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` by the factors of `rotary_pairs`: `x cos + swapped sin`, the channels of a pair exchanged in `swapped`.

    Nothing is put together here or in the gradient, so that a compiler makes one pass over memory of either.
    """
    wide = full(x)
    swapped = wide.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return (wide * cos + swapped * sin).to(x.dtype)
