"""The two kinds of non-negative numbers that the JAX filters compute with, behind the same functions.

`Linear` computes with plain arrays, `Wide` with pairs of mantissa and exponent (`filters.wide`, in JAX). Regimes come
first and lanes, which nothing mixes, last: a row vector is `(1, K, lanes...)`, a product of steps `(K, K, lanes...)`.
One matrix product serves both, and every operation runs over contiguous lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from filters.wide import EXPONENT_OF_ZERO
from filters.wide import Wide as NumpyWide

FRACTION = np.int64((1 << 52) - 1)
HALF = np.int64(1022 << 52)


class Linear:
    """Plain floating point; only ratios within one vector or one matrix have a meaning."""

    @staticmethod
    def of(numbers: NumpyWide, dtype: str) -> Any:
        """From NumPy."""
        return numbers.float().astype(dtype)

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        """`(I, K, ...)` times `(K, J, ...)`, summed term by term so that it stays one loop over lanes."""
        return sum(a[:, k, None] * b[None, k] for k in range(b.shape[0]))

    @staticmethod
    def times(a: Any, b: Any) -> Any:
        """The product entry by entry, broadcast."""
        return a * b

    @staticmethod
    def tamed(a: Any, whole: bool = False) -> Any:
        """Rescaled by the sum of the first row, or of all where a row may be zero.

        With positive transitions the rows of a product of steps `T diag(l)` are comparable, none of them zero; those of
        `diag(l) T` are zero where the first likelihood is.
        """
        total = _added(a, 1)
        return a * (1 / (_added(total, 0) if whole else total[:1]))

    @staticmethod
    def total(a: Any) -> Any:
        """The sum of each row, `(I, 1, ...)`."""
        return _added(a, 1)

    @staticmethod
    def divided(a: Any, total: Any) -> Any:
        """Rows divided by `total`, which is not 0."""
        return a * (1 / total)

    @staticmethod
    def float(a: Any) -> Any:
        """As a plain array."""
        return a

    @staticmethod
    def log(a: Any) -> Any:
        """The natural logarithm, in NumPy, whose logarithm is the faster."""
        return np.log(np.asarray(a))


def _added(a: Any, axis: int) -> Any:
    """The sum over a short axis, kept with length 1, written out so that it is part of the loop over lanes."""
    return sum(jax.lax.slice_in_dim(a, k, k + 1, axis=axis) for k in range(a.shape[axis]))


class WidePair(NamedTuple):
    """`mantissa * 2**exponent`: float64 in [0.5, 1) or 0, and int64."""

    mantissa: Any
    exponent: Any


class Wide:
    """An exponent per entry."""

    @staticmethod
    def of(numbers: NumpyWide, dtype: str) -> WidePair:
        """From NumPy; `dtype` is float64 always."""
        return WidePair(numbers.mantissa, numbers.exponent)

    @staticmethod
    def matmul(a: WidePair, b: WidePair) -> WidePair:
        """`(I, K, ...)` times `(K, J, ...)`."""
        exponents = [a.exponent[:, k, None] + b.exponent[None, k] for k in range(b.exponent.shape[0])]
        top = exponents[0]
        for exponent in exponents[1:]:
            top = jnp.maximum(top, exponent)
        total = sum(
            a.mantissa[:, k, None] * b.mantissa[None, k] * _power_of_two(exponent - top)
            for k, exponent in enumerate(exponents)
        )
        return _normal(total, top)

    @staticmethod
    def times(a: WidePair, b: WidePair) -> WidePair:
        """The product entry by entry, broadcast."""
        return _normal(a.mantissa * b.mantissa, a.exponent + b.exponent)

    @staticmethod
    def tamed(a: WidePair, whole: bool = False) -> WidePair:
        """Itself: the exponents take care of the range."""
        return a

    @staticmethod
    def total(a: WidePair) -> WidePair:
        """The sum of each row, `(I, 1, ...)`."""
        top = a.exponent.max(1, keepdims=True)
        return _normal((a.mantissa * _power_of_two(a.exponent - top)).sum(1, keepdims=True), top)

    @staticmethod
    def divided(a: WidePair, total: WidePair) -> WidePair:
        """Rows divided by `total`; 0 / 0 is 0."""
        divisor = jnp.where(total.mantissa == 0, 1, total.mantissa)
        return _normal(a.mantissa / divisor, a.exponent - total.exponent)

    @staticmethod
    def float(a: WidePair) -> Any:
        """As a plain array, in NumPy."""
        return NumpyWide(np.asarray(a.mantissa), np.asarray(a.exponent)).float()

    @staticmethod
    def log(a: WidePair) -> Any:
        """The natural logarithm, in NumPy, -inf for 0."""
        return NumpyWide(np.asarray(a.mantissa), np.asarray(a.exponent)).log()


def _normal(mantissa: Any, exponent: Any) -> WidePair:
    """Brings a mantissa, 0 or a normal number, into [0.5, 1) by its bits."""
    bits = jax.lax.bitcast_convert_type(mantissa, jnp.int64)
    fraction = jax.lax.bitcast_convert_type((bits & FRACTION) | HALF, jnp.float64)
    zero = mantissa == 0
    shifted = exponent + (bits >> 52) - 1022
    return WidePair(jnp.where(zero, 0, fraction), jnp.where(zero, EXPONENT_OF_ZERO, shifted))


def _power_of_two(exponent: Any) -> Any:
    """`2**exponent` for exponents below 1024, exact, made of its bits; 0 below -1022."""
    return jax.lax.bitcast_convert_type((jnp.maximum(exponent, -1023) + 1023) << 52, jnp.float64)
