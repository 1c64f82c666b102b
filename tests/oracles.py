"""Slow, obvious and independent answers to what the library computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Beliefs(NamedTuple):
    """Prediction and beliefs at one position: `probability` of the next token, `prior` (K,), `posterior` (K,)."""

    probability: float
    prior: Array
    posterior: Array


@cache
def every_path(regimes: int, length: int) -> Array:
    """All sequences of regimes, `(K^T, T)`."""
    return np.array(list(itertools.product(range(regimes), repeat=length)))


def path_weights(first: Array, transition: Array, emission: Array, tokens: Array) -> tuple[Array, Array]:
    """Every regime path `(K^T, T)` with its joint probability with the tokens `(K^T,)`; `first` weighs `z_0`."""
    paths = every_path(len(first), len(tokens))
    weights = np.array(first, dtype=float)[paths[:, 0]]
    for t in range(1, len(tokens)):
        before, after = paths[:, t - 1], paths[:, t]
        weights = weights * transition[before, after] * emission[after, tokens[t - 1], tokens[t]]
    return paths, weights


def beliefs(first: Array, transition: Array, emission: Array, tokens: Array, following: int) -> Beliefs | None:
    """What the paths over `tokens` say of the token `following` them; None if the tokens are impossible."""
    paths, weights = path_weights(first, transition, emission, tokens)
    if weights.sum() == 0:
        return None
    ends = np.array([weights[paths[:, -1] == regime].sum() for regime in range(len(first))])
    posterior = ends / ends.sum()
    prior = sum(posterior[i] * transition[i] for i in range(len(first)))
    return Beliefs(float(sum(prior * emission[:, tokens[-1], following])), np.asarray(prior), posterior)


def windowed(hmm: Any, tokens: Array, width: int, edge_law: Callable[[int], Array]) -> list[Beliefs | None]:
    """Beliefs at each position from the last `width` tokens; `edge_law(s)` is the law of `z_s` where s > 0."""
    answers = []
    for t in range(len(tokens) - 1):
        s = max(0, t - width + 1)
        first = first_law(hmm, tokens) if s == 0 else edge_law(s)
        answers.append(beliefs(first, hmm.transition, hmm.emission, tokens[s : t + 1], tokens[t + 1]))
    return answers


def first_law(hmm: Any, tokens: Array) -> Array:
    """`P(z_0) P(x_0 | z_0)`, `(K,)`."""
    return hmm.initial if hmm.initial_emission is None else hmm.initial * hmm.initial_emission[:, tokens[0]]


def running_average(transition: Array, start: Array, doublings: int = 100) -> Array:
    """`lim (1/n) sum start P^t`: the lazy chain `(I + P) / 2` has the same limit and converges by itself."""
    power = (np.eye(len(transition)) + transition) / 2
    for _ in range(doublings):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    return start @ power
