"""The five predictors, by loops over time: the definition that the fast forms are compared with.

Each is the Bayesian filter under one restriction. With `p_t` the posterior over `z_t` and `M` the predictor's
transition, `prior_{t+1} = p_t M` and `P(x_{t+1} | x_0..x_t) = sum_j prior_{t+1}[j] emission[j, x_t, x_{t+1}]`; the
posterior `p_{t+1}` is proportional to the summands. Weights have exponents of their own (`filters.wide`): nothing is
floored, and no evidence is lost, however far it turns.

Tokens are `(..., T)`: leading dimensions are sequences. An impossible token raises `ImpossibleObservation`; with
`impossible="-inf"` its log-probability is -inf and the filter goes on as if it had told nothing of the regime.

Reference: State-space book, section 14.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filters.hmm import Array, ImpossibleObservation, TwoTimescaleHMM, forgetting_transition
from filters.wide import Wide, stack, where

Impossible = Literal["raise", "-inf"]
Edge = Literal["uniform", "stationary"]


@dataclass(frozen=True, eq=False)
class FilterResult:
    """What a predictor believes along a sequence of `T` tokens.

    `log_prob` `(..., T-1)`: `[t] = log P(x_{t+1} | x_0..x_t)`, nats. `prior` `(..., T-1, K)`: `[t]` over `z_{t+1}`
    given `x_0..x_t`. `posterior` `(..., T, K)`: `[t]` over `z_t` given `x_0..x_t`. `emission` `(K, V, V)`: the tables
    it predicts with where they are not the model's (the unigram), else None.
    """

    log_prob: Any
    prior: Any
    posterior: Any
    emission: Array | None = None


def forward(hmm: TwoTimescaleHMM, tokens: ArrayLike, *, impossible: Impossible = "raise") -> FilterResult:
    """The Bayes-optimal predictor: the forward filter with the model's own transition."""
    x = hmm.check_tokens(tokens)
    return _result(*_filter(hmm, x, hmm.transition, impossible), hmm, x, impossible)


def fixed_decay(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, rate: float, *, impossible: Impossible = "raise"
) -> FilterResult:
    """The filter with `forgetting_transition(K, rate)` for the transition: a state forgotten at a fixed rate."""
    x = hmm.check_tokens(tokens)
    return _result(*_filter(hmm, x, forgetting_transition(hmm.regimes, rate), impossible), hmm, x, impossible)


def unigram(hmm: TwoTimescaleHMM, tokens: ArrayLike, *, impossible: Impossible = "raise") -> FilterResult:
    """The forward filter that believes each token drawn from the regime's stationary unigram: no bigrams."""
    believed = hmm.unigram_model
    result = forward(believed, tokens, impossible=impossible)
    return FilterResult(result.log_prob, result.prior, result.posterior, believed.emission)


def window(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, width: int, edge: Edge = "uniform", *, impossible: Impossible = "raise"
) -> FilterResult:
    """The filter that sees the last `width` tokens `x_{t-width+1}..x_t` only.

    The regime at the edge `s = t - width + 1` has the uniform law (`edge="uniform"`, the book's) or `P(z_s | x_s)` of
    the stationary stream (`"stationary"`: on a stationary stream no predictor from `width` tokens is better). A window
    that reaches `x_0` starts from `initial`, and one of `width >= T` is the forward filter.

    Raises:
        ValueError: `width < 1` or an unknown edge.
    """
    x = hmm.check_tokens(tokens)
    return _windowed(hmm, x, width, edge_laws(hmm, x, edge), impossible)


def composite(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, width: int, rate: float, *, impossible: Impossible = "raise"
) -> FilterResult:
    """As `window`, started at its edge from the posterior of `fixed_decay` at `rate`: a window with a carried state.

    At the matched rate it is the forward filter at every width; at rate 1, under a doubly stochastic transition and
    from a uniform `initial`, it is `window(width + 1)`.
    """
    x = hmm.check_tokens(tokens)
    carried, _, _ = _filter(hmm, x, forgetting_transition(hmm.regimes, rate), impossible)
    return _windowed(hmm, x, width, carried, impossible)


def predictive(hmm: TwoTimescaleHMM, tokens: ArrayLike, result: FilterResult, positions: Any = None) -> Array:
    """`P(x_{t+1} = v | x_0..x_t) = sum_j prior[t, j] emission[j, x_t, v]` at the `positions` t, `(..., n, V)`.

    `positions` indexes `0..T-2`: integers `(n,)`, a slice or a boolean mask; None for all of them.
    """
    x = hmm.check_tokens(tokens)
    index = np.arange(x.shape[-1] - 1)[slice(None) if positions is None else positions]
    emission = hmm.emission if result.emission is None else result.emission
    rows = emission.transpose(1, 0, 2)[x[..., index]]
    return np.einsum("...j,...jv->...v", result.prior[..., index, :], rows)


