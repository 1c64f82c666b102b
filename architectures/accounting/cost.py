"""What one part of a model costs: parameters, decoding state and forward FLOPs, as numbers that add up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import SpecError


class NoFormula(SpecError):
    """What has no formula: a plug-in, whose parameters are counted on the built model, or a rule that omits a part."""


@dataclass(frozen=True)
class Cost:
    """The cost of one part at context length L; all sizes per sequence, all FLOPs per token, averaged over L tokens.

    A multiply-add is two FLOPs. Norms, activations, softmax, rotations and products that are elementwise are left out.
    """

    parameters: float = 0
    cache: float = 0
    """Keys and values kept for attention, in numbers."""
    conv: float = 0
    """Inputs that short convolutions remember, in numbers."""
    recurrent: float = 0
    """Recurrent state kept in the caches' type (Mamba-2, as in its reference code), in numbers."""
    recurrent_wide: float = 0
    """Recurrent state kept in float32 at least, in numbers."""
    projections: float = 0
    """FLOPs of products with weight matrices."""
    attention: float = 0
    """FLOPs of scores and weighted values."""
    recurrence: float = 0
    """FLOPs of writing to and reading from a matrix state, token by token."""
    convolution: float = 0
    """FLOPs of short convolutions."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)})

    def __mul__(self, factor: float) -> Cost:
        return Cost(**{f.name: getattr(self, f.name) * factor for f in fields(Cost)})

    @property
    def flops(self) -> float:
        return self.projections + self.attention + self.recurrence + self.convolution

    @property
    def state(self) -> float:
        """Numbers that decoding keeps."""
        return self.cache + self.conv + self.recurrent + self.recurrent_wide

    def state_bytes(self, dtype_bytes: int) -> int:
        """Bytes that decoding keeps, with caches of `dtype_bytes` a number."""
        return round(
            (self.cache + self.conv + self.recurrent) * dtype_bytes + self.recurrent_wide * max(4, dtype_bytes)
        )


def linear(inputs: float, outputs: float, *, bias: bool = False) -> Cost:
    """A dense map: `inputs * outputs` weights, twice as many FLOPs."""
    return Cost(parameters=inputs * outputs + bias * outputs, projections=2 * inputs * outputs)


def vector(size: float) -> Cost:
    """Parameters that no matrix product uses: a norm's weights, a bias, a decay."""
    return Cost(parameters=size)


def short_conv(channels: float, width: int, *, bias: bool = False) -> Cost:
    """A causal depthwise convolution; decoding keeps the last `width` inputs. Width 0: none."""
    if width == 0:
        return Cost()
    return Cost(parameters=channels * (width + bias), conv=channels * width, convolution=2 * channels * width)


def mean_keys(length: int, window: int | None = None) -> float:
    """Keys that a query attends to, on average over t = 1..T: the mean of min(t, window).

    (T + 1) / 2 without a window, w - w (w - 1) / (2 T) with w <= T.
    """
    reach = length if window is None else min(window, length)
    return reach - reach * (reach - 1) / (2 * length)


def softmax_attention(width: float, length: int, window: int | None = None) -> Cost:
    """Scores and weighted values over all heads, exactly causal, and the keys and values that decoding keeps."""
    kept = length if window is None else min(window, length)
    return Cost(cache=2 * width * kept, attention=4 * width * mean_keys(length, window))


def swiglu(d_model: int, d_ff: int) -> Cost:
    return Cost(parameters=3 * d_model * d_ff, projections=6 * d_model * d_ff)


def matrix_state(heads: float, d_k: float, d_v: float, products: int) -> Cost:
    """A (d_k, d_v) state a head, in `products` products a token: 2 (write, read), 3 where what is read is corrected."""
    return Cost(recurrent_wide=heads * d_k * d_v, recurrence=2 * products * heads * d_k * d_v)


Params = dict[str, Any]
