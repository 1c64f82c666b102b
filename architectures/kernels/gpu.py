"""Triton kernels of flash-linear-attention and mamba-ssm behind the signatures of our own forms.

Imported only on a CUDA device with these packages. Memories `(B, H, K, V)` go in and come out in float32; the final
one is computed only where an initial one is given, so training does not pay for it. The convolutions are operators that
torch.compile keeps within its graph; it breaks the graph around the other calls.

Slices of a projection go to the convolution and to mamba-ssm as they are, both read by strides.
flash-linear-attention's recurrences copy what is not contiguous themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .conv import continued

SSD_CHUNK = 128
"""Tokens of a chunk in mamba-ssm's scan."""


def _memory(initial: Tensor | None) -> Tensor | None:
    return None if initial is None else initial.float()


@torch.compiler.disable
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.delta` with decay."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    start, last = _memory(initial), initial is not None
    return chunk_gated_delta_rule(q, k, v, g=g, beta=beta, scale=1.0, initial_state=start, output_final_state=last)


@torch.compiler.disable
def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: None = None, initial: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.delta` without decay."""
    from fla.ops.delta_rule import chunk_delta_rule

    start, last, beta = _memory(initial), initial is not None, beta.to(q.dtype)
    return chunk_delta_rule(q, k, v, beta=beta, scale=1.0, initial_state=start, output_final_state=last)


@torch.compiler.disable
def kda(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.kda`."""
    from fla.ops.kda import chunk_kda

    start, last = _memory(initial), initial is not None
    return chunk_kda(q, k, v, g=g, beta=beta, scale=1.0, initial_state=start, output_final_state=last)


@torch.compiler.disable
def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """`kernels.gla`."""
    from fla.ops.gla import chunk_gla

    return chunk_gla(q, k, v, g=g, scale=1.0, initial_state=_memory(initial), output_final_state=initial is not None)


@torch.library.custom_op(
    "architectures::causal_conv", mutates_args=(), schema="(Tensor x, Tensor w, Tensor? b, str? act) -> Tensor"
)
def causal_conv(x: Tensor, w: Tensor, b: Tensor | None, act: str | None) -> Tensor:
    """`act(conv(x))` from nothing, `x (B, T, C)` with any strides, `w (C, K)`; the output contiguous."""
    from fla.modules.causal_conv1d import causal_conv1d_fwd

    return causal_conv1d_fwd(x=x, weight=w, bias=b, residual=None, activation=act)[0]


@torch.library.custom_op(
    "architectures::causal_conv_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor w, Tensor? b, str? act) -> Tensor[]",
)
def causal_conv_backward(grad: Tensor, x: Tensor, w: Tensor, b: Tensor | None, act: str | None) -> list[Tensor]:
    """The gradients of x, w and, if there is one, b. What stands before the activation is computed again."""
    from fla.modules.causal_conv1d import causal_conv1d_bwd

    found = causal_conv1d_bwd(x=x, dy=grad, dht=None, weight=w.contiguous(), bias=b, activation=act)
    return [gradient.contiguous() for gradient in found[:3] if gradient is not None]


@causal_conv.register_fake
def _(x: Tensor, w: Tensor, b: Tensor | None, act: str | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@causal_conv_backward.register_fake
def _(grad: Tensor, x: Tensor, w: Tensor, b: Tensor | None, act: str | None) -> list[Tensor]:
    inputs = (x, w) if b is None else (x, w, b)
    return [torch.empty_like(y, memory_format=torch.contiguous_format) for y in inputs]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.act = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w, b = ctx.saved_tensors
    dx, dw, *db = causal_conv_backward(grad, x, w, b, ctx.act)
    return dx, dw, db[0] if db else None, None


causal_conv.register_autograd(_gradients, setup_context=_keep)


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None, act: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv`."""
    return continued(lambda inputs: causal_conv(inputs, weight[:, 0], bias, act), x, weight.shape[-1], state)


def short_conv_silu(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv` with SiLU, in one kernel."""
    return short_conv(x, weight, bias, state, "silu")


@torch.compiler.disable
def ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.ssd`."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    b, c = ((y if y.ndim == 4 else y.unsqueeze(2)).to(x.dtype) for y in (b, c))
    last = initial is not None
    found = mamba_chunk_scan_combined(
        x, dt, a, b, c, chunk_size=SSD_CHUNK, initial_states=initial, return_final_states=last
    )
    return found if last else (found, None)
