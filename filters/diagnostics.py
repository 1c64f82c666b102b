"""What a two-timescale model asks of a predictor: how soon the regime shows, how long it lasts, what forgetting costs.

A task tells a window from a carried state only where its timescales are in order: `w << identification << 1 / eps`.

Reference: State-space book, section 14.6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from filters import reference
from filters.checks import checked_integer, checked_name
from filters.hmm import Array, TwoTimescaleHMM
from filters.reference import FilterResult
from filters.sampling import sample

APART = 0.5
"""Timescales are told apart below this ratio."""
PREDICTORS = ("forward", "fixed_decay", "unigram", "window", "composite")


class Estimate(NamedTuple):
    """A Monte-Carlo mean with its standard error over independent sequences."""

    mean: float
    standard_error: float


class Identification(NamedTuple):
    """Tokens of the new regime until the exact posterior gives it more than the confidence asked for."""

    mean: float
    standard_error: float
    median: float
    unidentified: float
    """The share of switches not identified within the horizon, which count as the horizon."""


class Excess(NamedTuple):
    """Nats per token over the forward filter, as two estimates of the same number on the same sequences."""

    divergence: Estimate
    """The mean KL divergence of the predictions; never negative."""
    sampled: Estimate
    """The mean difference of the log-losses."""


class Separation(NamedTuple):
    """Whether a task tells a window from a carried state, and why not."""

    width_over_identification: float
    identification_over_dwelling: float
    """The measured identification time against `1 / eps`."""
    excess: Excess
    resolution: float
    """The least excess that the evaluation can tell from zero."""
    verdict: str


def pairwise_discrimination(hmm: TwoTimescaleHMM) -> Array:
    """`KL(B_i[u] || B_j[u])` in nats, `(K, K, V)`; inf where regime i emits what regime j cannot."""
    own, other = hmm.emission[:, None], hmm.emission[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = own * (np.log(own) - np.log(other))
    return np.where(np.broadcast_to(own > 0, terms.shape), terms, 0.0).sum(axis=-1)


def mean_discrimination(hmm: TwoTimescaleHMM) -> float:
    """The plain mean of `pairwise_discrimination` over ordered pairs of regimes and source tokens; 0 for one regime."""
    if hmm.regimes == 1:
        return 0.0
    different = ~np.eye(hmm.regimes, dtype=bool)
    return float(pairwise_discrimination(hmm)[different].mean())


def stationary_discrimination(hmm: TwoTimescaleHMM) -> float:
    """`pairwise_discrimination` as the stationary stream meets it: nats per token in favour of the true regime.

    Regime and source token weigh what they weigh in the stream, the other regime what it weighs among the others.
    Infinite only if a token that excludes a regime occurs in the stream.
    """
    if hmm.regimes == 1:
        return 0.0
    weight = (hmm.transition.T @ hmm.stationary_joint)[:, None, :] * _others(hmm)[:, :, None]
    return _expectation(pairwise_discrimination(hmm), weight)


def excluding_share(hmm: TwoTimescaleHMM) -> float:
    """The share of (regime, other regime, source token) whose discrimination is infinite."""
    if hmm.regimes == 1:
        return 0.0
    return float(np.isinf(pairwise_discrimination(hmm)[~np.eye(hmm.regimes, dtype=bool)]).mean())


def switch_rate(hmm: TwoTimescaleHMM) -> float:
    """The stationary probability per token that the regime changes; eps for a sticky chain."""
    leaving = np.where(np.eye(hmm.regimes, dtype=bool), 0.0, hmm.transition).sum(axis=1)
    return float(hmm.stationary_regime @ leaving)


def mixing_time(hmm: TwoTimescaleHMM) -> float:
    """`1 / (1 - |lambda_2|)` of the regime chain, tokens: `1 / lambda*` for a sticky chain.

    Infinite if the chain never forgets (frozen, reducible or periodic), 0 for one regime. Computed from `I - T` with
    the rows' exact sums, so that a switching rate of 1e-20 is told from none.
    """
    if hmm.regimes == 1:
        return 0.0
    generator = -np.where(np.eye(hmm.regimes, dtype=bool), 0.0, hmm.transition)
    np.fill_diagonal(generator, -generator.sum(axis=1))
    spectrum = np.linalg.eigvals(generator)
    slow = np.delete(spectrum, np.abs(spectrum).argmin())
    # 1 - |1 - mu| without its cancellation
    gaps = (2 * slow.real - np.abs(slow) ** 2) / (1 + np.abs(1 - slow))
    gap = float(gaps.min())
    return float("inf") if gap <= 1e-14 * float(np.abs(generator).max()) else 1 / gap


def effective_state_size(operator: Array) -> float:
    """The participation ratio of an operator's singular values, `(sum s)^2 / sum s^2`: n for n equal ones."""
    values = np.linalg.svd(np.atleast_2d(operator), compute_uv=False)
    return float(values.sum() ** 2 / (values**2).sum()) if values.any() else 0.0


