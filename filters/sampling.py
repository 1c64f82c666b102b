"""Streams drawn from a two-timescale model, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filters.checks import checked_integer
from filters.hmm import Array, TwoTimescaleHMM

Integers = NDArray[np.int64]


def sample(
    hmm: TwoTimescaleHMM,
    sequences: int,
    length: int,
    seed: int,
    *,
    stationary: bool = False,
    regimes: ArrayLike | None = None,
) -> tuple[Integers, Integers]:
    """Tokens and regimes, both `(sequences, length)`.

    `stationary` starts from the stationary law of `(z, x)` instead of `initial`; where the model says nothing of the
    first token, that is uniform. `regimes` `(sequences, length)` prescribes the regimes: tokens only are drawn.

    Raises:
        ValueError: a negative number of sequences, a length below 1, a seed that is no integer of at least 0, regimes
            of another shape, of no integer type or outside `0..K-1`.
    """
    sequences, length = checked_integer("sequences", sequences, 0), checked_integer("length", length, 1)
    checked_integer("seed", seed, 0)
    prescribed = None if regimes is None else _checked_regimes(hmm, regimes, (sequences, length))
    uniform = np.random.default_rng(seed).random((2, length, sequences))
    rising = np.cumsum(hmm.emission, axis=-1)
    z, x = np.empty((length, sequences), dtype=np.int64), np.empty((length, sequences), dtype=np.int64)
    first = hmm.stationary_joint if stationary else hmm.initial[:, None] * _first_tokens(hmm)
    if prescribed is None:
        z[0] = _draw(np.cumsum(first.sum(axis=1))[None], uniform[0, 0])
        switching = np.cumsum(hmm.transition, axis=-1)
        for t in range(1, length):
            z[t] = _draw(switching[z[t - 1]], uniform[0, t])
    else:
        z[:] = prescribed.T
    x[0] = _draw(np.cumsum(first, axis=-1)[z[0]], uniform[1, 0])
    for t in range(1, length):
        x[t] = _draw(rising[z[t], x[t - 1]], uniform[1, t])
    return np.ascontiguousarray(x.T), np.ascontiguousarray(z.T)


def _checked_regimes(hmm: TwoTimescaleHMM, regimes: ArrayLike, shape: tuple[int, int]) -> Integers:
    """`regimes`, or a ValueError."""
    given = np.asarray(regimes)
    if given.shape != shape:
        raise ValueError(f"regimes has shape {given.shape}; it must be (sequences, length), here {shape}")
    if given.dtype.kind not in "iu":
        raise ValueError(f"regimes must be of an integer type, not {given.dtype}")
    outside = (given < 0) | (given >= hmm.regimes)
    if outside.any():
        where = np.argwhere(outside)[0].tolist()
        raise ValueError(f"regimes{where} is {given[tuple(where)]}; it must lie in 0..{hmm.regimes - 1}")
    return given.astype(np.int64, copy=False)


def _first_tokens(hmm: TwoTimescaleHMM) -> Array:
    if hmm.initial_emission is not None:
        return hmm.initial_emission
    return np.full((hmm.regimes, hmm.vocab_size), 1.0 / hmm.vocab_size)


def _draw(rising: Array, uniform: Array) -> Integers:
    """Inverse CDF: rows of cumulative weights `(n, m)`, positive in total, at `uniform` `(n,)`; never a weight of 0."""
    total = rising[..., -1:]
    return ((rising <= uniform[:, None] * total) & (rising < total)).sum(axis=-1)
