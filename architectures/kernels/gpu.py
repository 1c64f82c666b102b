"""Triton kernels of flash-linear-attention and mamba-ssm behind the signatures of our own forms.

Imported only on a CUDA device with these packages. Memories `(B, H, K, V)` go in and come out in float32; the final
one is computed only where an initial one is given, so training does not pay for it. torch.compile leaves these calls
alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


@torch.compiler.disable
def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.conv`; in a sequence that continues the inputs before it are put in front, and their outputs dropped."""
    from fla.modules.causal_conv1d import causal_conv1d

    if state is None:
        return causal_conv1d(x.contiguous(), weight[:, 0], bias)[0], None
    past = state[:, 1:].to(x.dtype)
    y = causal_conv1d(torch.cat([past, x], dim=1), weight[:, 0], bias)[0]
    after = torch.cat([state, x[:, -state.shape[1] :].to(state.dtype)], dim=1)[:, -state.shape[1] :]
    return y[:, past.shape[1] :], after


@torch.compiler.disable
def ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`kernels.ssd`."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    b, c = ((y if y.ndim == 4 else y.unsqueeze(2)).to(x.dtype).contiguous() for y in (b, c))
    last = initial is not None
    found = mamba_chunk_scan_combined(
        x.contiguous(), dt, a, b, c, chunk_size=SSD_CHUNK, initial_states=initial, return_final_states=last
    )
    return found if last else (found, None)
