"""`finish` as one Triton kernel: a program a norm, everything it reads read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _finish(
    o,
    u,
    skip,
    z,
    weight,
    out,
    N,
    width,
    groups,
    o_row,
    u_row,
    z_row,
    eps,
    COLUMNS: tl.constexpr,
    SKIP: tl.constexpr,
    BEFORE: tl.constexpr,
):
    """Row `pid // groups` of the tokens, its group `pid % groups` of `N` channels in heads of `width`."""
    pid = tl.program_id(0)
    token = (pid // groups).to(tl.int64)
    i = tl.arange(0, COLUMNS)
    inside = i < N
    place = (pid % groups) * N + i
    y = tl.load(o + token * o_row + place, mask=inside, other=0).to(tl.float32)
    if SKIP:
        shown = tl.load(u + token * u_row + place, mask=inside, other=0).to(tl.float32)
        y += tl.load(skip + place // width, mask=inside, other=0).to(tl.float32) * shown
    gate = tl.load(z + token * z_row + place, mask=inside, other=0).to(tl.float32)
    gate = gate / (1 + tl.exp(-gate))
    if BEFORE:
        y = y * gate
    y = y * tl.rsqrt(tl.sum(y * y, 0) / N + eps)
    y = y * tl.load(weight + i, mask=inside, other=0).to(tl.float32)
    if not BEFORE:
        y = y * gate
    tl.store(out + pid.to(tl.int64) * N + i, y.to(out.dtype.element_ty), mask=inside)


def _rows(x: Tensor) -> Tensor:
    """`x`, or a copy of it, with the channels of a token together and tokens at equal distances."""
    batch, length, _, width = x.shape
    if x.stride(3) != 1 or x.stride(2) != width or (batch > 1 and x.stride(0) != length * x.stride(1)):
        return x.contiguous()
    return x


def finish(
    o: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    *,
    before: bool,
    u: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """`architectures.kernels.finish.plain`."""
    batch, length, heads, width = o.shape
    groups = 1 if before else heads
    size = heads * width // groups
    out = torch.empty(batch, length, heads * width, device=o.device, dtype=z.dtype)
    columns = triton.next_power_of_2(size)
    skipped = u is not None and skip is not None
    o, z = _rows(o), _rows(z)
    shown = o if u is None else _rows(u)
    _finish[(batch * length * groups,)](
        o,
        shown,
        skip if skipped else weight,
        z,
        weight,
        out,
        size,
        width,
        groups,
        o.stride(1),
        shown.stride(1),
        z.stride(1),
        eps,
        COLUMNS=columns,
        SKIP=skipped,
        BEFORE=before,
        num_warps=max(1, min(8, columns // 256)),
    )
    return out