def prediction_operator(hmm: TwoTimescaleHMM) -> Array:
    """`(K, V^2)`: `[k, (u, v)] = P(x_t = u) emission[k, u, v]`: what the next regime k makes of every source token.

    A law `p` over the next regime predicts `p @ emission[:, u]` after u; this is that map for all u at once, each
    weighted by `P(x_t = u)` in the stationary stream whatever the regime: not the joint law of `(x_t, x_{t+1})` given
    the regime, whose sources would depend on it too. Its effective state size is the number of directions of the belief
    that predictions tell apart: 1 where all tables are alike, at most K.
    """
    source = hmm.stationary_joint.sum(axis=0)
    return (source[None, :, None] * hmm.emission).reshape(hmm.regimes, -1)


def identification_time(hmm: TwoTimescaleHMM, confidence: float = 0.5) -> float:
    """Tokens until a new regime has posterior `confidence`, as its information goes.

    Against regime j the regime i, sure so far, starts from log-odds `log(T_ii / T_ij)`, and each token brings
    `stationary_discrimination` nats: the deficit, averaged over switches, plus the log-odds of `confidence`, over the
    information. Where regimes never switch, the deficit is that of `initial`. Infinite if nothing tells the regimes
    apart, 0 if one token may settle it or there is one regime.

    Raises:
        ValueError: a confidence outside the open interval from 0 to 1.
    """
    _checked_confidence(confidence)
    if hmm.regimes == 1:
        return 0.0
    switches, information = _switches(hmm), stationary_discrimination(hmm)
    with np.errstate(divide="ignore", invalid="ignore"):
        if switches is None:
            deficit, weights = np.log(1 - hmm.initial) - np.log(hmm.initial), hmm.initial
        else:
            deficit, weights = np.log(np.diag(hmm.transition))[:, None] - np.log(hmm.transition), switches
    nats = max(0.0, _expectation(deficit, weights) + np.log(confidence / (1 - confidence)))
    return float("inf") if information == 0 else nats / information


def measured_identification_time(
    hmm: TwoTimescaleHMM, confidence: float = 0.5, *, switches: int = 256, horizon: int | None = None, seed: int = 0
) -> Identification:
    """Tokens until the forward filter's posterior of the new regime exceeds `confidence`, over sampled switches.

    In each of `switches` sequences a regime of the stationary stream is held until the filter knows it, then another
    follows for `horizon` tokens (four times the time from information if None, 64 to 2048). Where regimes never switch,
    the tokens are counted from the start of the sequence, before which `initial` is known.

    Raises:
        ValueError: a confidence outside the open interval from 0 to 1; fewer than one switch or token of the horizon.
    """
    _checked_confidence(confidence)
    switches = checked_integer("switches", switches, 1)
    horizon = None if horizon is None else checked_integer("horizon", horizon, 1)
    if hmm.regimes == 1:
        return Identification(0.0, 0.0, 0.0, 0.0)
    if horizon is None:
        expected = identification_time(hmm, confidence)
        horizon = int(np.clip(4 * expected if np.isfinite(expected) else 2048, 64, 2048))
    kinds, random = _switches(hmm), np.random.default_rng(seed)
    if kinds is None:
        after = random.choice(hmm.regimes, size=switches, p=hmm.initial / hmm.initial.sum())
        path = np.repeat(after[:, None], horizon, axis=1)
    else:
        before, after = np.divmod(random.choice(kinds.size, size=switches, p=kinds.ravel()), hmm.regimes)
        path = np.repeat(np.stack([before, after], axis=1), horizon, axis=1)
    tokens, _ = sample(hmm, switches, path.shape[1], seed, stationary=kinds is not None, regimes=path)
    posterior = reference.forward(hmm, tokens, impossible="-inf").posterior[:, -horizon:]
    known = np.take_along_axis(posterior, after[:, None, None], axis=2)[..., 0] > confidence
    times = np.where(known.any(axis=1), known.argmax(axis=1) + 1, horizon)
    return Identification(*_estimate(times), float(np.median(times)), float(1 - known.any(axis=1).mean()))


