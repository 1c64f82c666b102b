"""The short convolution with its activation as two Triton kernels, one each way, that read and write memory once.

    p_t = sum_i w_i x_{t-K+1+i} (+ b),    y_t = SiLU(p_t), or p_t
    g_t = y'(p_t) dy_t,    dx_t = sum_i w_i g_{t+K-1-i},    dw_i = sum_t g_t x_{t-K+1+i},    db = sum_t g_t

Sequences are cut into segments. A program walks `ROWS` of them side by side, token by token, for `COLUMNS` channels:
the last K inputs, the last K values of g and the weights stay in registers, so only the K - 1 tokens before a segment
and, backward, after it are read twice. Backward computes p again. Each program writes its sums for w and b once; one
sum over programs follows, so gradients are the same in every run.

Arithmetic is in float32, in float64 where x is. `x` and `dy (B, T, C)` have any strides over batch and tokens; loads
are of `UNIT` channels, 8 bytes in half precision, where these and C are multiples of it.
"""

# mypy: disable-error-code="assignment"
# Tuples that grow, which Triton unrolls.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8
"""The widest kernel K; wider ones would not stay in registers."""
UNIT = 4
"""Channels of a thread: with 8 the backward pass, at K 4 and with a bias, needs twice the 126 registers it has."""
WARPS = 4
COLUMNS = 64
"""Channels of a tile, at most: 128 bytes in half precision."""
LENGTHS = (32, 16, 8)
"""Tokens of a segment: the first of these that makes `PROGRAMS` programs, else the last."""
PROGRAMS = 512
"""About four for each multiprocessor of a large GPU."""
FORWARD, BACKWARD = 8, 4
"""Tokens whose loads are under way together; both divide every length."""


