"""The mixers by name: where each is implemented, its parameters, and the paper it comes from. No torch here.

A mixer's class takes `(d_model, **parameters)` with exactly the parameters listed; a test holds the two together.
Sizes that are not given follow the sources above a small size, and shrink with `d_model` below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import Field, SpecError, nearest_divisor, odd_head

Growth = Literal["none", "constant", "window", "linear"]
"""How decoding state grows with length T: not at all (no state), O(1), O(min(T, window)), O(T)."""


@dataclass(frozen=True)
class Entry:
    """One mixer. `reads`: the parameter that names an earlier layer whose stream it reads; None for most."""

    target: str
    fields: Mapping[str, Field]
    state: Growth
    source: str
    check: Callable[[str, int, dict[str, Any]], None] | None = None
    reads: str | None = None
    publishes: bool = False
    """Whether a later layer may read this one's stream."""


def _head_dim(total: int) -> int:
    """64, as in the sources, or a quarter of a width below 256."""
    return nearest_divisor(min(64, max(2, total // 4)), total, even=True)


HEAD_DIM = Field("int", lambda d, p: _head_dim(d), minimum=1)
ROPE = Field("float", 10000.0, minimum=1.0, optional=True)
EPS = Field("float", 1e-5, minimum=0.0)
CONV = Field("int", 4, minimum=0)
"""Width of the short causal convolution; 0: none."""


def _heads_divide(where: str, d_model: int, p: dict[str, Any]) -> None:
    if d_model % p["head_dim"]:
        near = nearest_divisor(p["head_dim"], d_model, even=True)
        raise SpecError(f"{where}.head_dim: {p['head_dim']} does not divide d_model {d_model}; nearest: {near}")
    if p.get("rope_base") is not None and p["head_dim"] % 2:
        raise odd_head(f"{where}.head_dim", p["head_dim"], d_model)


def _mamba2_heads(where: str, d_model: int, p: dict[str, Any]) -> None:
    inner = p["expand"] * d_model
    if inner % p["head_dim"]:
        near = nearest_divisor(p["head_dim"], inner)
        raise SpecError(
            f"{where}.head_dim: {p['head_dim']} does not divide expand * d_model = {inner}; nearest: {near}"
        )


def _value_width(where: str, d_model: int, p: dict[str, Any]) -> None:
    width = p["expand_v"] * p["head_dim"]
    if width != int(width) or width < 1:
        near = max(1, round(width)) / p["head_dim"]
        raise SpecError(f"{where}.expand_v: {p['expand_v']} gives {width} value channels a head; nearest: {near:g}")


def _rglru_blocks(where: str, d_model: int, p: dict[str, Any]) -> None:
    if p["width"] % p["blocks"]:
        near = nearest_divisor(p["blocks"], p["width"])
        raise SpecError(f"{where}.blocks: {p['blocks']} does not divide width {p['width']}; nearest: {near}")


def _gla_widths(where: str, d_model: int, p: dict[str, Any]) -> None:
    for name in ("expand_k", "expand_v"):
        width = p[name] * d_model
        if width != int(width) or int(width) % p["heads"] or width < 1:
            near = max(1, round(width / p["heads"])) * p["heads"] / d_model
            raise SpecError(f"{where}.{name}: {p[name]} does not give {p['heads']} equal heads; nearest: {near:g}")


def _delta_fields(expand_v: float, heads: Callable[[int, dict[str, Any]], int]) -> dict[str, Field]:
    return {
        "head_dim": HEAD_DIM,
        "heads": Field("int", heads, minimum=1),
        "expand_v": Field("float", expand_v, minimum=0.0),
        "conv": CONV,
        "negative_eigenvalues": Field("bool", False),
        "norm_eps": EPS,
    }


def _fit(d_model: int, p: dict[str, Any]) -> int:
    return max(1, d_model // p["head_dim"])


def _three_quarters(d_model: int, p: dict[str, Any]) -> int:
    return max(1, 3 * d_model // (4 * p["head_dim"]))


MIXERS: dict[str, Entry] = {
    "attention": Entry(
        "architectures.mixers.attention:Attention",
        {"head_dim": HEAD_DIM, "rope_base": ROPE},
        "linear",
        "Vaswani et al. 2017; RoPE: Su et al. 2021",
        _heads_divide,
        publishes=True,
    ),
    "sliding": Entry(
        "architectures.mixers.attention:SlidingAttention",
        {"window": Field("int", 16, minimum=1), "head_dim": HEAD_DIM, "rope_base": ROPE},
        "window",
        "Beltagy et al. 2020; book, section 14.3",
        _heads_divide,
    ),
    "ema": Entry(
        "architectures.mixers.ema:GatedDecayEMA",
        {
            "decay": Field("str", "fixed", choices=("fixed", "learned", "input")),
            "shortest": Field("float", 1.0, minimum=0.1),
            "longest": Field("float", 256.0, minimum=0.1),
        },
        "constant",
        "book, section 14.3",
        publishes=True,
    ),
    "mamba2": Entry(
        "architectures.mixers.mamba2:Mamba2",
        {
            "expand": Field("int", 2, minimum=1),
            "head_dim": Field("int", lambda d, p: _head_dim(p["expand"] * d), minimum=1),
            "d_state": Field("int", lambda d, p: min(128, max(1, d // 2)), minimum=1),
            "conv": CONV,
            "norm_eps": EPS,
        },
        "constant",
        "Dao & Gu 2024, arXiv 2405.21060",
        _mamba2_heads,
        publishes=True,
    ),
    "gdn": Entry(
        "architectures.mixers.gated_delta:GatedDeltaNet",
        _delta_fields(2.0, _three_quarters),
        "constant",
        "Yang, Kautz & Hatamizadeh 2025, arXiv 2412.06464",
        _value_width,
        publishes=True,
    ),
    "delta": Entry(
        "architectures.mixers.delta:DeltaNet",
        _delta_fields(1.0, _fit),
        "constant",
        "Yang et al. 2024, arXiv 2406.06484",
        _value_width,
        publishes=True,
    ),
    "kda": Entry(
        "architectures.mixers.kda:KimiDeltaAttention",
        _delta_fields(1.0, _fit),
        "constant",
        "Kimi Team 2025, arXiv 2510.26692",
        _value_width,
        publishes=True,
    ),
    "rglru": Entry(
        "architectures.mixers.rglru:RGLRU",
        {
            "width": Field("int", lambda d, p: d, minimum=1),
            "blocks": Field("int", lambda d, p: nearest_divisor(min(16, max(1, d // 16)), p["width"]), minimum=1),
            "conv": CONV,
            "c": Field("float", 8.0, minimum=0.0),
        },
        "constant",
        "De et al. 2024 (Griffin), arXiv 2402.19427",
        _rglru_blocks,
        publishes=True,
    ),
    "gla": Entry(
        "architectures.mixers.gla:GatedLinearAttention",
        {
            "heads": Field("int", lambda d, p: nearest_divisor(4, d // 2), minimum=1),
            "expand_k": Field("float", 0.5, minimum=0.0),
            "expand_v": Field("float", 1.0, minimum=0.0),
            "gate_rank": Field("int", 16, minimum=1),
            "gate_divisor": Field("float", 16.0, minimum=1.0),
            "norm_eps": EPS,
        },
        "constant",
        "Yang et al. 2024, arXiv 2312.06635",
        _gla_widths,
        publishes=True,
    ),
    "gmu": Entry(
        "architectures.mixers.gmu:GatedMemoryUnit",
        {"source": Field("mixer", required=True)},
        "none",
        "Ren et al. 2025 (SambaY), arXiv 2507.06607",
        reads="source",
    ),
    "shared_attention": Entry(
        "architectures.mixers.shared_attention:SharedAttention",
        {"source": Field("mixer", "attention")},
        "none",
        "Sun et al. 2024 (YOCO), arXiv 2405.05254; Ren et al. 2025 (SambaY), arXiv 2507.06607",
        reads="source",
    ),
    "mlp": Entry(
        "architectures.mixers.mlp:SwiGLU",
        {"d_ff": Field("int", lambda d, p: 2 * d, minimum=1)},
        "none",
        "Shazeer 2020, arXiv 2002.05202",
    ),
    "sequential": Entry(
        "architectures.mixers.composite:Sequential",
        {"first": Field("mixer", required=True), "second": Field("mixer", required=True)},
        "none",
        "book, section 14.3",
    ),
    "parallel": Entry(
        "architectures.mixers.composite:Parallel",
        {
            "attention": Field("mixer", "attention"),
            "recurrent": Field("mixer", required=True),
            "gate": Field("str", "vector", choices=("scalar", "vector", "input_scalar", "input_vector", "block")),
            "block_choice": Field("str", "attention", choices=("attention", "recurrent")),
        },
        "none",
        "book, sections 14.3 and 14.4",
    ),
    "fused": Entry(
        "architectures.mixers.fused:Fused",
        {
            "attention": Field("mixer", "attention"),
            "recurrent": Field("mixer", "mamba2"),
            "combine": Field("str", "map", choices=("map", "sum", "mean_of_norms")),
            "norm_eps": EPS,
        },
        "none",
        "AMOR, arXiv 2602.13215 (map, sum); Hymba, arXiv 2411.13676 (mean_of_norms)",
    ),
}

COMPOSITE = ("sequential", "parallel", "fused")
"""Mixers built from other mixers of the spec; their state is that of their parts."""
