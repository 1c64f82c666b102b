"""Softmax attention through PyTorch's kernels, its gradient handed to them as the output lies in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class _LaidAsOutput(torch.autograd.Function):
    """The identity, whose gradient is laid out in memory as its input is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.strides = x.stride()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        if gradient.stride() == ctx.strides:
            return gradient
        laid = torch.empty_strided(gradient.shape, ctx.strides, dtype=gradient.dtype, device=gradient.device)
        return laid.copy_(gradient)


def scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    """`scaled_dot_product_attention` of `q (..., T, d)`, `k`, `v (..., S, d)`: `softmax(q k' / sqrt(d)) v`.

    Whatever layout the gradient of the output comes in, the kernel gets it in the output's own: of cuDNN's (PyTorch
    2.11, an H200) the gradient of the queries was wrong where the two differed. In a compiled step the layouts are the
    compiler's, which leaves a gradient of the output's layout as it is.
    """
    output = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return output
    found: Tensor = _LaidAsOutput.apply(output)
    return found
