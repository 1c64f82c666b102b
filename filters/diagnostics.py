"""What a two-timescale model is like: how well its regimes can be told apart."""

from __future__ import annotations

import numpy as np

from filters.hmm import Array, TwoTimescaleHMM


def pairwise_discrimination(hmm: TwoTimescaleHMM) -> Array:
    """`KL(B_i[u] || B_j[u])` in nats, `(K, K, V)`; inf where regime i emits what regime j cannot."""
    own, other = hmm.emission[:, None], hmm.emission[None, :]
    shape = np.broadcast_shapes(own.shape, other.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = own * (np.log(own) - np.log(other))
    return np.where(np.broadcast_to(own > 0, shape), terms, 0.0).sum(axis=-1)


def mean_discrimination(hmm: TwoTimescaleHMM) -> float:
    """The plain mean of `pairwise_discrimination` over ordered pairs of regimes and source tokens; 0 for one regime.

    Reference: State-space book, section 14.6.
    """
    if hmm.regimes == 1:
        return 0.0
    different = ~np.eye(hmm.regimes, dtype=bool)
    return float(pairwise_discrimination(hmm)[different].mean())
