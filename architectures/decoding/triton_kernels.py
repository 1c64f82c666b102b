"""Triton kernels of one decoding step; `triton_ops` launches them, `plain` says what they compute.

A step is bound by the bytes it reads, so every kernel reads its weights or its cache once, in one sweep, and everything
that is small is recomputed by each program instead of being passed through memory. A gate that is shut ends its
kernels before they read anything.

`CHAIN`: the kernel was launched before the one ahead of it had finished (programmatic dependent launch). It loads what
no kernel of the same step writes, its weights and its recurrent state, and then waits; every program waits, so that a
finished kernel means that all before it have finished.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    """float32 as `dtype` keeps it."""
    return x.to(dtype).to(tl.float32)


@triton.jit
def _softplus(x):
    return tl.where(x > 20, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _announce(CHAIN: tl.constexpr):
    """The next kernel may be launched once all programs of this one run."""
    if CHAIN:
        gdc_launch_dependents()


@triton.jit
def _await(CHAIN: tl.constexpr):
    """What the kernels before this one wrote is there."""
    if CHAIN:
        gdc_wait()


@triton.jit
def _normalised(x, norm, k, inside, K, eps, dtype: tl.constexpr):
    scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    weight = tl.load(norm + k, mask=inside, other=0).to(tl.float32)
    return _rounded(x * scale * weight, dtype)


@triton.jit
def project(
    x,
    weight,
    out,
    norm,
    scale,
    fire,
    K,
    N,
    x_row,
    out_row,
    eps,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM: tl.constexpr,
    SWIGLU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SCALE: tl.constexpr,
    FIRE: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """`ROWS` outputs of all sequences: their weights are loaded once, whole rows at a time."""
    _announce(CHAIN)
    wanted = 1
    if FIRE:
        _await(CHAIN)
        wanted = 0
        for row in tl.static_range(B):
            wanted += tl.load(fire + row).to(tl.int32)
    if wanted > 0:
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        k = tl.arange(0, COLUMNS)
        inside = k < K
        tile = (n[:, None] < N) & inside[None, :]
        place = n[:, None] * K + k[None, :]
        w = tl.load(weight + place, mask=tile, other=0)
        dtype: tl.constexpr = out.dtype.element_ty
        if SWIGLU:
            w_value = tl.load(weight + N * K + place, mask=tile, other=0)
        if not FIRE:
            _await(CHAIN)
        for row in tl.static_range(B):
            read = tl.load(x + row * x_row + k, mask=inside, other=0).to(tl.float32)
            if NORM:
                read = _normalised(read, norm, k, inside, K, eps, weight.dtype.element_ty)
            y = _rounded(tl.sum(w.to(tl.float32) * read[None, :], 1), dtype)
            if SWIGLU:
                value = _rounded(tl.sum(w_value.to(tl.float32) * read[None, :], 1), dtype)
                y = _rounded(_rounded(_silu(y), dtype) * value, dtype)
            keep = n < N
            if SCALE:
                y = _rounded(y * tl.load(scale + n, mask=keep, other=0).to(tl.float32), dtype)
            if FIRE:
                keep = keep & (tl.load(fire + row) > 0)
            target = out + row * out_row + n
            if RESIDUAL:
                y += tl.load(target, mask=keep, other=0).to(tl.float32)
            tl.store(target, y.to(dtype), mask=keep)


@triton.jit
def normed(x, out, norm, K, x_row, out_row, eps, COLUMNS: tl.constexpr, CHAIN: tl.constexpr):
    """One sequence."""
    _announce(CHAIN)
    _await(CHAIN)
    row, k = tl.program_id(0), tl.arange(0, COLUMNS)
    inside = k < K
    read = tl.load(x + row * x_row + k, mask=inside, other=0).to(tl.float32)
    y = _normalised(read, norm, k, inside, K, eps, out.dtype.element_ty)
    tl.store(out + row * out_row + k, y, mask=inside)


@triton.jit
def entropy_partials(
    x,
    weight,
    partials,
    norm,
    K,
    N,
    x_row,
    eps,
    programs,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """Of `ROWS` logits l: their maximum m, `sum exp(l - m)` and `sum exp(l - m) l`; no logit is stored."""
    _announce(CHAIN)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, COLUMNS)
    inside = k < K
    real = n < N
    w = tl.load(weight + n[:, None] * K + k[None, :], mask=real[:, None] & inside[None, :], other=0)
    _await(CHAIN)
    for row in tl.static_range(B):
        read = tl.load(x + row * x_row + k, mask=inside, other=0).to(tl.float32)
        if NORM:
            read = _normalised(read, norm, k, inside, K, eps, weight.dtype.element_ty)
        logits = tl.sum(w.to(tl.float32) * read[None, :], 1).to(weight.dtype.element_ty).to(tl.float32)
        most = tl.max(tl.where(real, logits, float("-inf")), 0)
        e = tl.where(real, tl.exp(logits - most), 0.0)
        target = partials + (row * programs + tl.program_id(0)) * 3
        tl.store(target, most)
        tl.store(target + 1, tl.sum(e, 0))
        tl.store(target + 2, tl.sum(e * logits, 0))


@triton.jit
def entropy(partials, score, programs, log_size, BLOCK: tl.constexpr, CHAIN: tl.constexpr):
    """`H = m + log Z - (sum exp(l - m) l) / Z` of one sequence, over `log V`."""
    _announce(CHAIN)
    _await(CHAIN)
    row = tl.program_id(0)
    lowest = -1e30
    most = tl.full([BLOCK], lowest, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, programs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < programs
        source = partials + (row * programs + i) * 3
        m = tl.load(source, mask=inside, other=lowest)
        highest = tl.maximum(most, m)
        old, new = tl.exp(most - highest), tl.exp(m - highest)
        total = total * old + tl.load(source + 1, mask=inside, other=0) * new
        weighted = weighted * old + tl.load(source + 2, mask=inside, other=0) * new
        most = highest
    highest = tl.max(most, 0)
    factor = tl.exp(most - highest)
    z = tl.sum(total * factor, 0)
    tl.store(score + row, (highest + tl.log(z) - tl.sum(weighted * factor, 0) / z) / log_size)


@triton.jit
def route(
    hidden,
    x,
    bias,
    out,
    skip,
    skip_bias,
    score,
    norm,
    R,
    K,
    x_row,
    eps,
    UNITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One sequence's router, after its first linear map."""
    _announce(CHAIN)
    _await(CHAIN)
    row = tl.program_id(0)
    r, k = tl.arange(0, UNITS), tl.arange(0, COLUMNS)
    unit, inside = r < R, k < K
    h = tl.load(hidden + row * R + r, mask=unit, other=0) + tl.load(bias + r, mask=unit, other=0).to(tl.float32)
    bent = tl.sum(_silu(h) * tl.load(out + r, mask=unit, other=0).to(tl.float32), 0)
    read = tl.load(x + row * x_row + k, mask=inside, other=0).to(tl.float32)
    if NORM:
        read = _normalised(read, norm, k, inside, K, eps, x.dtype.element_ty)
    straight = tl.sum(read * tl.load(skip + k, mask=inside, other=0).to(tl.float32), 0)
    tl.store(score + row, bent + straight + tl.load(skip_bias).to(tl.float32))


