"""The filter over many sequences on the CPU: token by token, all sequences side by side.

With plain numbers a step is a few loops over lanes, each a sequence: `J' = (J M) * (l r)` from unnormalised posteriors
`J` `(K, lanes)`, with the likelihoods `l` of the next token and `r = 1 / sum(J)`. The posterior is `J r`, the token's
log-probability `log sum(J)`, the logarithm taken by NumPy. Sequences go through in blocks, so that a step stays in
the first cache; while JAX computes one, this thread lays out the tokens of the next. Results are written where earlier
ones were (`filters.memory`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from filters.hmm import Array
from filters.jax_programs import compiled
from filters.jax_tables import Tables
from filters.memory import Store, lent

FEWEST = 64
"""The least number of sequences that this form is for."""

BLOCK = 256
"""Sequences in a block, at least, where there are as many; fewer than twice as many."""

MOST_REGIMES = 16
"""A step is written out over pairs of regimes."""

LARGEST = 1 << 25
"""Bytes of a result whose memory is kept."""

_store = Store(8)


def applies(sequences: int, regimes: int) -> bool:
    """Whether there are enough sequences, few enough regimes, and JAX computes on the CPU."""
    return (
        sequences >= FEWEST and regimes <= MOST_REGIMES and _platform(jax.config.values["jax_default_device"]) == "cpu"
    )


@cache
def _platform(device: Any) -> str:
    device = device or jax.devices()[0]
    return device if isinstance(device, str) else device.platform


def filtered(tables: Tables, tokens: NDArray[np.int64], vocab_size: int, filled: int) -> tuple[Array, Array]:
    """Log-probabilities `(B, T-1)` and posteriors `(B, T, K)`, in the type of the tables; read-only views.

    `filled` is the length, at least T, that the program is compiled for. JAX has to have 64-bit types.
    """
    (sequences, length), regimes, kind = tokens.shape, len(tables.start), tables.start.dtype
    lanes = -(-sequences // max(1, sequences // BLOCK))
    firsts = [min(first, sequences - lanes) for first in range(0, sequences, lanes)]

    zeros = partial(jnp.zeros, dtype=kind)
    shape, total_shape = (filled, regimes, sequences), (filled, lanes)
    posteriors = _store.take((shape, kind), partial(zeros, shape))
    totals = []
    for first in firsts:
        block = tokens[first : first + lanes]
        spare = _store.take((total_shape, kind), partial(zeros, total_shape))
        start = tables.start[:, block[:, 0]]
        pairs = _pairs(block, vocab_size, filled)
        numbers = np.int32(length), np.int32(first)
        posteriors, total = _filter(*tables.on_device, start, pairs, *numbers, posteriors, spare)
        totals.append(total)

    logs = _store.take((length - 1, sequences, kind), partial(np.empty, (length - 1, sequences), kind))
    for first, total in zip(firsts, totals):
        part = logs[:, first : first + lanes]
        np.log(np.asarray(total)[1:length], out=part)
        _keep((total_shape, kind), total)
    logs_view = lent(logs, partial(_keep, (length - 1, sequences, kind), logs))
    logs_view.flags.writeable = False
    view = lent(np.asarray(posteriors), partial(_keep, (shape, kind), posteriors))
    return logs_view.T, view[:length].transpose(2, 0, 1)


def _keep(kind: Any, array: Any) -> None:
    if array.nbytes <= LARGEST:
        _store.give(kind, array)


def _pairs(tokens: NDArray[np.int64], vocab_size: int, filled: int) -> NDArray[Any]:
    """`u vocab_size + v` for each token v after a token u, `(filled, b)`, of the least type that holds it."""
    kind = np.min_scalar_type(vocab_size**2 - 1)
    by_time = np.ascontiguousarray(tokens.astype(kind).T)
    pairs = np.empty((filled, len(tokens)), kind)
    later = pairs[1 : len(by_time)]
    np.multiply(by_time[:-1], kind.type(vocab_size), out=later)
    np.add(later, by_time[1:], out=later)
    return pairs


@compiled(donate_argnums=(6, 7))
def _filter(
    transition: Any, likelihoods: Any, start: Any, pairs: Any, length: Any, first: Any, posteriors: Any, totals: Any
) -> tuple[Any, Any]:
    """Writes posteriors into `posteriors` `(n, K, B)` from lane `first` on, and `sum(J)` into `totals` `(n, lanes)`."""
    regimes, zero = len(transition), np.int32(0)

    def written(t: Any, joint: Any, posteriors: Any, totals: Any) -> Any:
        total = sum(joint[k] for k in range(regimes))
        scale = 1 / total
        place = jnp.int32(t), zero, first
        posteriors = jax.lax.dynamic_update_slice(posteriors, (joint * scale)[None], place)
        return joint, scale, posteriors, jax.lax.dynamic_update_index_in_dim(totals, total, t, 0)

    def step(t: Any, carried: Any) -> Any:
        joint, scale, *outputs = carried
        pair = jax.lax.dynamic_index_in_dim(pairs, t, 0, keepdims=False)
        likelihood = likelihoods.at[:, pair].get(mode="promise_in_bounds")
        prior = sum(joint[j][None] * transition[j][:, None] for j in range(regimes))
        joint = prior * (likelihood * scale)
        return written(t, joint, *outputs)

    opening = written(zero, start, posteriors, totals)
    return jax.lax.fori_loop(np.int32(1), length, step, opening)[2:]
