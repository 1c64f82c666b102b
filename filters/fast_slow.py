"""The continuous prototype: a linear system with a slow and a fast variable, its reduction and its boundary layer.

    dx/dt = A x + B y,    eps dy/dt = C x + D y,    D Hurwitz

Off the slow manifold `y = -D^{-1} C x` by `eta = y + D^{-1} C x`, the fast variable falls onto it in a time of order
eps, and `x` stays within order eps of the reduced solution, `dx_r/dt = (A - B D^{-1} C) x_r`, on any fixed horizon.

Reference: State-space book, Theorem 14.1 and exercise 14.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from filters.checks import checked_finite, real_array
from filters.hmm import Array


class NotHurwitz(ValueError):
    """A fast block with an eigenvalue outside the open left half-plane: there is no boundary layer to speak of."""


class Trajectory(NamedTuple):
    """`slow` `(n, p)`, `fast` `(n, q)` and `layer` `(n, q)`, the distance `eta` from the slow manifold, by time."""

    slow: Array
    fast: Array
    layer: Array


class Bound(NamedTuple):
    """`layer` `(n,)` bounds `|eta(t)|`, `gap` bounds `|x(t) - x_r(t)|` up to the last time; inf if eps is too large."""

    layer: Array
    gap: float


@dataclass(frozen=True, eq=False)
class FastSlow:
    """The blocks: `A` `(p, p)`, `B` `(p, q)`, `C` `(q, p)`, `D` `(q, q)`.

    Raises:
        ValueError: shapes that do not fit together, or an entry that is not finite.
        NotHurwitz: `D` has an eigenvalue whose real part is not negative.
    """

    A: Array
    B: Array
    C: Array
    D: Array

    def __post_init__(self) -> None:
        for name in "ABCD":
            object.__setattr__(self, name, np.atleast_2d(real_array(name, getattr(self, name))))
        slow, fast = len(self.A), len(self.D)
        for name, shape in {"A": (slow, slow), "B": (slow, fast), "C": (fast, slow), "D": (fast, fast)}.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"{name} has shape {getattr(self, name).shape}; with the other blocks it must be {shape}"
                )
            checked_finite(name, getattr(self, name))
        rightmost = float(np.linalg.eigvals(self.D).real.max())
        if not rightmost < 0:
            raise NotHurwitz(f"D has an eigenvalue with real part {rightmost:g}; a stable fast block has all below 0")

    @cached_property
    def slope(self) -> Array:
        """`D^{-1} C`, `(q, p)`."""
        return np.asarray(np.linalg.solve(self.D, self.C), dtype=np.float64)

    @cached_property
    def reduced_matrix(self) -> Array:
        """`A - B D^{-1} C`, `(p, p)`."""
        return self.A - self.B @ self.slope

    def solve(self, epsilon: float, x0: ArrayLike, y0: ArrayLike, times: ArrayLike) -> Trajectory:
        """The exact solution at `times` `(n,)`, by the matrix exponential; relative rounding 1e-16 t / epsilon.

        Raises:
            ValueError: `epsilon` not positive and finite, `x0` not `(p,)`, `y0` not `(q,)`, a negative time.
        """
        _checked_epsilon(epsilon)
        x0, y0, times = self._checked_start(x0, y0, times)
        full = np.block([[self.A, self.B], [self.C / epsilon, self.D / epsilon]])
        states = exponential(full, times) @ np.concatenate([x0, y0])
        slow, fast = states[:, : len(self.A)], states[:, len(self.A) :]
        return Trajectory(slow, fast, fast + slow @ self.slope.T)

    def reduced(self, x0: ArrayLike, times: ArrayLike) -> Trajectory:
        """The reduced solution, on the slow manifold.

        Raises:
            ValueError: `x0` not `(p,)`, or a negative time.
        """
        x0, _, times = self._checked_start(x0, np.zeros(len(self.D)), times)
        slow = exponential(self.reduced_matrix, times) @ x0
        fast = -slow @ self.slope.T
        return Trajectory(slow, fast, np.zeros_like(fast))

    @cached_property
    def decay(self) -> tuple[float, float]:
        """`(M, beta)` with `|exp(D s)| <= M exp(-beta s)` for all s >= 0, from `D'P + PD = -I`."""
        size = len(self.D)
        eye = np.eye(size)
        lyapunov = np.kron(eye, self.D.T) + np.kron(self.D.T, eye)
        weights = np.linalg.eigvalsh(np.linalg.solve(lyapunov, -eye.ravel()).reshape(size, size))
        return float(np.sqrt(weights[-1] / weights[0])), float(0.5 / weights[-1])

    def bound(self, epsilon: float, x0: ArrayLike, y0: ArrayLike, times: ArrayLike) -> Bound:
        """The theorem's two bounds with their constants, on `[0, max(times)]`.

        With `(M, beta)` of `decay`, `F = A - B D^{-1} C`, `E = max(1, exp(mu T))` for the logarithmic norm mu of F, and
        `kappa = epsilon M / beta`:  `|eta(t)| <= M exp(-beta t / epsilon) |eta(0)| + kappa S` and
        `|x - x_r| <= E |B| kappa (|eta(0)| + T S)`, where S bounds the forcing `D^{-1} C (F x + B eta)`.

        Raises:
            ValueError: as `solve`, or no times.
        """
        _checked_epsilon(epsilon)
        start, fast, times = self._checked_start(x0, y0, times)
        if not len(times):
            raise ValueError("times is empty; a bound holds up to the last of at least one")
        norm, horizon = _spectral_norm, float(times.max())
        eta = float(np.linalg.norm(fast + self.slope @ start))
        amplitude, rate = self.decay
        kappa = epsilon * amplitude / rate
        symmetric = (self.reduced_matrix + self.reduced_matrix.T) / 2
        growth = max(1.0, float(np.exp(np.linalg.eigvalsh(symmetric)[-1] * horizon)))
        by_slow, by_layer = norm(self.slope @ self.reduced_matrix), norm(self.slope @ self.B)
        into_slow = growth * norm(self.B)
        feedback = kappa * (by_slow * into_slow * horizon + by_layer)
        forcing = (
            by_slow * (growth * float(np.linalg.norm(start)) + into_slow * kappa * eta) + by_layer * amplitude * eta
        )
        forcing = forcing / (1 - feedback) if feedback < 1 else np.inf
        layer = amplitude * np.exp(-rate * times / epsilon) * eta + kappa * forcing
        return Bound(layer, into_slow * kappa * (eta + horizon * forcing))

    def _checked_start(self, x0: ArrayLike, y0: ArrayLike, times: ArrayLike) -> tuple[Array, Array, Array]:
        """`x0` `(p,)`, `y0` `(q,)` and `times` `(n,)`, or a ValueError."""
        found = []
        for name, given, shape in (("x0", x0, (len(self.A),)), ("y0", y0, (len(self.D),)), ("times", times, None)):
            array = np.atleast_1d(real_array(name, given))
            if array.ndim != 1 or (shape is not None and array.shape != shape):
                raise ValueError(f"{name} has shape {array.shape}; it must be {'(n,)' if shape is None else shape}")
            checked_finite(name, array)
            found.append(array)
        if (found[2] < 0).any():
            raise ValueError(f"times has {found[2].min():g}; times start at 0, backwards the layer grows without bound")
        return found[0], found[1], found[2]


def _checked_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be positive and finite (at 0 there is `reduced`)")


def exponential(matrix: Array, times: Array) -> Array:
    """`exp(matrix t)` for each of `times` `(n,)`, `(n, m, m)`: Pade approximation of degree 13, scaled and squared.

    Reference: Higham (2005), The scaling and squaring method for the matrix exponential revisited.
    """
    scaled = matrix[None] * np.asarray(times, dtype=np.float64)[:, None, None]
    largest = float(np.abs(scaled).sum(axis=-2).max(initial=0.0))
    squarings = max(0, int(np.ceil(np.log2(largest / 5.37)))) if largest > 0 else 0
    scaled = scaled / 2.0**squarings
    eye = np.broadcast_to(np.eye(matrix.shape[0]), scaled.shape)
    even, odd, power, square = eye * _PADE[0], eye * _PADE[1], eye, scaled @ scaled
    for degree in range(2, 14, 2):
        power = power @ square
        even = even + _PADE[degree] * power
        odd = odd + _PADE[degree + 1] * power
    odd = scaled @ odd
    result = np.asarray(np.linalg.solve(even - odd, even + odd), dtype=np.float64)
    for _ in range(squarings):
        result = result @ result
    return result


def _pade_coefficients(degree: int) -> list[float]:
    """Of the diagonal approximant: `c_0 = 1`, `c_k = c_{k-1} (m - k + 1) / (k (2m - k + 1))`."""
    found = [1.0]
    for k in range(1, degree + 1):
        found.append(found[-1] * (degree - k + 1) / (k * (2 * degree - k + 1)))
    return found


_PADE = _pade_coefficients(13)


def _spectral_norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
