"""The operations of `plain` as Triton kernels: the same signatures, one or two launches each, no host in between.

Up to `MOST` sequences share one sweep over the weights; above that the products are matrix products, and cuBLAS's.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from . import plain
from . import triton_kernels as kernels
from .plain import Angles, Dial, Norm

MOST = 4
"""Sequences that the projection kernels take. Their products are float32 sums off the tensor cores, one sequence after
another: at 1.5B each further sequence costs about 0.4 ms a step, and 16 of them eight times one."""
TILE = 8192
"""Weights that one program of a projection holds at once: 16 KB in bf16 in flight, eight programs a multiprocessor."""
LONG = 2048
"""Above so many inputs a program holds `2 TILE` weights, or it would reload its input for a row or two."""
KEYS = 64
"""Keys in one step of attention."""
CHAIN = True
"""Whether kernels may be launched early, where the device can."""
PROGRAMS = 1024
"""Programs that attention is cut into, about eight on each multiprocessor."""


def _power(n: int) -> int:
    return triton.next_power_of_2(n)


def _tile(inputs: int, outputs: int, sets: int = 1) -> tuple[int, int, int]:
    """Rows and columns of a program's weights, and its warps."""
    columns = _power(inputs)
    size = TILE if columns <= LONG else 2 * TILE
    return max(1, min(_power(outputs), size // (columns * sets))), columns, 4 * size // TILE


def _chained(x: Tensor) -> dict[str, bool]:
    """Whether a kernel is launched before the one ahead of it has finished: on Hopper and later."""
    chain = CHAIN and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    return {"CHAIN": True, "launch_pdl": True} if chain else {"CHAIN": False}


def _norm(norm: Norm | None, other: Tensor) -> tuple[Tensor, float]:
    return (other, 0.0) if norm is None else (norm.weight, norm.eps)


def project(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    norm: Norm | None = None,
    swiglu: bool = False,
    residual: bool = False,
    scale: Tensor | None = None,
    fire: Tensor | None = None,
) -> None:
    """`plain.project`."""
    if len(x) > MOST:
        _many(x, weight, out, norm=norm, swiglu=swiglu, residual=residual, scale=scale, fire=fire)
        return
    (batch, inputs), outputs = x.shape, out.shape[1]
    rows, columns, warps = _tile(inputs, outputs, 2 if swiglu else 1)
    norm_weight, eps = _norm(norm, x)
    kernels.project[(triton.cdiv(outputs, rows),)](
        x,
        weight,
        out,
        norm_weight,
        x if scale is None else scale,
        x if fire is None else fire,
        inputs,
        outputs,
        x.stride(0),
        out.stride(0),
        eps,
        B=batch,
        ROWS=rows,
        COLUMNS=columns,
        NORM=norm is not None,
        SWIGLU=swiglu,
        RESIDUAL=residual,
        SCALE=scale is not None,
        FIRE=fire is not None,
        num_warps=warps,
        **_chained(x),
    )


def _many(x: Tensor, weight: Tensor, out: Tensor, *, norm: Norm | None, **options: object) -> None:
    """The projection of many sequences: a norm, a matrix product, and `plain`'s ending."""
    plain.ending(_products(x, weight, norm).to(out.dtype), out, **options)  # type: ignore[arg-type]


def _products(x: Tensor, weight: Tensor, norm: Norm | None) -> Tensor:
    read = x.to(weight.dtype)
    if norm is not None:
        read = torch.empty(x.shape, device=x.device, dtype=weight.dtype)
        normed(x, norm, read)
    return torch.nn.functional.linear(read, weight)


def normed(x: Tensor, norm: Norm, out: Tensor) -> None:
    """`plain.normed`."""
    size = x.shape[1]
    kernels.normed[(len(x),)](
        x,
        out,
        norm.weight,
        size,
        x.stride(0),
        out.stride(0),
        norm.eps,
        COLUMNS=_power(size),
        num_warps=8,
        **_chained(x),
    )


def entropy(x: Tensor, weight: Tensor, score: Tensor, *, norm: Norm | None = None) -> None:
    """`plain.entropy`, the logits reduced where they are computed."""
    (vocabulary, inputs), batch = weight.shape, len(x)
    if batch > MOST:
        plain.spread(_products(x, weight, norm), score)
        return
    rows, columns, warps = _tile(inputs, vocabulary)
    programs = triton.cdiv(vocabulary, rows)
    partials = torch.empty(batch, programs, 3, device=x.device, dtype=torch.float32)
    norm_weight, eps = _norm(norm, x)
    kernels.entropy_partials[(programs,)](
        x,
        weight,
        partials,
        norm_weight,
        inputs,
        vocabulary,
        x.stride(0),
        eps,
        programs,
        B=batch,
        ROWS=rows,
        COLUMNS=columns,
        NORM=norm is not None,
        num_warps=warps,
        **_chained(x),
    )
    block = min(4096, _power(programs))
    kernels.entropy[(batch,)](
        partials, score, programs, math.log(max(2, vocabulary)), BLOCK=block, num_warps=8, **_chained(x)
    )


def route(
    hidden: Tensor,
    x: Tensor,
    bias: Tensor,
    out: Tensor,
    skip: Tensor,
    skip_bias: Tensor,
    score: Tensor,
    *,
    norm: Norm | None,
) -> None:
    """`plain.route`."""
    (batch, size), units = x.shape, hidden.shape[1]
    norm_weight, eps = _norm(norm, x)
    kernels.route[(batch,)](
        hidden,
        x,
        bias,
        out,
        skip,
        skip_bias,
        score,
        norm_weight,
        units,
        size,
        x.stride(0),
        eps,
        UNITS=_power(units),
        COLUMNS=_power(size),
        NORM=norm is not None,
        num_warps=4,
        **_chained(x),
    )


def decide(
    score: Tensor | None, threshold: Tensor | None, fire: Tensor, count: Tensor, position: Tensor, *, dial: Dial | None
) -> None:
    """`plain.decide`."""
    scored = score is not None and threshold is not None
    fires = fire[:, None] if dial is None else dial.fires
    kernels.decide[(len(fire),)](
        score if scored else fire,
        threshold if scored else fire,
        fire,
        count,
        position,
        fires,
        fires.stride(0),
        SCORED=scored,
        DIAL=dial is not None,
        num_warps=1,
        **_chained(fire),
    )


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, out: Tensor, position: Tensor, *, silu: bool
) -> None:
    """`plain.convolve`."""
    batch, width, channels = state.shape
    block = min(256, _power(channels))
    kernels.convolve[(triton.cdiv(channels, block), batch)](
        x,
        weight,
        x if bias is None else bias,
        state,
        out,
        position,
        channels,
        x.stride(0),
        out.stride(0),
        WIDTH=width,
        BLOCK=block,
        BIAS=bias is not None,
        SILU=silu,
        num_warps=4,
        **_chained(x),
    )


def ssd(
    u: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    state: Tensor,
    out: Tensor,
    *,
    log_a: Tensor,
    dt_bias: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    angles: Angles | None = None,
    read: bool = True,
) -> None:
    """`plain.ssd`."""
    batch, heads, width, size = state.shape
    channels = min(32, _power(width))
    kernels.ssd[(heads, triton.cdiv(width, channels), batch)](
        u,
        b,
        c,
        dt,
        state,
        out,
        log_a,
        dt_bias,
        u if skip is None else skip,
        u if gate is None else gate,
        u if angles is None else angles.cos,
        u if angles is None else angles.sin,
        heads,
        width,
        size,
        u.stride(0),
        b.stride(0),
        c.stride(0),
        b.stride(1) if b.ndim == 3 else 0,
        dt.stride(0),
        0 if gate is None else gate.stride(0),
        out.stride(0),
        CHANNELS=channels,
        STATES=_power(size),
        SKIP=skip is not None,
        GATE=gate is not None,
        TURN=angles is not None,
        READ=read,
        num_warps=4,
        **_chained(u),
    )


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    decay: Tensor,
    memory: Tensor,
    out: Tensor,
    *,
    log_a: Tensor,
    dt_bias: Tensor,
    beta_scale: float,
    norm: Norm,
    gate: Tensor,
    silu_query: bool = False,
    read: bool = True,
) -> None:
    """`plain.delta`."""
    batch, heads, keys, values = memory.shape
    kernels.delta[(heads, batch)](
        q,
        k,
        v,
        strength,
        decay,
        memory,
        out,
        log_a,
        dt_bias,
        norm.weight,
        gate,
        heads,
        keys,
        values,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        strength.stride(0),
        decay.stride(0),
        gate.stride(0),
        out.stride(0),
        norm.eps,
        beta_scale,
        keys**-0.5,
        KEYS=_power(keys),
        VALUES=_power(values),
        SILU=silu_query,
        READ=read,
        num_warps=8,
        **_chained(q),
    )