@triton.jit
def decide(
    score,
    threshold,
    fire,
    count,
    position,
    fires,
    fires_row,
    SCORED: tl.constexpr,
    DIAL: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One sequence's gate."""
    _announce(CHAIN)
    _await(CHAIN)
    row = tl.program_id(0)
    if DIAL:
        decision = tl.load(fires + row * fires_row + tl.load(position)).to(tl.int32)
        tl.store(fire + row, decision.to(fire.dtype.element_ty))
    elif SCORED:
        decision = (tl.load(score + row) > tl.load(threshold)).to(tl.int32)
        tl.store(fire + row, decision.to(fire.dtype.element_ty))
    else:
        decision = tl.load(fire + row).to(tl.int32)
    tl.store(count + row, tl.load(count + row) + decision)


@triton.jit
def convolve(
    x,
    weight,
    bias,
    state,
    out,
    position,
    C,
    x_row,
    out_row,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """`BLOCK` channels of one sequence; the ring's slot for the new input is read by nobody."""
    _announce(CHAIN)
    _await(CHAIN)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    inside = c < C
    place = tl.load(position)
    ring = state + row * WIDTH * C + c
    new = tl.load(x + row * x_row + c, mask=inside, other=0)
    tl.store(ring + (place % WIDTH) * C, new.to(state.dtype.element_ty), mask=inside)
    y = new.to(tl.float32) * tl.load(weight + c * WIDTH + WIDTH - 1, mask=inside, other=0).to(tl.float32)
    for lag in tl.static_range(1, WIDTH):
        past = tl.load(ring + ((place + WIDTH - lag) % WIDTH) * C, mask=inside, other=0).to(tl.float32)
        y += past * tl.load(weight + c * WIDTH + WIDTH - 1 - lag, mask=inside, other=0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + c, mask=inside, other=0).to(tl.float32)
    if SILU:
        y = _silu(y)
    tl.store(out + row * out_row + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _turned(x, i, inside, size, cos, sin, dtype: tl.constexpr, TURN: tl.constexpr):
    """Channels `i` of a head, rotated."""
    read = tl.load(x + i, mask=inside, other=0).to(tl.float32)
    if TURN:
        half = size // 2
        other = tl.load(x + (i + half) % size, mask=inside, other=0).to(tl.float32)
        c = tl.load(cos + i % half, mask=inside, other=0)
        s = tl.load(sin + i % half, mask=inside, other=0)
        read = (read * c + tl.where(i < half, -other, other) * s).to(dtype).to(tl.float32)
    return read


@triton.jit
def ssd(
    u,
    b,
    c,
    dt,
    state,
    out,
    log_a,
    dt_bias,
    skip,
    gate,
    cos,
    sin,
    H,
    P,
    N,
    u_row,
    b_row,
    c_row,
    bc_head,
    dt_row,
    gate_row,
    out_row,
    CHANNELS: tl.constexpr,
    STATES: tl.constexpr,
    SKIP: tl.constexpr,
    GATE: tl.constexpr,
    TURN: tl.constexpr,
    READ: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """`CHANNELS` of one head's P channels, with their part of the state."""
    _announce(CHAIN)
    h, row = tl.program_id(0), tl.program_id(2)
    p = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    channel, inside = p < P, n < N
    tile = channel[:, None] & inside[None, :]
    place = ((row * H + h) * P + p[:, None]) * N + n[None, :]
    s = tl.load(state + place, mask=tile, other=0).to(tl.float32)
    _await(CHAIN)
    step = _softplus(tl.load(dt + row * dt_row + h).to(tl.float32) + tl.load(dt_bias + h).to(tl.float32))
    fade = tl.exp(-step * tl.exp(tl.load(log_a + h).to(tl.float32)))
    dtype: tl.constexpr = b.dtype.element_ty
    write = _turned(b + row * b_row + h * bc_head, n, inside, N, cos, sin, dtype, TURN)
    put = tl.load(u + row * u_row + h * P + p, mask=channel, other=0)
    wide = put.to(tl.float32)
    s = fade * s + (step * wide)[:, None] * write[None, :]
    tl.store(state + place, s.to(state.dtype.element_ty), mask=tile)
    if READ:
        query = _turned(c + row * c_row + h * bc_head, n, inside, N, cos, sin, dtype, TURN)
        y = tl.sum(s * query[None, :], 1).to(u.dtype.element_ty).to(tl.float32)
        if SKIP:
            y += tl.load(skip + h).to(tl.float32) * wide
        if GATE:
            y *= _silu(tl.load(gate + row * gate_row + h * P + p, mask=channel, other=0).to(tl.float32))
        tl.store(out + row * out_row + h * P + p, y.to(out.dtype.element_ty), mask=channel)


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def _finished(o, e, inside, E, norm, gate, eps, NORM: tl.constexpr, GATE: tl.constexpr):
    """A head's output after norm and gate."""
    if NORM:
        o = o * tl.rsqrt(tl.sum(o * o, 0) / E + eps) * tl.load(norm + e, mask=inside, other=0).to(tl.float32)
    if GATE:
        o = o * _silu(tl.load(gate + e, mask=inside, other=0).to(tl.float32))
    return o


@triton.jit
def delta(
    q,
    k,
    v,
    strength,
    decay,
    memory,
    out,
    log_a,
    dt_bias,
    norm,
    gate,
    H,
    D,
    E,
    q_row,
    k_row,
    v_row,
    strength_row,
    decay_row,
    gate_row,
    out_row,
    eps,
    beta_scale,
    query_scale,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    SILU: tl.constexpr,
    READ: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One head and its whole memory."""
    _announce(CHAIN)
    h, row = tl.program_id(0), tl.program_id(1)
    i, e = tl.arange(0, KEYS), tl.arange(0, VALUES)
    key, inside = i < D, e < E
    tile = key[:, None] & inside[None, :]
    place = ((row * H + h) * D + i[:, None]) * E + e[None, :]
    s = tl.load(memory + place, mask=tile, other=0)
    _await(CHAIN)
    dtype: tl.constexpr = v.dtype.element_ty
    k_unit = _unit(tl.load(k + row * k_row + h * D + i, mask=key, other=0).to(tl.float32)).to(dtype).to(tl.float32)
    value = tl.load(v + row * v_row + h * E + e, mask=inside, other=0).to(tl.float32)
    beta = beta_scale / (1 + tl.exp(-tl.load(strength + row * strength_row + h).to(tl.float32)))
    rate = _softplus(tl.load(decay + row * decay_row + h).to(tl.float32) + tl.load(dt_bias + h).to(tl.float32))
    s *= tl.exp(-tl.exp(tl.load(log_a + h).to(tl.float32)) * rate)
    change = beta * (value - tl.sum(k_unit[:, None] * s, 0))
    s += k_unit[:, None] * change[None, :]
    tl.store(memory + place, s, mask=tile)
    if READ:
        query = tl.load(q + row * q_row + h * D + i, mask=key, other=0).to(tl.float32)
        if SILU:
            query = _silu(query).to(dtype).to(tl.float32)
        query = (_unit(query).to(dtype).to(tl.float32) * query_scale).to(dtype).to(tl.float32)
        o = tl.sum(query[:, None] * s, 0).to(dtype).to(tl.float32)
        o = _finished(o, e, inside, E, norm, gate + row * gate_row + h * E, eps, True, True)
        tl.store(out + row * out_row + h * E + e, o.to(out.dtype.element_ty), mask=inside)


@triton.jit
def remember(
    k,
    v,
    keys,
    values,
    position,
    cos,
    sin,
    H,
    D,
    room,
    k_row,
    v_row,
    WIDTH: tl.constexpr,
    TURN: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One head's key and value into the caches."""
    _announce(CHAIN)
    _await(CHAIN)
    h, row = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    inside = i < D
    place = ((row * H + h).to(tl.int64) * room + tl.load(position)) * D + i
    key = _turned(k + row * k_row + h * D, i, inside, D, cos, sin, k.dtype.element_ty, TURN)
    value = tl.load(v + row * v_row + h * D + i, mask=inside, other=0)
    tl.store(keys + place, key.to(keys.dtype.element_ty), mask=inside)
    tl.store(values + place, value.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _span(length, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Keys of one split: whole blocks, so that few splits are left empty."""
    return tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK


@triton.jit
def attend_split(
    q,
    keys,
    values,
    partial,
    position,
    fire,
    cos,
    sin,
    H,
    D,
    room,
    q_row,
    scale,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRE: tl.constexpr,
    TURN: tl.constexpr,
    SILU: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One head over one part of the filled cache: maximum, sum of exponentials, weighted values."""
    _announce(CHAIN)
    _await(CHAIN)
    pair, split = tl.program_id(0), tl.program_id(1)
    h, row = pair % H, pair // H
    length = (tl.load(position) + 1).to(tl.int32)
    if FIRE:
        length = length * tl.load(fire + row).to(tl.int32)
    start = split * _span(length, SPLITS, BLOCK)
    stop = tl.minimum(start + _span(length, SPLITS, BLOCK), length)
    if start < stop:
        i = tl.arange(0, WIDTH)
        inside = i < D
        source = q + row * q_row + h * D
        dtype: tl.constexpr = q.dtype.element_ty
        if SILU:
            half = D // 2
            query = _silu(tl.load(source + i, mask=inside, other=0).to(tl.float32)).to(dtype).to(tl.float32)
            if TURN:
                other = tl.load(source + (i + half) % D, mask=inside, other=0).to(tl.float32)
                other = _silu(other).to(dtype).to(tl.float32)
                c = tl.load(cos + i % half, mask=inside, other=0)
                s = tl.load(sin + i % half, mask=inside, other=0)
                query = (query * c + tl.where(i < half, -other, other) * s).to(dtype).to(tl.float32)
        else:
            query = _turned(source, i, inside, D, cos, sin, dtype, TURN)
        query *= scale
        base = pair.to(tl.int64) * room * D
        most = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        weighted = tl.zeros([WIDTH], tl.float32)
        for begin in tl.range(start, stop, BLOCK, num_stages=3):
            t = begin + tl.arange(0, BLOCK)
            seen = t < stop
            tile = seen[:, None] & inside[None, :]
            place = base + t[:, None] * D + i[None, :]
            key = tl.load(keys + place, mask=tile, other=0).to(tl.float32)
            value = tl.load(values + place, mask=tile, other=0).to(tl.float32)
            logits = tl.where(seen, tl.sum(key * query[None, :], 1), float("-inf"))
            highest = tl.maximum(most, tl.max(logits, 0))
            e = tl.exp(logits - highest)
            old = tl.exp(most - highest)
            total = total * old + tl.sum(e, 0)
            weighted = weighted * old + tl.sum(e[:, None] * value, 0)
            most = highest
        target = partial + (pair * SPLITS + split) * (WIDTH + 2)
        one = tl.arange(0, 1)
        tl.store(target + i, weighted)
        tl.store(target + WIDTH + one, most)
        tl.store(target + WIDTH + 1 + one, total)


@triton.jit
def attend_join(
    partial,
    out,
    position,
    fire,
    norm,
    gate,
    H,
    D,
    gate_row,
    out_row,
    eps,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRE: tl.constexpr,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One head's output from its parts."""
    _announce(CHAIN)
    _await(CHAIN)
    pair = tl.program_id(0)
    h, row = pair % H, pair // H
    length = (tl.load(position) + 1).to(tl.int32)
    if FIRE:
        length = length * tl.load(fire + row).to(tl.int32)
    if length > 0:
        i, split = tl.arange(0, WIDTH), tl.arange(0, SPLITS)
        inside = i < D
        used = split * _span(length, SPLITS, BLOCK) < length
        source = partial + (pair * SPLITS + split) * (WIDTH + 2)
        most = tl.load(source + WIDTH, mask=used, other=float("-inf"))
        factor = tl.where(used, tl.exp(most - tl.max(most, 0)), 0.0)
        total = tl.sum(factor * tl.load(source + WIDTH + 1, mask=used, other=0), 0)
        weighted = tl.load(source[:, None] + i[None, :], mask=used[:, None] & inside[None, :], other=0)
        o = tl.sum(factor[:, None] * weighted, 0) / total
        if NORM or GATE:
            o = o.to(gate.dtype.element_ty).to(tl.float32)
        o = _finished(o, i, inside, D, norm, gate + row * gate_row + h * D, eps, NORM, GATE)
        target = out + row * out_row + h * D + i
        if RESIDUAL:
            o = _rounded(o, out.dtype.element_ty) + tl.load(target, mask=inside, other=0).to(tl.float32)
        tl.store(target, o.to(out.dtype.element_ty), mask=inside)


@triton.jit
def choose_part(logits, partials, N, row_stride, parts, BLOCK: tl.constexpr, CHAIN: tl.constexpr):
    """The largest of `BLOCK` logits of one sequence, and where it first stands."""
    _announce(CHAIN)
    _await(CHAIN)
    part, row = tl.program_id(0), tl.program_id(1)
    n = part * BLOCK + tl.arange(0, BLOCK)
    read = tl.load(logits + row * row_stride + n, mask=n < N, other=float("-inf")).to(tl.float32)
    most = tl.max(read, 0)
    first = tl.min(tl.where(read == most, n, N), 0)
    target = partials + (row * parts + part) * 2
    tl.store(target, most)
    tl.store(target + 1, first.to(tl.float32))


@triton.jit
def choose(partials, token, parts, BLOCK: tl.constexpr, CHAIN: tl.constexpr):
    """The largest of the parts, the first of equals; a place below 2^24 is exact in float32."""
    _announce(CHAIN)
    _await(CHAIN)
    row, part = tl.program_id(0), tl.arange(0, BLOCK)
    source = partials + (row * parts + part) * 2
    read = tl.load(source, mask=part < parts, other=float("-inf"))
    first = tl.load(source + 1, mask=part < parts, other=0)
    most = tl.max(read, 0)
    tl.store(token + row, tl.min(tl.where(read == most, first, 16777216.0), 0).to(tl.int64))
