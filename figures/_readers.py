"""Exact readers of key-value pairs in NumPy, and the numbers by which their memories are told apart.

Slots keep the last `d` pairs and abstain on the others. An outer-product memory adds `decay^age k v^T` for every pair,
keys being random sign vectors of length 1, values unit vectors of a vocabulary; it answers a query `q` with the value
of the largest entry of `q^T M`. Ages are in tokens, two a pair.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def slot_accuracy(load: Array, slots: int, later: int = 0) -> Array:
    """`clip((d - s) / N, 0, 1)`: `N = load` pairs are asked for once each, `s = later` pairs came after them."""
    return np.clip((slots - later) / np.asarray(load, dtype=np.float64), 0, 1)


class Pairs(NamedTuple):
    """`keys` `(n, d)` of length 1, `values` `(n,)` tokens; the first `asked` pairs are queried with their own keys."""

    keys: Array
    values: NDArray[np.int64]
    asked: int


def draw_pairs(number: int, asked: int, dimension: int, vocabulary: int, seed: int) -> Pairs:
    """`number` pairs with random sign keys of `dimension` entries and independent uniform values."""
    generator = np.random.default_rng([seed, number])
    keys = generator.choice([-1.0, 1.0], size=(number, dimension)) / math.sqrt(dimension)
    return Pairs(keys, generator.integers(vocabulary, size=number), asked)


def outer_product_scores(pairs: Pairs, vocabulary: int, decay: float = 1.0, blanks: int = 0) -> Array:
    """`q^T M` for each query: `(asked, vocabulary)`. `blanks` neutral tokens after the pairs age all of them alike."""
    number = len(pairs.values)
    weight = decay ** (2.0 * np.arange(number - 1, -1, -1))
    memory = np.zeros((pairs.keys.shape[1], vocabulary))
    np.add.at(memory.T, pairs.values, pairs.keys * weight[:, None])
    return pairs.keys[: pairs.asked] @ memory * decay**blanks


def outer_product_accuracy(pairs: Pairs, vocabulary: int, decay: float = 1.0, blanks: int = 0) -> float:
    """Share of the queries whose largest score is at their value."""
    answers = outer_product_scores(pairs, vocabulary, decay, blanks).argmax(1)
    return float((answers == pairs.values[: pairs.asked]).mean())


def l90(separations: Array, accuracy: Array) -> float:
    """The longest separation `s_j` with `acc(s_j) >= 0.9 acc(s_1)`; `separations` ascend. NaN where `acc(s_1)` is 0."""
    if accuracy[0] <= 0:
        return math.nan
    return float(np.asarray(separations)[accuracy >= 0.9 * accuracy[0]][-1])


def auc_over_octaves(separations: Array, accuracy: Array) -> float:
    """Mean accuracy over `log2 s`, by the trapezoid rule on the measured grid; NaN for a single separation."""
    octaves = np.log2(np.asarray(separations, dtype=np.float64))
    covered = octaves[-1] - octaves[0]
    return float(np.trapezoid(accuracy, octaves) / covered) if covered > 0 else math.nan


def expected_maximum(count: int) -> float:
    """`E max` of `count` independent standard normals: `int_0^inf 1 - F(x)^k - F(-x)^k dx`, by the trapezoid rule."""
    x = np.linspace(0, 12, 12_001)
    above = np.array([0.5 * math.erfc(value / math.sqrt(2)) for value in x])
    return float(np.trapezoid(1 - (1 - above) ** count - above**count, x))


def copied_tokens(coordinates: Array, bits: float, vocabulary: int) -> Array:
    """`n = d b / log2 V`: the longest string that `d` coordinates of `b` bits hold without loss."""
    return np.asarray(coordinates, dtype=np.float64) * bits / math.log2(vocabulary)


def copying_accuracy_bound(state_bits: float, length: int, vocabulary: int) -> float:
    """Largest expected accuracy of a copy of `length` tokens from `S` bits (shell filling, a converse).

    `1 - (1/L) sum_{r < L} max(0, 1 - 2^S sum_{j <= r} C(L, j) (V - 1)^j / V^L)`.
    """
    log_ball, errors = -math.inf, 0.0
    for radius in range(length):
        log_shell = math.lgamma(length + 1) - math.lgamma(radius + 1) - math.lgamma(length - radius + 1)
        log_shell += radius * math.log(vocabulary - 1)
        log_ball = float(np.logaddexp(log_ball, log_shell))
        reached = state_bits * math.log(2) + log_ball - length * math.log(vocabulary)
        if reached >= 0:
            break
        errors -= math.expm1(reached)
    return 1 - errors / length


def ring_buffer_accuracy(state_bits: float, length: Array, vocabulary: int) -> Array:
    """A memory of the last `floor(S / log2 V)` tokens of a string, which guesses the others: its expected accuracy."""
    held = np.minimum(1, math.floor(state_bits / math.log2(vocabulary) + 1e-9) / np.asarray(length, dtype=np.float64))
    return held + (1 - held) / vocabulary
