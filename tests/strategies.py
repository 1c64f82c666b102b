"""Hypothesis strategies for two-timescale models and streams, the hard cases among them.

Rows are drawn from ordinary and extreme weights, so that zeros, one-hot rows, near-deterministic rows, frozen regimes
and entries of 1e-20 are frequent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from filters.hmm import TwoTimescaleHMM, sticky_transition

ORDINARY = st.floats(0.05, 1.0)
EXTREME = st.sampled_from([0.0, 0.0, 1e-20, 1e-8, 1.0, 1.0])


def rows(size: int, weights: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Distributions over `size` outcomes, from weights of which at least one is positive."""
    lists = st.lists(weights, min_size=size, max_size=size).filter(lambda row: sum(row) > 0)
    return lists.map(lambda row: np.array(row) / np.sum(row))


@st.composite
def tables(draw: st.DrawFn, shape: tuple[int, ...], weights: st.SearchStrategy[float]) -> np.ndarray[Any, Any]:
    """Distributions along the last axis of `shape`."""
    count = int(np.prod(shape[:-1]))
    return np.stack([draw(rows(shape[-1], weights)) for _ in range(count)]).reshape(shape)


@st.composite
def hmms(
    draw: st.DrawFn, max_regimes: int = 4, max_vocab: int = 4, positive: bool = False, sticky: bool = False
) -> TwoTimescaleHMM:
    """Models; with `positive` no entry is below 0.01 or so, with `sticky` regimes are exchangeable."""
    regimes, vocab = draw(st.integers(1, max_regimes)), draw(st.integers(1, max_vocab))

    def weights() -> st.SearchStrategy[float]:
        return ORDINARY if positive or draw(st.booleans()) else EXTREME

    if sticky:
        rate = draw(st.floats(0.0, (regimes - 1) / regimes) | st.sampled_from([0.0, 1e-20, 1e-3]))
        transition = sticky_transition(regimes, min(rate, (regimes - 1) / regimes))
    else:
        transition = draw(tables((regimes, regimes), weights()))
    emission = draw(tables((regimes, vocab, vocab), weights()))
    initial = draw(st.just(np.full(regimes, 1 / regimes)) | rows(regimes, weights()))
    first = draw(st.none() | tables((regimes, vocab), weights()))
    return TwoTimescaleHMM(transition, emission, initial, first)


@st.composite
def streams(draw: st.DrawFn, hmm: TwoTimescaleHMM, min_length: int = 1, max_length: int = 7) -> np.ndarray[Any, Any]:
    """Tokens that the model can emit, `(T,)`; rare ones as often as likely ones."""
    length = draw(st.integers(min_length, max_length))
    pick = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def support(law: np.ndarray[Any, Any]) -> int:
        return int(pick.choice(np.flatnonzero(law > 0)))

    z = support(hmm.initial)
    first = np.ones(hmm.vocab_size) if hmm.initial_emission is None else hmm.initial_emission[z]
    tokens = [support(first)]
    while len(tokens) < length:
        z = support(hmm.transition[z])
        tokens.append(support(hmm.emission[z, tokens[-1]]))
    return np.array(tokens)


@st.composite
def models_with_streams(
    draw: st.DrawFn, min_length: int = 1, max_length: int = 7, **options: Any
) -> tuple[TwoTimescaleHMM, np.ndarray[Any, Any]]:
    """A model and tokens that it can emit."""
    hmm = draw(hmms(**options))
    return hmm, draw(streams(hmm, min_length, max_length))
