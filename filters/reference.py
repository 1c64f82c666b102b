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

from filters.checks import checked_integer
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
    return _filtered(hmm, hmm.check_tokens(tokens), hmm.transition, impossible)


def fixed_decay(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, rate: float, *, impossible: Impossible = "raise"
) -> FilterResult:
    """The filter with `forgetting_transition(K, rate)` for the transition: a state forgotten at a fixed rate."""
    return _filtered(hmm, hmm.check_tokens(tokens), forgetting_transition(hmm.regimes, rate), impossible)


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
        ValueError: a width that is no integer of at least 1, or an unknown edge.
    """
    x, laws = hmm.check_tokens(tokens), edge_table(hmm, edge)
    if (width := checked_width(width)) >= x.shape[-1]:
        return _filtered(hmm, x, hmm.transition, impossible)
    return _windowed(hmm, x, width, Wide.of(laws[x]), impossible)


def composite(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, width: int, rate: float, *, impossible: Impossible = "raise"
) -> FilterResult:
    """As `window`, started at its edge from the posterior of `fixed_decay` at `rate`: a window with a carried state.

    At the matched rate it is the forward filter at every width; at rate 1, under a doubly stochastic transition and
    from a uniform `initial`, it is `window(width + 1)`.
    """
    x, forgetting = hmm.check_tokens(tokens), forgetting_transition(hmm.regimes, rate)
    if (width := checked_width(width)) >= x.shape[-1]:
        return _filtered(hmm, x, hmm.transition, impossible)
    carried, _, log_prob = _filter(hmm, x, forgetting)
    return _windowed(hmm, x, width, carried, impossible, np.isneginf(log_prob))


def predictive(hmm: TwoTimescaleHMM, tokens: ArrayLike, result: FilterResult, positions: Any = None) -> Array:
    """`P(x_{t+1} = v | x_0..x_t) = sum_j prior[t, j] emission[j, x_t, v]` at the `positions` t, `(..., n, V)`.

    `positions` indexes `0..T-2`: integers `(n,)`, a slice or a boolean mask; None for all of them.
    """
    x = hmm.check_tokens(tokens)
    index = np.arange(x.shape[-1] - 1)[slice(None) if positions is None else positions]
    emission = hmm.emission if result.emission is None else result.emission
    rows = emission.transpose(1, 0, 2)[x[..., index]]
    return np.einsum("...j,...jv->...v", result.prior[..., index, :], rows)


def edge_table(hmm: TwoTimescaleHMM, edge: Edge) -> Array:
    """`(V, K)`: the law of `z_s` from which a window starts, by its first token `x_s`."""
    if edge == "uniform":
        return np.full((hmm.vocab_size, hmm.regimes), 1.0 / hmm.regimes)
    if edge == "stationary":
        return hmm.edge_posterior
    raise ValueError(f"edge is {edge!r}; it is 'uniform' or 'stationary'")


def checked_width(width: int) -> int:
    """`width` as an int, or a ValueError."""
    return checked_integer("width", width, 1)


def checked_mode(impossible: Impossible) -> Impossible:
    """`impossible`, or a ValueError."""
    if impossible not in ("raise", "-inf"):
        raise ValueError(f"impossible is {impossible!r}; it is 'raise' or '-inf'")
    return impossible


def impossible_observation(found: NDArray[np.bool_]) -> ImpossibleObservation:
    """The error for the first token in time that is marked in `found` `(..., T)`."""
    position = int(found.any(axis=tuple(range(found.ndim - 1))).argmax())
    return ImpossibleObservation(position, tuple(int(i) for i in np.argwhere(found[..., position])[0]))


def _start(hmm: TwoTimescaleHMM, x: NDArray[np.int64]) -> Wide:
    """The posterior over `z_0`, `(..., K)`."""
    initial = Wide.of(np.broadcast_to(hmm.initial, (*x.shape[:-1], hmm.regimes)))
    if hmm.initial_emission is None:
        return initial
    return _absorb(initial, Wide.of(hmm.initial_emission.T[x[..., 0]]))[0]


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


def _filter(hmm: TwoTimescaleHMM, x: NDArray[np.int64], transition: Array) -> tuple[Wide, Wide, Array]:
    """The recursion over time: posterior `(..., T, K)`, prior `(..., T-1, K)`, log-probability `(..., T-1)`."""
    table, likelihood = Wide.of(transition), _likelihood(hmm, x)
    posteriors, priors, log_probs = [_start(hmm, x)], [], []
    for t in range(x.shape[-1] - 1):
        priors.append(_advance(posteriors[-1], table))
        posterior, log_prob = _absorb(priors[-1], likelihood[..., t, :])
        posteriors.append(posterior)
        log_probs.append(log_prob)
    prior = stack(priors) if priors else likelihood
    return stack(posteriors), prior, np.stack(log_probs, axis=-1) if log_probs else np.zeros((*x.shape[:-1], 0))


def _filtered(hmm: TwoTimescaleHMM, x: NDArray[np.int64], transition: Array, impossible: Impossible) -> FilterResult:
    """The result of the filter with one transition."""
    posterior, prior, log_prob = _filter(hmm, x, transition)
    if checked_mode(impossible) == "raise":
        raise_impossible(hmm, x, np.isneginf(log_prob))
    return FilterResult(log_prob, prior.float(), posterior.float())


def _windowed(
    hmm: TwoTimescaleHMM,
    x: NDArray[np.int64],
    width: int,
    laws: Wide,
    impossible: Impossible,
    missed: NDArray[np.bool_] | bool = False,
) -> FilterResult:
    """All windows at once, each absorbing its tokens in order from `laws` `(..., T, K)` at its edge: `O(T width)`.

    `missed` `(..., T-1)` marks further tokens, from the second on, that are impossible.
    """
    length = x.shape[-1]
    table, likelihood = Wide.of(hmm.transition), _likelihood(hmm, x)
    laws[..., 0, :] = _start(hmm, x)
    posterior = laws[..., np.maximum(np.arange(length) - width + 1, 0), :]
    lost = np.zeros(x.shape, dtype=bool)
    for step in range(1, width):
        late = slice(width - step, None)  # the windows in which this step is not before x_0
        prior = _advance(posterior[..., late, :], table)
        posterior[..., late, :], log_prob = _absorb(prior, likelihood[..., : length - width + step, :])
        lost[..., late] |= np.isneginf(log_prob)
    prior = _advance(posterior[..., :-1, :], table)
    _, log_prob = _absorb(prior, likelihood)
    if checked_mode(impossible) == "raise":
        raise_impossible(hmm, x, missed | np.isneginf(log_prob), lost)
    return FilterResult(log_prob, prior.float(), posterior.float())


def raise_impossible(
    hmm: TwoTimescaleHMM,
    x: NDArray[np.int64],
    missed: NDArray[np.bool_],
    lost: NDArray[np.bool_] | None = None,
) -> None:
    """Raises `ImpossibleObservation` for the first token `x` `(..., T)` that the evidence before it excludes.

    `missed` `(..., T-1)` marks predictions that gave the next token probability zero, `lost` `(..., T)` windows whose
    own tokens are impossible together.
    """
    found = np.zeros(x.shape, dtype=bool) if lost is None else lost
    found[..., 1:] |= missed
    if hmm.initial_emission is not None:
        found[..., 0] |= ~((hmm.initial > 0) & (hmm.initial_emission.T[x[..., 0]] > 0)).any(axis=-1)
    if found.any():
        raise impossible_observation(found)