def edge_laws(hmm: TwoTimescaleHMM, x: NDArray[np.int64], edge: Edge) -> Wide:
    """The law of `z_s` from which a window starts whose first token is `x_s`, `(..., T, K)`; at `s = 0` unused."""
    if edge == "uniform":
        laws = np.full((*x.shape, hmm.regimes), 1.0 / hmm.regimes)
    elif edge == "stationary":
        laws = hmm.edge_posterior[x]
    else:
        raise ValueError(f"edge is {edge!r}; it is 'uniform' or 'stationary'")
    return Wide.of(laws)


def _start(hmm: TwoTimescaleHMM, x: NDArray[np.int64], impossible: Impossible) -> Wide:
    """The posterior over `z_0`, `(..., K)`."""
    initial = Wide.of(np.broadcast_to(hmm.initial, (*x.shape[:-1], hmm.regimes)))
    if hmm.initial_emission is None:
        return initial
    posterior, log_prob = _absorb(initial, Wide.of(hmm.initial_emission.T[x[..., 0]]))
    if impossible == "raise":
        raise_impossible(log_prob[..., None], 0)
    return posterior


def _advance(posterior: Wide, transition: Wide) -> Wide:
    """`p M` for `p` `(..., K)` and `M` `(K, K)`."""
    return (posterior[..., :, None] * transition).sum(axis=-2)


def _absorb(prior: Wide, likelihood: Wide) -> tuple[Wide, Array]:
    """The posterior `(..., K)` and the log-probability `(...)` of what was seen; of the impossible, prior and -inf."""
    joint = prior * likelihood
    total = joint.sum(axis=-1)
    posterior = joint / total[..., None]
    return where(total.mantissa[..., None] == 0, prior, posterior), total.log()


def _likelihood(hmm: TwoTimescaleHMM, x: NDArray[np.int64]) -> Wide:
    """`emission[:, x_t, x_{t+1}]`, `(..., T-1, K)`."""
    return Wide.of(hmm.emission.transpose(1, 2, 0)[x[..., :-1], x[..., 1:]])


def _filter(
    hmm: TwoTimescaleHMM, x: NDArray[np.int64], transition: Array, impossible: Impossible
) -> tuple[Wide, Wide, Array]:
    """The recursion over time: posterior `(..., T, K)`, prior `(..., T-1, K)`, log-probability `(..., T-1)`."""
    table, likelihood = Wide.of(transition), _likelihood(hmm, x)
    posteriors, priors, log_probs = [_start(hmm, x, impossible)], [], []
    for t in range(x.shape[-1] - 1):
        priors.append(_advance(posteriors[-1], table))
        posterior, log_prob = _absorb(priors[-1], likelihood[..., t, :])
        posteriors.append(posterior)
        log_probs.append(log_prob)
    prior = stack(priors) if priors else likelihood
    return stack(posteriors), prior, np.stack(log_probs, axis=-1) if log_probs else np.zeros((*x.shape[:-1], 0))


def _windowed(
    hmm: TwoTimescaleHMM, x: NDArray[np.int64], width: int, laws: Wide, impossible: Impossible
) -> FilterResult:
    """All windows at once, each absorbing its tokens in order: `O(T width)`."""
    if width < 1:
        raise ValueError(f"width is {width}; the least is 1")
    length = x.shape[-1]
    if width >= length:
        return _result(*_filter(hmm, x, hmm.transition, impossible), hmm, x, impossible)
    table, likelihood = Wide.of(hmm.transition), _likelihood(hmm, x)
    laws[..., 0, :] = _start(hmm, x, impossible)
    posterior = laws[..., np.maximum(np.arange(length) - width + 1, 0), :]
    for step in range(1, width):
        late = slice(width - step, None)  # windows for which this step is not before x_0
        seen = likelihood[..., : length - width + step, :]
        absorbed, log_prob = _absorb(_advance(posterior[..., late, :], table), seen)
        if impossible == "raise":
            raise_impossible(log_prob, 1)
        posterior[..., late, :] = absorbed
    prior = _advance(posterior[..., :-1, :], table)
    _, log_prob = _absorb(prior, likelihood)
    return _result(posterior, prior, log_prob, hmm, x, impossible)


def _result(
    posterior: Wide, prior: Wide, log_prob: Array, hmm: TwoTimescaleHMM, x: NDArray[np.int64], impossible: Impossible
) -> FilterResult:
    if impossible == "raise":
        raise_impossible(log_prob, 1)
    elif impossible != "-inf":
        raise ValueError(f"impossible is {impossible!r}; it is 'raise' or '-inf'")
    return FilterResult(log_prob, prior.float(), posterior.float())


def raise_impossible(log_prob: Array, offset: int) -> None:
    """Raises `ImpossibleObservation` for the first -inf in time of `log_prob` `(..., n)`, `offset` tokens later."""
    impossible = np.isneginf(log_prob)
    if impossible.any():
        position = int(np.argmax(impossible.any(axis=tuple(range(impossible.ndim - 1)))))
        sequence = np.argwhere(impossible[..., position])[0]
        raise ImpossibleObservation(position + offset, tuple(int(i) for i in sequence))
