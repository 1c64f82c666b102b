"""The limit of the running average of a finite Markov chain, by state reduction.

No subtraction occurs, so entries keep their relative accuracy when the chain is nearly reducible (a switching rate of
1e-20), and reducible and periodic chains are answered too. Plain float64 is tried first; where anything in it would
under- or overflow, the same reduction runs on numbers with exponents of their own (`filters.wide`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filters.wide import Wide

Array = NDArray[np.float64]


def stationary_law(transition: Array, start: Array | None = None) -> Array:
    """The law `lim_n (1/n) sum_{t<n} start P^t` for `transition` `(n, n)` and `start` `(n,)` (uniform if None).

    It exists for every finite chain. For one closed class it is the stationary law whatever the start; for several,
    each class weighs what the start is absorbed into it.

    Reference: Grassmann, Taksar and Heyman (1985), Regenerative analysis and steady state distributions for Markov
    chains; applied here to the transient states first, then to each closed class.
    """
    chain = np.asarray(transition, dtype=np.float64)
    mass = np.full(len(chain), 1.0 / len(chain)) if start is None else np.asarray(start, dtype=np.float64)
    classes = closed_classes(chain)
    try:
        with np.errstate(all="raise"):
            return np.asarray(_reduced(chain, mass, classes, np.array))
    except FloatingPointError:
        law: Wide = _reduced(chain, mass, classes, Wide.of)
        return law.float()


def closed_classes(transition: Array) -> list[NDArray[np.int64]]:
    """The closed communicating classes: index arrays, disjoint, each ascending, ordered by their first state."""
    reach = (transition > 0) | np.eye(len(transition), dtype=bool)
    steps = 1
    while steps < len(transition):
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
        steps *= 2
    mutual = reach & reach.T
    closed = ~(reach & ~mutual).any(axis=1)
    first = mutual.argmax(axis=1)
    return [np.flatnonzero(mutual[state]) for state in np.flatnonzero(closed & (first == np.arange(len(first))))]


def _reduced(transition: Array, start: Array, classes: list[NDArray[np.int64]], numbers: Callable[[Any], Any]) -> Any:
    """The law, computed in `numbers`: float64 or `Wide`."""
    chain, mass = numbers(transition), numbers(start)
    alive = np.arange(len(transition))
    for state in np.setdiff1d(alive, np.concatenate(classes)):
        alive = alive[alive != state]
        into = np.ix_(alive, alive)
        leaving = chain[state, alive] / chain[state, alive].sum(axis=-1)[None]
        mass[alive] = mass[alive] + mass[[state]] * leaving
        chain[into] = chain[into] + chain[alive, state][:, None] * leaving[None]
    law = numbers(np.zeros(len(transition)))
    for members in classes:
        law[members] = _irreducible(chain[np.ix_(members, members)], numbers) * mass[members].sum(axis=-1)[None]
    return law / law.sum(axis=-1)[None]


def _irreducible(chain: Any, numbers: Callable[[Any], Any]) -> Any:
    """The stationary law of an irreducible chain by the GTH elimination."""
    size = chain.shape[0]
    for last in range(size - 1, 0, -1):
        into = chain[:last, last] / chain[last, :last].sum(axis=-1)[None]
        chain[:last, last] = into
        chain[:last, :last] = chain[:last, :last] + into[:, None] * chain[last, :last][None]
    law = numbers(np.eye(1, size)[0])
    for state in range(1, size):
        law[state] = (law[:state] * chain[:state, state]).sum(axis=-1)
    return law / law.sum(axis=-1)[None]
