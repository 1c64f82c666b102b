"""Non-negative numbers with float64 precision and a range that never underflows.

A number is `mantissa * 2**exponent`, the mantissa in [0.5, 1) or 0 and the exponent an integer of its own. Products and
sums of such numbers lose one rounding each, whatever their size; a log-weight of -700 would lose 1e-13 at every step,
and a plain float64 everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

EXPONENT_OF_ZERO = -(1 << 40)
"""Below every exponent that occurs, so that a zero never decides what the others are aligned to."""


@dataclass(frozen=True, eq=False)
class Wide:
    """`mantissa * 2**exponent`, two arrays of one shape."""

    mantissa: Array
    exponent: NDArray[np.int64]

    @staticmethod
    def of(values: ArrayLike) -> Wide:
        """From float64; exact."""
        return normal(np.asarray(values, dtype=np.float64), 0)

    def __getitem__(self, index: Any) -> Wide:
        """Indexes both arrays."""
        return Wide(self.mantissa[index], self.exponent[index])

    def __setitem__(self, index: Any, value: Wide) -> None:
        """Assigns to both arrays, in place."""
        self.mantissa[index] = value.mantissa
        self.exponent[index] = value.exponent

    @property
    def shape(self) -> tuple[int, ...]:
        """Of both arrays."""
        return self.mantissa.shape

    def __add__(self, other: Wide) -> Wide:
        """The sum, broadcast."""
        top = np.maximum(self.exponent, other.exponent)
        total = np.ldexp(self.mantissa, self.exponent - top) + np.ldexp(other.mantissa, other.exponent - top)
        return normal(total, top)

    def __mul__(self, other: Wide) -> Wide:
        """The product, broadcast."""
        return normal(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __truediv__(self, other: Wide) -> Wide:
        """The quotient, broadcast; 0 / 0 is 0."""
        divisor = np.where(other.mantissa == 0, 1.0, other.mantissa)
        return normal(self.mantissa / divisor, self.exponent - other.exponent)

    def sum(self, axis: int) -> Wide:
        """The sum along `axis`: all aligned to the largest exponent, so only what is beyond 2**-1074 of it is lost."""
        top = self.exponent.max(axis=axis, keepdims=True)
        total = np.ldexp(self.mantissa, self.exponent - top).sum(axis=axis)
        return normal(total, top.squeeze(axis))

    def float(self) -> Array:
        """As float64; what is too small for it becomes 0."""
        return np.ldexp(self.mantissa, self.exponent)

    def log(self) -> Array:
        """The natural logarithm, -inf for 0."""
        logs = np.full(self.mantissa.shape, -np.inf)
        np.log(self.mantissa, out=logs, where=self.mantissa > 0)
        return np.where(self.mantissa > 0, logs + self.exponent * np.log(2.0), -np.inf)


def where(condition: NDArray[np.bool_], one: Wide, other: Wide) -> Wide:
    """`one` where the condition holds, else `other`."""
    return Wide(np.where(condition, one.mantissa, other.mantissa), np.where(condition, one.exponent, other.exponent))


def stack(steps: list[Wide]) -> Wide:
    """Stacks `(..., K)` along time: `(..., n, K)`."""
    return Wide(np.stack([s.mantissa for s in steps], axis=-2), np.stack([s.exponent for s in steps], axis=-2))


def normal(mantissa: Array, exponent: NDArray[np.int64] | int) -> Wide:
    """`mantissa * 2**exponent` with its mantissa brought into [0.5, 1)."""
    fraction, shift = np.frexp(mantissa)
    return Wide(fraction, np.where(fraction == 0, EXPONENT_OF_ZERO, shift + np.asarray(exponent, dtype=np.int64)))