def expected_excess(
    hmm: TwoTimescaleHMM,
    predictor: str,
    *arguments: Any,
    sequences: int = 64,
    length: int = 512,
    burn_in: int = 128,
    seed: int = 0,
    backend: Any = reference,
) -> Excess:
    """The nats per token that a predictor of `backend` loses to the forward filter, on stationary streams.

    `expected_excess(hmm, "window", 8)`; predictions from `burn_in` on are counted. Of one sequence the standard error
    is nan.

    Raises:
        ValueError: no such predictor; fewer than one sequence, two tokens or one prediction after `burn_in`.
    """
    predictor = checked_name("predictor", predictor, PREDICTORS)
    sequences, length = checked_integer("sequences", sequences, 1), checked_integer("length", length, 2)
    checked_integer("burn_in", burn_in, 0, length - 2)
    tokens, _ = sample(hmm, sequences, length, seed, stationary=True)
    bayes = backend.forward(hmm, tokens)
    return excess_over(hmm, tokens, bayes, getattr(backend, predictor)(hmm, tokens, *arguments), burn_in)


def excess_over(
    hmm: TwoTimescaleHMM, tokens: Any, bayes: FilterResult, other: FilterResult, burn_in: int = 0
) -> Excess:
    """The excess of `other` over `bayes` on tokens `(B, T)`, predictions from `burn_in` on.

    Raises:
        ValueError: fewer than two tokens or one prediction after `burn_in`.
    """
    length = checked_integer("length", np.shape(tokens)[-1], 2)
    checked_integer("burn_in", burn_in, 0, length - 2)
    positions = slice(burn_in, None)
    exact = reference.predictive(hmm, tokens, bayes, positions)
    theirs = reference.predictive(hmm, tokens, other, positions)
    sampled = (bayes.log_prob - other.log_prob)[:, burn_in:].mean(axis=1)
    return Excess(_estimate(kl_divergence(exact, theirs).mean(axis=1)), _estimate(sampled))


