"""How a recurrent mixer ends: skip, gate and RMSNorm in one sweep over memory, in inference on a GPU.

    before:  y = norm((o + D u) SiLU(z)) w          (Mamba-2, over the inner width)
    after:   y = norm(o) w SiLU(z)                  (the delta rules, over each head)

    norm(x) = x / sqrt(mean(x^2) + eps), all of it in float32

`plain` is the definition. `fused` has one kernel that reads each tensor once, where torch's operations write and read
four to six in float32 between them; it is used once `approve` has compared them in this process.

Shapes: `o`, `u`, `z` `(B, T, H, P)`, the last two dimensions adjacent in memory; `skip (H,)`; `weight (H P,)` for
`before`, `(P,)` for `after`. Returned `(B, T, H P)` in the dtype of `z`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import HALF, full

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""Relative error in the Frobenius norm against the definition in float64."""

_approved: set[torch.dtype] = set()


def plain(
    o: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    *,
    before: bool,
    u: Tensor | None = None,
    skip: Tensor | None = None,
) -> Tensor:
    """The definition."""
    y, gate = full(o), F.silu(full(z))
    if u is not None and skip is not None:
        y = torch.addcmul(y, full(skip)[:, None], full(u))
    if before:
        y = (y * gate).flatten(2)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight
    else:
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight * gate).flatten(2)
    return y.to(z.dtype)


def fused(o: Tensor, z: Tensor, weight: Tensor, eps: float, **options: Any) -> Tensor:
    """`plain`, with its options, as one Triton kernel."""
    from .finish_triton import finish

    return finish(o, z, weight, eps, **options)


def usable(o: Tensor) -> bool:
    """Whether the kernel stands for the definition here: on a GPU, in half precision, without gradients, approved."""
    return o.is_cuda and o.dtype in _approved and o.shape[1] > 1 and not torch.is_grad_enabled()


@torch.no_grad()
def approve(device: torch.device, dtype: torch.dtype) -> str:
    """Compares both forms of the kernel with the definition in float64, and lets it be used; a line that says how."""
    if device.type != "cuda" or dtype not in HALF or importlib.util.find_spec("triton") is None:
        return "finish: the definition"
    try:
        error = max(error_of(device, dtype, before=before) for before in (True, False))
    except Exception as reason:  # a kernel may fail in any way; it is then not used
        return f"finish triton: {type(reason).__name__}: {(str(reason) or 'no message').splitlines()[0][:200]}: refused"
    if not error <= TOLERANCE[dtype]:
        return f"finish triton: error {error:.1e}: refused"
    _approved.add(dtype)
    return f"finish triton: error {error:.1e}: accepted"


def withdraw() -> None:
    """Undoes `approve`."""
    _approved.clear()


def error_of(device: torch.device, dtype: torch.dtype, *, before: bool) -> float:
    """The relative error of the kernel on drawn tensors, parts of wider ones as in a mixer."""
    batch, length, heads, width = 2, 5, 3, 40
    size = heads * width
    wide = torch.randn(batch, length, 3 * size + 8, device=device).to(dtype)
    z, u = (wide[..., start : start + size].unflatten(-1, (heads, width)) for start in (0, size))
    o = torch.randn(batch, length, heads, width, device=device).to(dtype)
    weight = torch.rand(size if before else width, device=device).to(dtype) + 0.5
    skip = torch.randn(heads, device=device).to(dtype)
    extra = {"u": u, "skip": skip} if before else {}
    found = fused(o, z, weight, 1e-5, before=before, **extra)
    exact = {name: value.double() for name, value in extra.items()}
    expected = plain(o.double(), z.double(), weight.double(), 1e-5, before=before, **exact)
    error = float((found.double() - expected).norm() / expected.norm())
    return error if error == error else float("inf")