@triton.jit
def _place(units, rows, each, UNIT: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of one program: its number among those of its channels; the sequences and first tokens of its segments; its
    channels; which of these exist, and which of the tile.

    Neighbouring programs take neighbouring channels: rows that are not aligned to cache lines are still read once.
    """
    channels = units * UNIT
    across = tl.cdiv(channels, COLUMNS)
    number = tl.program_id(0) // across
    segment = number * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    here = (segment < rows)[:, None] & (channel < channels)[None, :]
    return number, (segment // each).to(tl.int64), (segment % each) * LENGTH, channel, channel < channels, here


@triton.jit
def _weights(w, channel, exists, K: tl.constexpr, SUM: tl.constexpr):
    found = ()
    for i in tl.static_range(K):
        found = found + (tl.load(w + channel * K + i, mask=exists, other=0).to(SUM)[None, :],)
    return found


@triton.jit
def _tiles(start, stride, token, T, here, COUNT: tl.constexpr):
    """`COUNT` tiles, one token after the other from `token` on, zero outside the sequence."""
    found = ()
    for j in tl.static_range(COUNT):
        inside = (token + j >= 0) & (token + j < T)
        found = found + (tl.load(start + j * stride, mask=here & inside[:, None], other=0),)
    return found


@triton.jit
def _convolve(weights, window, bias, K: tl.constexpr):
    p = bias + weights[0] * window[0]
    for i in tl.static_range(1, K):
        p += weights[i] * window[i]
    return p


@triton.jit
def _forward(
    x, w, b, y, T, units, rows, each, x_batch, x_token,
    K: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, SUM: tl.constexpr, UNIT: tl.constexpr,
    LENGTH: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`y`, contiguous. `units` and the strides count `UNIT` elements; `each`: segments of a sequence."""
    _, batch, first, channel, exists, here = _place(units, rows, each, UNIT, LENGTH, ROWS, COLUMNS)
    stride, channels = x_token * UNIT, units * UNIT
    source = x + ((batch * x_batch + first.to(tl.int64) * x_token) * UNIT)[:, None] + channel[None, :]
    target = y + ((batch * T + first) * channels)[:, None] + channel[None, :]
    weights = _weights(w, channel, exists, K, SUM)
    bias = tl.zeros([1, COLUMNS], SUM)
    if BIAS:
        bias = tl.load(b + channel, mask=exists, other=0).to(SUM)[None, :]
    window = ()
    past = _tiles(source - (K - 1) * stride, stride, first - (K - 1), T, here, K - 1)
    for i in tl.static_range(K - 1):
        window = window + (past[i].to(SUM),)
    for start in range(0, LENGTH, CHUNK):
        tiles = _tiles(source + start * stride, stride, first + start, T, here, CHUNK)
        for j in tl.static_range(CHUNK):
            window = window + (tiles[j].to(SUM),)
            p = _convolve(weights, window, bias, K)
            window = window[1:]
            if SILU:
                p = p / (1 + tl.exp(-p))
            inside = here & (first + start + j < T)[:, None]
            tl.store(target + (start + j) * channels, p.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _slope(p, SILU: tl.constexpr):
    """The activation's derivative."""
    if SILU:
        s = 1 / (1 + tl.exp(-p))
        p = s * (1 + p * (1 - s))
    else:
        p = tl.full(p.shape, 1, p.dtype)
    return p


@triton.jit
def _backward(
    x, dy, w, b, dx, sums, T, units, rows, each, x_batch, x_token, dy_batch, dy_token,
    K: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, SUM: tl.constexpr, UNIT: tl.constexpr,
    LENGTH: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`dx`, contiguous, and a row of `sums`: the program's part of `dw (C, K)` and then `db (C,)`.

    At token t the value g_t is known, and with it dx_{t-K+1}; the last ones follow after the segment's end.
    """
    number, batch, first, channel, exists, here = _place(units, rows, each, UNIT, LENGTH, ROWS, COLUMNS)
    x_stride, dy_stride, channels = x_token * UNIT, dy_token * UNIT, units * UNIT
    long = first.to(tl.int64)
    source = x + ((batch * x_batch + long * x_token) * UNIT)[:, None] + channel[None, :]
    grad = dy + ((batch * dy_batch + long * dy_token) * UNIT)[:, None] + channel[None, :]
    target = dx + ((batch * T + first - (K - 1)) * channels)[:, None] + channel[None, :]
    weights = _weights(w, channel, exists, K, SUM)
    bias = tl.zeros([1, COLUMNS], SUM)
    if BIAS:
        bias = tl.load(b + channel, mask=exists, other=0).to(SUM)[None, :]
    zero = tl.zeros([ROWS, COLUMNS], SUM)
    window, late, dw, db = (), (zero,) * (K - 1), (zero,) * K, zero
    past = _tiles(source - (K - 1) * x_stride, x_stride, first - (K - 1), T, here, K - 1)
    for i in tl.static_range(K - 1):
        window = window + (past[i].to(SUM),)
    for start in range(0, LENGTH, CHUNK):
        inputs = _tiles(source + start * x_stride, x_stride, first + start, T, here, CHUNK)
        grads = _tiles(grad + start * dy_stride, dy_stride, first + start, T, here, CHUNK)
        for j in tl.static_range(CHUNK):
            window = window + (inputs[j].to(SUM),)
            g = grads[j].to(SUM) * _slope(_convolve(weights, window, bias, K), SILU)
            more = ()
            for i in tl.static_range(K):
                more = more + (dw[i] + g * window[i],)
            dw = more
            db += g
            late = late + (g,)
            found = weights[0] * late[K - 1]
            for i in tl.static_range(1, K):
                found += weights[i] * late[K - 1 - i]
            window, late = window[1:], late[1:]
            inside = here & ((start + j >= K - 1) & (first + start + j - (K - 1) < T))[:, None]
            tl.store(target + (start + j) * channels, found.to(dx.dtype.element_ty), mask=inside)
    inputs = _tiles(source + LENGTH * x_stride, x_stride, first + LENGTH, T, here, K - 1)
    grads = _tiles(grad + LENGTH * dy_stride, dy_stride, first + LENGTH, T, here, K - 1)
    for j in tl.static_range(K - 1):
        window = window + (inputs[j].to(SUM),)
        g = grads[j].to(SUM) * _slope(_convolve(weights, window, bias, K), SILU)
        late = late + (g,)
        found = weights[0] * late[K - 1]
        for i in tl.static_range(1, K):
            found += weights[i] * late[K - 1 - i]
        window, late = window[1:], late[1:]
        inside = here & (first + LENGTH + j - (K - 1) < T)[:, None]
        tl.store(target + (LENGTH + j) * channels, found.to(dx.dtype.element_ty), mask=inside)
    row = sums + number.to(tl.int64) * channels * (K + BIAS)
    for i in tl.static_range(K):
        tl.store(row + channel * K + i, tl.sum(dw[i], 0), mask=exists)
    if BIAS:
        tl.store(row + channels * K + channel, tl.sum(db, 0), mask=exists)


def _rows(x: Tensor) -> Tensor:
    """`x`, or a copy of it, with a token's channels together."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _plan(x: Tensor, w: Tensor, b: Tensor | None, silu: bool, *others: Tensor) -> tuple[int, int, dict[str, Any]]:
    """The segments of a sequence, programs for the same channels, and what a kernel is compiled for."""
    batch, length, channels = x.shape
    if w.shape[1] > WIDEST:
        raise ValueError(f"the Triton convolution takes kernels of width 1 to {WIDEST}, not {w.shape[1]}")
    columns = max(2 * UNIT, min(COLUMNS, triton.next_power_of_2(channels)))
    rows, across = 32 * WARPS * UNIT // columns, triton.cdiv(channels, columns)
    for tokens in LENGTHS:
        each = triton.cdiv(length, tokens)
        programs = triton.cdiv(batch * each, rows)
        if programs * across >= PROGRAMS:
            break
    aligned = not any(size % UNIT for y in (x, *others) for size in (*y.stride()[:2], channels))
    plan = {
        "K": w.shape[1],
        "BIAS": b is not None,
        "SILU": silu,
        "SUM": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "UNIT": UNIT if aligned else 1,
        "LENGTH": tokens,
        "CHUNK": BACKWARD if others else FORWARD,
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": WARPS,
    }
    return each, programs, plan


def forward(x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> Tensor:
    """`y`, contiguous, from `x (B, T, C)`, `w (C, K)` and `b (C,)` or None. ValueError where K is over `WIDEST`."""
    x, w = _rows(x), w.contiguous()
    batch, length, channels = x.shape
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    each, programs, plan = _plan(x, w, b, silu)
    if y.numel():
        unit, across = plan["UNIT"], triton.cdiv(channels, plan["COLUMNS"])
        with torch.cuda.device_of(x):
            _forward[(programs * across,)](
                x, w, w if b is None else b.contiguous(), y, length, channels // unit, batch * each, each,
                x.stride(0) // unit, x.stride(1) // unit, **plan,
            )  # fmt: skip
    return y


def backward(dy: Tensor, x: Tensor, w: Tensor, b: Tensor | None, silu: bool) -> tuple[Tensor, Tensor]:
    """`dx`, contiguous, and in one vector, in float32 at least, `dw (C, K)` and then, with a bias, `db (C,)`."""
    dy, x, w = _rows(dy), _rows(x), w.contiguous()
    batch, length, channels = x.shape
    dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    each, programs, plan = _plan(x, w, b, silu, dy)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = torch.empty(programs, channels * (plan["K"] + plan["BIAS"]), device=x.device, dtype=wide)
    if dx.numel():
        unit, across = plan["UNIT"], triton.cdiv(channels, plan["COLUMNS"])
        with torch.cuda.device_of(x):
            _backward[(programs * across,)](
                x, dy, w, w if b is None else b.contiguous(), dx, sums, length, channels // unit, batch * each, each,
                x.stride(0) // unit, x.stride(1) // unit, dy.stride(0) // unit, dy.stride(1) // unit, **plan,
            )  # fmt: skip
    return dx, sums.sum(0)
