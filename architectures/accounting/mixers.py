"""The cost of each mixer of the catalogue, from its resolved parameters. `MIXERS` has the catalogue's names.

D is the model's width; a matrix state's products a token are 2 (write, read), and 3 in the delta rules (also predict).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .cost import Cost, NoFormula, Params, linear, matrix_state, short_conv, softmax_attention, swiglu, vector


def _attention(d: int, p: Params, length: int) -> Cost:
    return linear(d, 4 * d) + softmax_attention(d, length)


def _sliding(d: int, p: Params, length: int) -> Cost:
    return linear(d, 4 * d) + softmax_attention(d, length, p["window"])


def _ema(d: int, p: Params, length: int) -> Cost:
    maps = 3 if p["decay"] == "input" else 2
    return linear(d, maps * d) + vector(d * (p["decay"] != "fixed")) + Cost(recurrent_wide=d)


def _mamba2(d: int, p: Params, length: int) -> Cost:
    inner, n = p["expand"] * d, p["d_state"]
    heads = inner // p["head_dim"]
    return (
        linear(d, 2 * inner + 2 * n + heads)
        + short_conv(inner + 2 * n, p["conv"], bias=True)
        + Cost(recurrent=inner * n, recurrence=4 * inner * n)
        + vector(3 * heads + inner)
        + linear(inner, d)
    )


def _delta_widths(p: Params) -> tuple[int, int, int]:
    """A head's value channels, and the channels of all keys and of all values."""
    d_v = round(p["expand_v"] * p["head_dim"])
    return d_v, p["heads"] * p["head_dim"], p["heads"] * d_v


def _delta_rule(d: int, p: Params) -> Cost:
    """What the delta rules share: q, k, v, beta, short convolution, memory, the heads' norm, output projection."""
    d_v, keys, values = _delta_widths(p)
    return (
        linear(d, 2 * keys + values + p["heads"])
        + short_conv(2 * keys + values, p["conv"])
        + matrix_state(p["heads"], p["head_dim"], d_v, products=3)
        + vector(d_v)
        + linear(values, d)
    )


def _gdn(d: int, p: Params, length: int) -> Cost:
    """With one decay a head (its projection, A_log, dt_bias) and the output gate."""
    _, _, values = _delta_widths(p)
    return _delta_rule(d, p) + linear(d, p["heads"] + values) + vector(2 * p["heads"])


def _delta(d: int, p: Params, length: int) -> Cost:
    return _delta_rule(d, p)


def _kda(d: int, p: Params, length: int) -> Cost:
    """With a decay for each key channel and an output gate, both through a bottleneck of head_dim."""
    _, keys, values = _delta_widths(p)
    rank = p["head_dim"]
    return (
        _delta_rule(d, p)
        + linear(d, rank)
        + linear(rank, keys)
        + vector(p["heads"] + keys)
        + linear(d, rank)
        + linear(rank, values, bias=True)
    )


def _rglru(d: int, p: Params, length: int) -> Cost:
    """Two branches; block-diagonal maps with bias for the input and the recurrence gate; one rate a channel."""
    width = p["width"]
    gates = linear(width / p["blocks"], width, bias=True) * 2
    return (
        linear(d, 2 * width)
        + short_conv(width, p["conv"], bias=True)
        + gates
        + vector(width)
        + Cost(recurrent_wide=width)
        + linear(width, d)
    )


def _gla(d: int, p: Params, length: int) -> Cost:
    heads, rank = p["heads"], p["gate_rank"]
    keys, values = round(p["expand_k"] * d), round(p["expand_v"] * d)
    return (
        linear(d, 2 * keys + 2 * values)
        + linear(d, rank)
        + linear(rank, keys, bias=True)
        + matrix_state(heads, keys // heads, values // heads, products=2)
        + vector(values // heads)
        + linear(values, d)
    )


def _mlp(d: int, p: Params, length: int) -> Cost:
    return swiglu(d, p["d_ff"])


def _shared_attention(d: int, p: Params, length: int) -> Cost:
    """Queries of its own over another layer's cache."""
    core = softmax_attention(d, length)
    return linear(d, 2 * d) + Cost(attention=core.attention)


MIXERS: dict[str, Callable[[int, Params, int], Cost]] = {
    "attention": _attention,
    "sliding": _sliding,
    "ema": _ema,
    "mamba2": _mamba2,
    "gdn": _gdn,
    "delta": _delta,
    "kda": _kda,
    "rglru": _rglru,
    "gla": _gla,
    "mlp": _mlp,
    "shared_attention": _shared_attention,
}


def stream_width(name: str, d: int, mixers: Mapping[str, Params]) -> int:
    """Channels of the stream that a layer publishes: its recurrence's output before norm and gate."""
    p = mixers[name]
    kind = p["kind"]
    if kind == "mamba2":
        return p["expand"] * d
    if kind in ("gdn", "delta", "kda"):
        return _delta_widths(p)[2]
    if kind == "rglru":
        return p["width"]
    if kind == "gla":
        return round(p["expand_v"] * d)
    return d


def _gate(kind: str, d: int) -> Cost:
    if kind == "scalar":
        return vector(1)
    if kind == "vector":
        return vector(d)
    if kind == "input_scalar":
        return linear(d, 1, bias=True)
    if kind == "input_vector":
        return linear(d, d, bias=True)
    return Cost()


def mixer_cost(name: str, d: int, mixers: Mapping[str, Any], length: int) -> Cost:
    """The cost of the mixer called `name` in a resolved spec, parts of composites included.

    Raises `NoFormula` for a plug-in.
    """
    p = mixers[name]
    kind = p["kind"]
    if kind in MIXERS:
        return MIXERS[kind](d, p, length)
    if kind == "gmu":
        width = stream_width(p["source"], d, mixers)
        return linear(d, width) + linear(width, d)
    if kind == "sequential":
        return mixer_cost(p["first"], d, mixers, length) + mixer_cost(p["second"], d, mixers, length)
    if kind == "parallel":
        attention, recurrent = (mixer_cost(p[part], d, mixers, length) for part in ("attention", "recurrent"))
        if p["gate"] == "block":
            return attention if p["block_choice"] == "attention" else recurrent
        return attention + recurrent + _gate(p["gate"], d)
    if kind == "fused":
        return _fused(d, p, mixers, length)
    raise NoFormula(f"layers: {name!r} has no formula; count the built model")


def _fused(d: int, p: Params, mixers: Mapping[str, Any], length: int) -> Cost:
    attention, recurrent = (mixer_cost(p[part], d, mixers, length) for part in ("attention", "recurrent"))
    if p["combine"] == "map":
        core = Cost(cache=attention.cache, attention=attention.attention)
        return recurrent + core + linear(d, d)
    norms = vector(2 * d) if p["combine"] == "mean_of_norms" else Cost()
    return attention + recurrent + norms
