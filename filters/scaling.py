"""Which recursion is exact for which model, shared by the fast forms.

With every transition positive, a normalised prior is nowhere below the smallest of them: plain float64, rescaled at
each step, underflows nowhere, and a product of steps is nowhere below (its largest entry) x (smallest transition)^2 x
(smallest emission). With a zero (or next to none) in the transition a regime's weight can shrink without end and come
back, and numbers with exponents of their own are needed (`filters.wide`).
"""

from __future__ import annotations

import numpy as np

from filters.hmm import Array, TwoTimescaleHMM
from filters.wide import Wide, where

SMALLEST = {"float64": 1e-250, "float32": 1e-30}
"""The least `min(transition)^2 min(emission)` for which the plain recursion is used, by number type."""


def is_linear(transition: Array, emission: Array, dtype: str = "float64") -> bool:
    """Whether the plain scaled recursion loses no evidence with these tables; zeros in `emission` are allowed."""
    least = float(transition.min())
    return least > 0 and 2 * np.log(least) + np.log(emission[emission > 0].min()) >= np.log(SMALLEST[dtype])


def starts(hmm: TwoTimescaleHMM) -> tuple[Wide, np.ndarray]:
    """The posterior over `z_0` for each first token, `(V, K)`, and which of them are impossible, `(V,)` bool.

    Of an impossible first token nothing is learned: its posterior is `initial`.
    """
    initial = np.broadcast_to(hmm.initial, (hmm.vocab_size, hmm.regimes))
    if hmm.initial_emission is None:
        return Wide.of(initial), np.zeros(hmm.vocab_size, dtype=bool)
    joint = Wide.of(initial) * Wide.of(hmm.initial_emission.T)
    total = joint.sum(axis=-1)
    impossible = total.mantissa == 0
    posterior = joint / total[:, None]
    return where(impossible[:, None], Wide.of(initial), posterior), impossible


def likelihoods(hmm: TwoTimescaleHMM, skip_never: bool) -> tuple[Array, np.ndarray]:
    """`emission[:, u, v]` as `(V, V, K)`, and the pairs `(V, V)` that no regime emits.

    With `skip_never` those have likelihood 1 in every regime: they tell nothing, and are scored apart. Where every
    transition is positive no other token is impossible.
    """
    table = np.ascontiguousarray(hmm.emission.transpose(1, 2, 0))
    never = (table == 0).all(axis=-1)
    return np.where(never[..., None] & skip_never, 1.0, table), never
