"""FLOPs of Oryx's two mixers as the paper counts them, and where mixing modes begins to pay.

Sizes are of one head over a sequence of T tokens in chunks of C; `delta` is the fraction of tokens in linear mode.
Reference: Li et al., Oryx, arXiv 2605.28769, appendix C.
"""

from __future__ import annotations


def linear_state_update(length: int, d_k: int, d_v: int, chunk: int = 128) -> float:
    """`2 T Dk Dv + 2 T Dk Dv / C`: chunk states and passing them on, in every chunk whichever mixer writes."""
    return 2 * length * d_k * d_v * (1 + 1 / chunk)


def linear_output(length: int, d_k: int, d_v: int, chunk: int = 128, delta: float = 0.75) -> float:
    """`delta (2 T C Dk + 2 T C Dv + 2 T Dk Dv)`: inside the chunks and from the states before them."""
    return delta * 2 * length * (chunk * (d_k + d_v) + d_k * d_v)


def attention_output(length: int, d_k: int, d_v: int, delta: float = 0.75) -> float:
    """`(1 - delta) T (T + 1) (Dk + Dv)`: causal scores and weighted values of the tokens in attention mode."""
    return (1 - delta) * length * (length + 1) * (d_k + d_v)


def mixing_flops(length: int, d_k: int, d_v: int, chunk: int = 128, delta: float = 0.75) -> float:
    """The three parts together."""
    parts = linear_state_update(length, d_k, d_v, chunk), linear_output(length, d_k, d_v, chunk, delta)
    return sum(parts) + attention_output(length, d_k, d_v, delta)


def break_even_length(delta: float = 0.75, chunk: int = 128) -> float:
    """`(1 / delta + 3) C`: above this many tokens Oryx computes less than attention, when C = Dk = Dv.

    It is the solution of `(1 - delta) + (1 + 3 delta) C / T = 1`, which drops terms of order 1 / C and 1 / T from the
    three parts; 554.7 tokens at the defaults. Infinite for `delta` 0.
    """
    return (1 / delta + 3) * chunk if delta else float("inf")
