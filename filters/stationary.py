"""The limit of the running average of a finite Markov chain, by state reduction.

No subtraction occurs, so entries keep their relative accuracy when the chain is nearly reducible (a switching rate of
1e-20), and reducible and periodic chains are answered too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def stationary_law(transition: Array, start: Array | None = None) -> Array:
    """The law `lim_n (1/n) sum_{t<n} start P^t` for `transition` `(n, n)` and `start` `(n,)` (uniform if None).

    It exists for every finite chain. For one closed class it is the stationary law whatever the start; for several,
    each class weighs what the start is absorbed into it.

    Reference: Grassmann, Taksar and Heyman (1985), Regenerative analysis and steady state distributions for Markov
    chains; applied here to the transient states first, then to each closed class.
    """
    chain = np.array(transition, dtype=np.float64)
    size = len(chain)
    mass = np.full(size, 1.0 / size) if start is None else np.array(start, dtype=np.float64)
    classes = closed_classes(chain)
    recurrent = np.concatenate(classes)
    alive = np.ones(size, dtype=bool)
    for state in np.setdiff1d(np.arange(size), recurrent):
        alive[state] = False
        leaving = np.where(alive, chain[state], 0.0)
        if not leaving.any():
            continue
        leaving = leaving / leaving.max()
        leaving /= leaving.sum()
        mass += mass[state] * leaving
        mass[state] = 0.0
        chain[alive] += np.outer(chain[alive, state], leaving)
    law = np.zeros(size)
    for members in classes:
        law[members] = mass[members].sum() * _irreducible(chain[np.ix_(members, members)])
    return law / law.sum()


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


def _irreducible(chain: Array) -> Array:
    """The stationary law of an irreducible chain by the GTH elimination."""
    chain = chain.copy()
    size = len(chain)
    for last in range(size - 1, 0, -1):
        chain[:last, last] /= chain[last, :last].sum()
        chain[:last, :last] += np.outer(chain[:last, last], chain[last, :last])
    law = np.zeros(size)
    law[0] = 1.0
    for state in range(1, size):
        law[state] = law[:state] @ chain[:state, state]
    return law / law.sum()
