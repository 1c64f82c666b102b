"""Hidden Markov models for the `hmm` task: named ones, models from a file, and the conversion of edge-emitting ones.

An edge-emitting model has `edges[x, i, j] = P(token x, next state j | state i)`. `filters.hmm` emits from regimes, so
that it is converted by pair states: a regime is an edge `i -> j` of positive probability `P_ij = sum_x edges[x, i, j]`,

    P((j, k) | (i, j)) = P_jk,    P(x | (i, j)) = edges[x, i, j] / P_ij,    P((i, j) at 0) = initial_i P_ij

The regime at `x_t` is the edge on which `x_t` was emitted, and its second state is the state after `x_t`.

References: Marzen and Crutchfield (2017), Nearly maximally predictive features (Mess3); Shai et al. (2024),
Transformers represent belief state geometry (arXiv 2405.15943); Liu et al. (2023), Transformers learn shortcuts to
automata (arXiv 2210.10749) for state tracking.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filters.hmm import ModelError, TwoTimescaleHMM
from filters.stationary import stationary_law

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Machine:
    """A model in the form of `filters.hmm`, with what is needed to sample it and to speak of its states.

    `hmm`: the regimes' form. `state` `(K,)`: the state that a regime stands for once its token is read. `states`: their
    number. `edges` `(V, S, S)` and `initial` `(S,)`: the edge-emitting form that sequences are drawn from, and
    `first` `(S,)`: the token that starts a sequence in each of its states, None where the first edge emits it.
    """

    hmm: TwoTimescaleHMM
    state: NDArray[np.int64]
    states: int
    edges: Array
    initial: Array
    first: NDArray[np.int64] | None = None

    @property
    def stationary(self) -> bool:
        """Whether sequences start in the stationary law of the states."""
        law = stationary_law(self.edges.sum(0), self.initial)
        return bool(np.abs(law - self.initial).max() < 1e-12)

    @property
    def even(self) -> bool:
        """Whether state and token determine the next state, and a token is as likely in all states that allow it.

        Then the weights of states move and merge but do not drift apart, so that a plain recursion loses none.
        """
        likely = self.edges.sum(2)
        alike = np.isclose(likely, likely.max(1, keepdims=True), rtol=1e-12, atol=0) | (likely == 0)
        return self.first is None and bool(((self.edges > 0).sum(2) <= 1).all() and alike.all())


def from_edges(edges: Array, initial: Array) -> Machine:
    """The machine of an edge-emitting model, by pair states. Raises `ModelError` where a row is no distribution."""
    edges, initial = np.asarray(edges, dtype=np.float64), np.asarray(initial, dtype=np.float64)
    if edges.ndim != 3 or edges.shape[1] != edges.shape[2] or initial.shape != edges.shape[1:2]:
        raise ModelError(f"edges must be (V, K, K) and initial (K,), not {edges.shape} and {initial.shape}")
    if (edges < 0).any() or not np.allclose(edges.sum((0, 2)), 1, rtol=0, atol=1e-9):
        raise ModelError("edges must be non-negative and sum to 1 over tokens and next states")
    step = edges.sum(0)
    start, end = (index.astype(np.int64) for index in np.nonzero(step))
    transition = np.where(end[:, None] == start[None, :], step[start, end][None, :], 0.0)
    emitted = edges[:, start, end].T / step[start, end][:, None]
    emission = np.repeat(emitted[:, None, :], len(edges), axis=1)
    hmm = TwoTimescaleHMM(transition, emission, initial[start] * step[start, end], emitted)
    return Machine(hmm, end, len(initial), edges, initial)


def from_hmm(hmm: TwoTimescaleHMM) -> Machine:
    """The machine of a model that emits from regimes; it is drawn as a walk over (regime, token)."""
    regimes, vocab = hmm.regimes, hmm.vocab_size
    edges = np.zeros((vocab, regimes, vocab, regimes, vocab))
    for token in range(vocab):
        edges[token, :, :, :, token] = np.einsum("ij,ju->iuj", hmm.transition, hmm.emission[:, :, token])
    size = regimes * vocab
    first = np.full((regimes, vocab), 1 / vocab) if hmm.initial_emission is None else hmm.initial_emission
    initial = (hmm.initial[:, None] * first).ravel()
    tokens = np.tile(np.arange(vocab), regimes)
    return Machine(hmm, np.arange(regimes), regimes, edges.reshape(vocab, size, size), initial, tokens)


def mess3(alpha: float, x: float) -> Machine:
    """Three states, three tokens: stay with `1 - 2x`; the state entered emits its own token with `alpha`."""
    stay = np.full((3, 3), x) + (1 - 3 * x) * np.eye(3)
    emit = np.full((3, 3), (1 - alpha) / 2) + (3 * alpha - 1) / 2 * np.eye(3)
    return from_edges(np.einsum("ij,jx->xij", stay, emit), np.full(3, 1 / 3))


def z1r() -> Machine:
    """Zero, one, random, over and over: `S0 -0-> S1 -1-> SR -0 or 1-> S0`."""
    edges = np.zeros((2, 3, 3))
    edges[0, 0, 1] = edges[1, 1, 2] = 1
    edges[:, 2, 0] = 0.5
    return from_edges(edges, np.full(3, 1 / 3))


def rrxor() -> Machine:
    """Two random bits, then their exclusive or, over and over; five states."""
    edges = np.zeros((2, 5, 5))
    edges[0, 0, 1] = edges[1, 0, 2] = 0.5
    for bit in (0, 1):
        edges[bit, 1, 3 + bit] = edges[bit, 2, 3 + (1 - bit)] = 0.5
        edges[bit, 3 + bit, 0] = 1
    return from_edges(edges, np.array([1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6]))


def parity(bias: float) -> Machine:
    """Independent bits, one with probability `bias`; the state is the parity so far, from 0."""
    edges = np.zeros((2, 2, 2))
    edges[0] = (1 - bias) * np.eye(2)
    edges[1] = bias * (1 - np.eye(2))
    return from_edges(edges, np.array([1.0, 0.0]))


def permutations(degree: int) -> Machine:
    """Uniform tokens: do nothing, or swap two neighbours; the state is the arrangement of `degree` items so far."""
    arrangements = list(itertools.permutations(range(degree)))
    number = {arrangement: index for index, arrangement in enumerate(arrangements)}
    edges = np.zeros((degree, len(arrangements), len(arrangements)))
    for arrangement, index in number.items():
        edges[0, index, index] = 1 / degree
        for place in range(degree - 1):
            moved = list(arrangement)
            moved[place], moved[place + 1] = moved[place + 1], moved[place]
            edges[place + 1, index, number[tuple(moved)]] = 1 / degree
    initial = np.zeros(len(arrangements))
    initial[0] = 1
    return from_edges(edges, initial)


def random_edges(states: int, tokens: int, concentration: float, seed: int) -> Machine:
    """Edges of each state from a symmetric Dirichlet distribution over (token, next state); stationary start."""
    draws = np.random.default_rng(seed).dirichlet(np.full(tokens * states, concentration), size=states)
    edges = draws.reshape(states, tokens, states).transpose(1, 0, 2)
    edges = edges / edges.sum((0, 2), keepdims=True)
    return from_edges(edges, stationary_law(edges.sum(0)))


def read_file(path: str) -> tuple[Machine, str]:
    """A model from `.npz` or `.json`, and the file's SHA-256.

    It holds `edges` and `initial`, or `transition`, `emission`, `initial` and perhaps `initial_emission`, as in
    `filters.hmm`. Raises `ModelError` for other contents, OSError where the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        tables: dict[str, Any] = json.loads(data) if path.endswith(".json") else dict(np.load(path, allow_pickle=False))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is neither JSON nor npz: {error}") from None
    named = {key: np.asarray(value, dtype=np.float64) for key, value in tables.items()}
    digest = hashlib.sha256(data).hexdigest()
    if set(named) == {"edges", "initial"}:
        return from_edges(named["edges"], named["initial"]), digest
    if {"transition", "emission", "initial"} <= set(named) <= {"transition", "emission", "initial", "initial_emission"}:
        return from_hmm(TwoTimescaleHMM(**named)), digest
    raise ModelError(
        f"{path} holds {', '.join(sorted(named)) or 'nothing'}; expected edges and initial, or transition, emission, "
        "initial and perhaps initial_emission"
    )
