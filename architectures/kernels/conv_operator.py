"""Our Triton convolution (`conv_triton`) as operators of torch, behind the signatures of `conv`.

torch.compile keeps them within its graph. Imported on a CUDA device with Triton. `x` may be a slice of a projection:
it is read by its strides and not copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .conv import continued


@torch.library.custom_op(
    "architectures::fused_conv", mutates_args=(), schema="(Tensor x, Tensor w, Tensor? b, bool silu) -> Tensor"
)
def fused_conv(x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> Tensor:
    """The convolution from nothing of `x (B, T, C)` by `w (C, K)`, with SiLU or without; contiguous."""
    from .conv_triton import forward

    return forward(x, w, b, silu)


@torch.library.custom_op(
    "architectures::fused_conv_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor w, Tensor? b, bool silu) -> (Tensor, Tensor)",
)
def fused_conv_backward(grad: Tensor, x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of w and, if there is one, b in one vector, in float32 at least."""
    from .conv_triton import backward

    return backward(grad, x, w, b, silu)


@fused_conv.register_fake
def _(x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> Tensor:
    return x.new_empty(x.shape)


@fused_conv_backward.register_fake
def _(grad: Tensor, x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> tuple[Tensor, Tensor]:
    size = w.numel() + (0 if b is None else b.numel())
    return x.new_empty(x.shape), x.new_empty(size, dtype=torch.promote_types(x.dtype, torch.float32))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w, b = ctx.saved_tensors
    dx, sums = fused_conv_backward(grad, x, w, b, ctx.silu)
    dw = sums[: w.numel()].reshape(w.shape).to(w.dtype)
    return dx, dw, None if b is None else sums[w.numel() :].to(b.dtype), None


fused_conv.register_autograd(_gradients, setup_context=_keep)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor | None]:
    return continued(lambda inputs: fused_conv(inputs, weight[:, 0], bias, silu), x, weight.shape[-1], state)


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv`."""
    return _run(x, weight, bias, state, silu=False)


def short_conv_silu(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv` with SiLU."""
    return _run(x, weight, bias, state, silu=True)