def kl_divergence(exact: Array, other: Array) -> Array:
    """`sum_v p_v log(p_v / q_v)` over the last axis, nats; inf where q excludes what p allows.

    Written as `sum p (r - 1 - log r)`, `r = q / p`, whose terms are not negative and do not cancel: close
    distributions keep their relative accuracy.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        surplus = (other - exact) / exact
        near = exact * (surplus - np.log1p(surplus))
        far = other - exact - exact * (np.log(other) - np.log(exact))
    return np.where(exact > 0, np.where(surplus < 1e9, near, far), other).sum(axis=-1)


def separation(
    hmm: TwoTimescaleHMM,
    width: int,
    *,
    resolution: float | None = None,
    identified: Identification | None = None,
    **evaluation: Any,
) -> Separation:
    """Whether `window(width)` can be told from a predictor that carries the regime.

    `resolution` is the least excess the evaluation can resolve; None: two standard errors of the sampled excess, on the
    sequences that `evaluation` describes to `expected_excess`.
    """
    identified = identified or measured_identification_time(hmm)
    excess = expected_excess(hmm, "window", width, **evaluation)
    least = 2 * excess.sampled.standard_error if resolution is None else resolution
    ratios = width / identified.mean if identified.mean else float("inf"), identified.mean * switch_rate(hmm)
    if hmm.regimes == 1:
        verdict = "no: there is one regime"
    elif stationary_discrimination(hmm) == 0:
        verdict = "no: the regimes cannot be told apart"
    elif not excess.divergence.mean > least:  # of one sequence the standard error is nan
        verdict = f"no: the window's excess of {excess.divergence.mean:.2g} nats is below what the evaluation resolves"
    elif ratios[0] > APART:
        verdict = "weakly: the window is long enough to identify the regime by itself"
    elif ratios[1] > APART:
        verdict = "weakly: regimes switch about as soon as they are identified"
    else:
        verdict = "yes"
    return Separation(*ratios, excess, least, verdict)


def diagnose(
    hmm: TwoTimescaleHMM, width: int = 8, *, resolution: float | None = None, seed: int = 0, **evaluation: Any
) -> dict[str, Any]:
    """All of the above as a flat dict for a report: names with their units, numbers and the verdict."""
    identified = measured_identification_time(hmm, seed=seed)
    told = separation(hmm, width, resolution=resolution, identified=identified, seed=seed, **evaluation)
    return {
        "discrimination, plain mean (nats/token)": mean_discrimination(hmm),
        "discrimination, stationary (nats/token)": stationary_discrimination(hmm),
        "share of infinite discriminations": excluding_share(hmm),
        "identification time from information (tokens)": identification_time(hmm),
        "identification time measured (tokens)": identified.mean,
        "its standard error": identified.standard_error,
        "its median": identified.median,
        "share not identified": identified.unidentified,
        "dwelling time 1/eps (tokens)": 1 / switch_rate(hmm) if switch_rate(hmm) > 0 else float("inf"),
        "mixing time (tokens)": mixing_time(hmm),
        "effective state size, regime chain": effective_state_size(hmm.transition),
        "effective state size, predictions": effective_state_size(prediction_operator(hmm)),
        f"excess of window {width}, mean KL (nats)": told.excess.divergence.mean,
        f"excess of window {width}, standard error": told.excess.divergence.standard_error,
        "least excess resolved (nats)": told.resolution,
        f"window {width} / identification time": told.width_over_identification,
        "identification time * eps": told.identification_over_dwelling,
        f"tells window {width} from a carried state": told.verdict,
    }


def _checked_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}; it must lie strictly between 0 and 1")


def _switches(hmm: TwoTimescaleHMM) -> Array | None:
    """`(K, K)`: the law of (regime left, regime entered) over switches of the stationary stream; None if none occur."""
    off = np.where(np.eye(hmm.regimes, dtype=bool), 0.0, hmm.transition) * hmm.stationary_regime[:, None]
    return off / off.sum() if off.any() else None


def _others(hmm: TwoTimescaleHMM) -> Array:
    """`(K, K)`: the weight of regime j among those other than i in the stationary stream; uniform if they have none."""
    different = ~np.eye(hmm.regimes, dtype=bool)
    weight = np.where(different, hmm.stationary_regime[None, :], 0.0)
    weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, different)
    return weight / weight.sum(axis=1, keepdims=True)


def _expectation(values: Array, weights: Array) -> float:
    """`sum w v`, in which infinite values of weight 0 do not count."""
    return float(np.where(weights > 0, np.where(weights > 0, values, 0.0) * weights, 0.0).sum())


def _estimate(per_sequence: Array) -> Estimate:
    spread = per_sequence.std(ddof=1) / np.sqrt(len(per_sequence)) if len(per_sequence) > 1 else np.nan
    return Estimate(float(per_sequence.mean()), float(spread))


def recovered_prior(block: Array, predictive: Array) -> Array:
    """The regime prior that a predictive `(..., V)` shows through the current token's `emission[:, x]`, `(K, V)`.

    The least-squares solution of `prior @ block = predictive`; exact for the filter's own predictive where the block
    has independent rows. It need not be a distribution.
    """
    return np.asarray(predictive) @ np.linalg.pinv(block)


def recovery_bound(block: Array, divergence: float) -> float:
    """`sqrt(2 delta) / sigma_min`: how far, in Euclidean norm, the prior that a predictor shows can be from the exact.

    `divergence` is KL(exact predictive || predictor's); infinite if the rows of `block` are dependent. By Pinsker's
    inequality, `|p - q|_2 <= |p - q|_1 <= sqrt(2 KL)`.
    """
    smallest = float(np.linalg.svd(block, compute_uv=False)[-1]) if block.shape[0] <= block.shape[1] else 0.0
    return float(np.sqrt(2 * divergence) / smallest) if smallest > 0 else float("inf")