def remember(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor, *, angles: Angles | None = None
) -> None:
    """`plain.remember`."""
    batch, heads, room, width = keys.shape
    kernels.remember[(heads, batch)](
        k,
        v,
        keys,
        values,
        position,
        k if angles is None else angles.cos,
        k if angles is None else angles.sin,
        heads,
        width,
        room,
        k.stride(0),
        v.stride(0),
        WIDTH=_power(width),
        TURN=angles is not None,
        num_warps=1,
        **_chained(k),
    )


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    position: Tensor,
    *,
    angles: Angles | None = None,
    fire: Tensor | None = None,
    silu_query: bool = False,
    norm: Norm | None = None,
    gate: Tensor | None = None,
    residual: bool = False,
) -> None:
    """`plain.attend`: the filled part of the cache in pieces, then the pieces joined."""
    batch, heads, room, width = keys.shape
    columns = _power(width)
    splits = max(1, min(_power(triton.cdiv(PROGRAMS, batch * heads)), _power(triton.cdiv(room, KEYS))))
    partial = torch.empty(batch * heads, splits, columns + 2, device=q.device, dtype=torch.float32)
    gates = fire if fire is not None else position
    kernels.attend_split[(batch * heads, splits)](
        q,
        keys,
        values,
        partial,
        position,
        gates,
        q if angles is None else angles.cos,
        q if angles is None else angles.sin,
        heads,
        width,
        room,
        q.stride(0),
        width**-0.5,
        SPLITS=splits,
        BLOCK=KEYS,
        WIDTH=columns,
        FIRE=fire is not None,
        TURN=angles is not None,
        SILU=silu_query,
        num_warps=4,
        **_chained(q),
    )
    norm_weight, eps = _norm(norm, q)
    kernels.attend_join[(batch * heads,)](
        partial,
        out,
        position,
        gates,
        norm_weight,
        q if gate is None else gate,
        heads,
        width,
        0 if gate is None else gate.stride(0),
        out.stride(0),
        eps,
        SPLITS=splits,
        BLOCK=KEYS,
        WIDTH=columns,
        FIRE=fire is not None,
        NORM=norm is not None,
        GATE=gate is not None,
        RESIDUAL=residual,
        num_warps=4,
        **_chained(q),
    )


def choose(logits: Tensor, token: Tensor) -> None:
    """`plain.choose`."""
    batch, vocabulary = logits.shape
    block = 1024
    parts = triton.cdiv(vocabulary, block)
    if vocabulary >= 2**24:
        plain.choose(logits, token)
        return
    partials = torch.empty(batch, parts, 2, device=logits.device, dtype=torch.float32)
    kernels.choose_part[(parts, batch)](
        logits, partials, vocabulary, logits.stride(0), parts, BLOCK=block, num_warps=4, **_chained(logits)
    )
    kernels.choose[(batch,)](partials, token, parts, BLOCK=_power(parts), num_warps=4, **_chained(logits))
