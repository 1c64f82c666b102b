"""When AMOR's gate pays: what it costs to ask, against the attention that it saves, per decoded token and block.

    (1 - f) 4 D L > C_gate                      counting scores and weighted values only
    (1 - f) (4 D L + 4 D^2) > C_gate            with the query and output projections, which are skipped too

f is the firing rate, D the width, L the tokens attended to. Reference: Zheng & Shani, AMOR, arXiv 2602.13215,
equations 9 to 12.
"""

from __future__ import annotations


def lm_head_flops(vocab_size: int, d_model: int) -> int:
    """`2 V D`: the native gate, which calls the head once more."""
    return 2 * vocab_size * d_model


def router_flops(d_model: int, hidden: int = 512) -> int:
    """`2 D r + 2 r + 2 D`: the distilled router."""
    return 2 * (d_model * hidden + hidden + d_model)


def skipped_flops(length: float, d_model: int, *, projections: bool = False) -> float:
    """What a block that does not fire leaves out: `4 D L`, and `4 D^2` with `projections`."""
    return 4 * d_model * (length + (d_model if projections else 0))


def saves(length: float, firing_rate: float, gate_flops: float, d_model: int, *, projections: bool = False) -> bool:
    """Whether gating takes fewer FLOPs than attention that is always on."""
    return (1 - firing_rate) * skipped_flops(length, d_model, projections=projections) > gate_flops


def break_even_length(firing_rate: float, gate_flops: float, d_model: int, *, projections: bool = False) -> float:
    """Tokens above which the gate pays: `C_gate / (4 D (1 - f))`, less D with `projections`; not below 0.

    With the native gate that is V / (2 (1 - f)), independent of D. Infinite at firing rate 1.
    """
    if not 0 <= firing_rate <= 1:
        raise ValueError(f"firing_rate: {firing_rate} is not in [0, 1]; nearest: {min(max(firing_rate, 0), 1)}")
    if firing_rate == 1:
        return float("inf")
    length = gate_flops / (4 * d_model * (1 - firing_rate))
    return max(0.0, length - (d_model if projections else 0))
