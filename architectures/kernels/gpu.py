"""Triton kernels of flash-linear-attention and mamba-ssm behind the signatures of our own forms.

Imported only on a CUDA device with these packages. Memories `(B, H, K, V)` go in and come out in float32.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def _memory(initial: Tensor | None) -> Tensor | None:
    return None if initial is None else initial.float()


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`kernels.delta` with decay."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule(
        q, k, v, g=g, beta=beta, scale=1.0, initial_state=_memory(initial), output_final_state=True
    )


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: None = None, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`kernels.delta` without decay."""
    from fla.ops.delta_rule import chunk_delta_rule

    beta = beta.to(q.dtype)
    return chunk_delta_rule(q, k, v, beta=beta, scale=1.0, initial_state=_memory(initial), output_final_state=True)


def kda(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`kernels.kda`."""
    from fla.ops.kda import chunk_kda

    return chunk_kda(q, k, v, g=g, beta=beta, scale=1.0, initial_state=_memory(initial), output_final_state=True)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`kernels.gla`."""
    from fla.ops.gla import chunk_gla

    return chunk_gla(q, k, v, g=g, scale=1.0, initial_state=_memory(initial), output_final_state=True)


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv`; a sequence that continues takes torch's convolution."""
    if state is not None:
        from .conv import chunked

        return chunked(x, weight, bias, state)
    from fla.modules.conv import causal_conv1d

    result: Any = causal_conv1d(x.contiguous(), weight[:, 0], bias)
    return (result[0] if isinstance(result, tuple) else result), None


def ssd(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`kernels.ssd`."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    b, c = (y.to(x.dtype).unsqueeze(2).contiguous() for y in (b, c))
    return mamba_chunk_scan_combined(
        x.contiguous(), dt, a, b, c, chunk_size=256, initial_states=initial, return_final_states=True
    )
