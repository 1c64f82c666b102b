"""One decoding step of gated attention on a GPU: every program looks at its row's gate and stops where it is shut.

Four launches, the same whatever the gates say: the query projection with its rotation, attention over pieces of the
cache, the pieces' combination, the output projection. A shut row reads one byte in each and writes a zero in the last.
Sums and softmax are in float32.

Shapes: `B` sequences, `D` channels, `S` tokens seen, `H` heads of `d`, `P` pieces of the cache.
"""

from __future__ import annotations

import functools
import warnings

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.errors import TritonError

from .amor_decode import Angles, Cached, masked

ROWS, COLUMNS = 16, 256
"""A program's tile of a weight matrix."""
KEYS = 64
"""Keys that a program reads at a time."""
PIECES = 64
"""Most pieces that one head's cache is cut into."""


@triton.jit
def _query(
    x, weight, cos, sin, fire, q,
    WIDTH: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, ROTATE: tl.constexpr,
    LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`q[b, h] = RoPE(W_Q[h] x[b])`, `(B, H, d)`, `d = 2 PAIRS`; one program a row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    if tl.load(fire + row) != 0:
        lane, column = tl.arange(0, LANES), tl.arange(0, COLUMNS)
        here = lane < PAIRS
        first, second = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
        start = weight + head * 2 * PAIRS * WIDTH
        for offset in range(0, WIDTH, COLUMNS):
            inside = offset + column < WIDTH
            value = tl.load(x + row * WIDTH + offset + column, mask=inside, other=0.0).to(tl.float32)
            place = lane[:, None] * WIDTH + offset + column[None, :]
            mask = here[:, None] & inside[None, :]
            one = tl.load(start + place, mask=mask, other=0.0).to(tl.float32)
            two = tl.load(start + PAIRS * WIDTH + place, mask=mask, other=0.0).to(tl.float32)
            first += tl.sum(one * value[None, :], axis=1)
            second += tl.sum(two * value[None, :], axis=1)
        place = q + (row * HEADS + head) * 2 * PAIRS + lane
        if ROTATE:
            c = tl.load(cos + lane, mask=here, other=1.0)
            s = tl.load(sin + lane, mask=here, other=0.0)
            tl.store(place, first * c - second * s, mask=here)
            tl.store(place + PAIRS, second * c + first * s, mask=here)
        else:
            tl.store(place, first, mask=here)
            tl.store(place + PAIRS, second, mask=here)


@triton.jit
def _attend(
    q, keys, values, fire, part, length, room, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PIECES: tl.constexpr,
    LANES: tl.constexpr, KEYS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Softmax attention over one piece of `CHUNKS KEYS` keys: `part[b, h, p] = (max, sum of weights, values)`."""
    row, head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if tl.load(fire + row) != 0:
        lane, index = tl.arange(0, LANES), tl.arange(0, KEYS)
        here = lane < WIDTH
        line = row * HEADS + head
        query = tl.load(q + line * WIDTH + lane, mask=here, other=0.0) * scale
        top, total = tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32)
        sums = tl.zeros([LANES], tl.float32)
        base = line.to(tl.int64) * room * WIDTH
        for chunk in range(0, CHUNKS):
            place = (piece * CHUNKS + chunk) * KEYS + index
            seen = place < length
            mask = seen[:, None] & here[None, :]
            place = base + place[:, None] * WIDTH + lane[None, :]
            key = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
            score = tl.where(seen, tl.sum(key * query[None, :], axis=1), -1e30)
            higher = tl.maximum(top, tl.max(score, axis=0))
            weight = tl.where(seen, tl.exp(score - higher), 0.0)
            value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
            fade = tl.exp(top - higher)
            sums = sums * fade + tl.sum(weight[:, None] * value, axis=0)
            total = total * fade + tl.sum(weight, axis=0)
            top = higher
        place = part + (line * PIECES + piece) * (WIDTH + 2)
        tl.store(place + tl.arange(0, 1), top)
        tl.store(place + 1 + tl.arange(0, 1), total)
        tl.store(place + 2 + lane, sums, mask=here)


@triton.jit
def _combine(
    part, fire, o, pieces,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The first `pieces` of one row and head as one softmax, `o (B, H, d)`."""
    row, head = tl.program_id(0), tl.program_id(1)
    if tl.load(fire + row) != 0:
        lane, index = tl.arange(0, LANES), tl.arange(0, PIECES)
        here, used = lane < WIDTH, index < pieces
        line = row * HEADS + head
        place = part + (line * PIECES + index) * (WIDTH + 2)
        top = tl.load(place, mask=used, other=-1e30)
        fade = tl.exp(top - tl.max(top, axis=0))
        total = tl.sum(fade * tl.load(place + 1, mask=used, other=0.0), axis=0)
        sums = tl.load(place[:, None] + 2 + lane[None, :], mask=used[:, None] & here[None, :], other=0.0)
        tl.store(o + line * WIDTH + lane, tl.sum(fade[:, None] * sums, axis=0) / total, mask=here)


@triton.jit
def _project(
    x, weight, fire, y,
    WIDTH: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`y[b, rows] = W_O[rows] x[b]`, zero where the gate is shut; one program a row and tile of outputs."""
    row, lane = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    here = lane < HEIGHT
    if tl.load(fire + row) != 0:
        total, column = tl.zeros([ROWS], tl.float32), tl.arange(0, COLUMNS)
        for offset in range(0, WIDTH, COLUMNS):
            inside = offset + column < WIDTH
            value = tl.load(x + row * WIDTH + offset + column, mask=inside, other=0.0)
            mask = here[:, None] & inside[None, :]
            tile = tl.load(weight + lane[:, None] * WIDTH + offset + column[None, :], mask=mask, other=0.0)
            total += tl.sum(tile.to(tl.float32) * value[None, :], axis=1)
        tl.store(y + row * HEIGHT + lane, total.to(y.dtype.element_ty), mask=here)
    else:
        tl.store(y + row * HEIGHT + lane, tl.zeros([ROWS], y.dtype.element_ty), mask=here)


def kernel(query: Tensor, out: Tensor, x: Tensor, fire: Tensor, cached: Cached, angles: Angles | None) -> Tensor:
    """As `amor_decode.masked`, from the weights `query (D, D)` and `out (D, D)`; no host synchronisation."""
    batch, width = x.shape
    _, heads, room, head_dim = cached.keys.shape
    assert cached.keys.is_contiguous()
    assert cached.values.is_contiguous()
    x, fire = x.contiguous(), fire.to(torch.uint8)
    chunks = triton.next_power_of_2(triton.cdiv(cached.length, KEYS * PIECES))
    pieces = triton.cdiv(cached.length, KEYS * chunks)
    q = torch.empty(batch, heads, head_dim, device=x.device, dtype=torch.float32)
    part = torch.empty(batch, heads, PIECES, head_dim + 2, device=x.device, dtype=torch.float32)
    o, y = torch.empty_like(q), torch.empty(batch, out.shape[0], device=x.device, dtype=x.dtype)
    cos, sin = (x, x) if angles is None else (angle.float().contiguous() for angle in angles)
    lanes = triton.next_power_of_2(head_dim)
    _query[batch, heads](
        x, query.contiguous(), cos, sin, fire, q,
        WIDTH=width, PAIRS=head_dim // 2, HEADS=heads, ROTATE=angles is not None, LANES=lanes // 2, COLUMNS=COLUMNS,
    )  # fmt: skip
    _attend[batch, heads, pieces](
        q, cached.keys, cached.values, fire, part, cached.length, room, head_dim**-0.5,
        HEADS=heads, WIDTH=head_dim, PIECES=PIECES, LANES=lanes, KEYS=KEYS, CHUNKS=chunks,
    )  # fmt: skip
    _combine[batch, heads](part, fire, o, pieces, HEADS=heads, WIDTH=head_dim, PIECES=PIECES, LANES=lanes)
    _project[batch, triton.cdiv(out.shape[0], ROWS)](
        o, out.contiguous(), fire, y, WIDTH=heads * head_dim, HEIGHT=out.shape[0], ROWS=ROWS, COLUMNS=COLUMNS
    )
    return y


def usable(weight: Tensor, cached: Cached) -> bool:
    """Whether the kernel may run: even heads, contiguous caches, and it agreed with `masked` on this device."""
    keys = cached.keys
    if keys.shape[3] % 2 or not (keys.is_contiguous() and cached.values.is_contiguous()):
        return False
    return agrees(weight.device, weight.dtype, keys.dtype, keys.shape[3])


@functools.cache
def agrees(device: torch.device, dtype: torch.dtype, cache: torch.dtype, head_dim: int) -> bool:
    """Runs the kernel and the definition once on random numbers, some rows shut, over more than one piece of cache.

    False, with a warning, where Triton cannot build the kernel here. The global generators are left as they were.
    """
    heads, batch, length = 3, 4, 300
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    width = heads * head_dim
    wide = [nn.utils.skip_init(nn.Linear, width, width, bias=False, device=device) for _ in range(2)]
    x, fire = normal(batch, width).to(dtype), torch.tensor([True, False, True, False], device=device)
    keys, values = (normal(batch, heads, length + 7, head_dim).to(cache) for _ in range(2))
    cached, angle = Cached(keys, values, length), normal(1, head_dim // 2)
    angles = (angle.cos(), angle.sin())
    with torch.no_grad():
        narrow = [(normal(width, width) * width**-0.5).to(dtype) for _ in range(2)]
        for layer, weight in zip(wide, narrow, strict=True):
            layer.weight.copy_(weight)
        try:
            found = kernel(narrow[0], narrow[1], x, fire, cached, angles)
        except TritonError as error:
            warnings.warn(f"the decoding kernel cannot be built here: {str(error).splitlines()[0]}", stacklevel=2)
            return False
        expected = masked(wide[0], wide[1], x.float(), fire, cached, angles)
    apart = float((found.float() - expected).abs().max() / expected.abs().max())
    return apart < (1e-4 if dtype == torch.float32 else 2e-2)
