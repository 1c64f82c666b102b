"""The five predictors against an enumeration of every regime path, and at their edges."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hmms, models_with_streams

from filters import reference
from filters.hmm import (
    ImpossibleObservation,
    TwoTimescaleHMM,
    forgetting_transition,
    matched_rate,
    sticky_transition,
)

CASES = models_with_streams(max_regimes=3, max_vocab=3)
WIDTHS = st.integers(1, 8)
RATES = st.floats(0.0, 1.0) | st.sampled_from([0.0, 1e-20, 1.0])


def assert_matches(result, answers):
    """Compares with the oracle up to the first token that it finds impossible."""
    for t, answer in enumerate(answers):
        if answer is None:
            break
        np.testing.assert_allclose(np.exp(result.log_prob[t]), answer.probability, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(result.prior[t], answer.prior, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(result.posterior[t], answer.posterior, rtol=1e-12, atol=1e-300)
        if answer.probability == 0:
            assert result.log_prob[t] == -np.inf
            break


@given(CASES)
def test_forward_sums_over_every_path(case):
    hmm, tokens = case
    assert_matches(reference.forward(hmm, tokens), oracles.windowed(hmm, tokens, len(tokens), lambda s: hmm.initial))


@given(CASES, RATES)
def test_fixed_decay_is_the_filter_of_the_forgetting_chain(case, rate):
    hmm, tokens = case
    believed = TwoTimescaleHMM(
        forgetting_transition(hmm.regimes, rate), hmm.emission, hmm.initial, hmm.initial_emission
    )
    answers = oracles.windowed(believed, tokens, len(tokens), lambda s: hmm.initial)
    assert_matches(reference.fixed_decay(hmm, tokens, rate, impossible="-inf"), answers)


@given(CASES)
def test_unigram_is_the_filter_without_bigrams(case):
    hmm, tokens = case
    laws = [oracles.running_average(table, np.full(hmm.vocab_size, 1 / hmm.vocab_size)) for table in hmm.emission]
    emission = np.array([[law] * hmm.vocab_size for law in laws])
    result = reference.unigram(hmm, tokens, impossible="-inf")
    np.testing.assert_allclose(result.emission, emission, atol=1e-9)
    believed = TwoTimescaleHMM(hmm.transition, result.emission, hmm.initial, hmm.initial_emission)
    assert_matches(result, oracles.windowed(believed, tokens, len(tokens), lambda s: hmm.initial))


@given(CASES, WIDTHS)
def test_window_with_the_uniform_edge(case, width):
    hmm, tokens = case
    answers = oracles.windowed(hmm, tokens, width, lambda s: np.full(hmm.regimes, 1 / hmm.regimes))
    assert_matches(reference.window(hmm, tokens, width), answers)


@given(CASES, WIDTHS)
def test_window_with_the_stationary_edge(case, width):
    hmm, tokens = case
    answers = oracles.windowed(hmm, tokens, width, lambda s: hmm.edge_posterior[tokens[s]])
    assert_matches(reference.window(hmm, tokens, width, "stationary", impossible="-inf"), answers)


@given(hmms(max_regimes=3, max_vocab=3))
def test_stationary_edge_is_the_law_of_the_stationary_stream(hmm):
    size = hmm.regimes * hmm.vocab_size
    chain = np.zeros((hmm.regimes, hmm.vocab_size, hmm.regimes, hmm.vocab_size))
    for i, u, j, v in np.ndindex(chain.shape):
        chain[i, u, j, v] = hmm.transition[i, j] * hmm.emission[j, u, v]
    first = np.full((hmm.regimes, hmm.vocab_size), 1 / hmm.vocab_size)
    first = hmm.initial[:, None] * (first if hmm.initial_emission is None else hmm.initial_emission)
    law = oracles.running_average(chain.reshape(size, size), first.ravel())
    np.testing.assert_allclose(hmm.stationary_joint.ravel(), law, atol=1e-6)
    np.testing.assert_allclose(hmm.stationary_joint.ravel() @ chain.reshape(size, size), hmm.stationary_joint.ravel())
    np.testing.assert_allclose(hmm.edge_posterior.sum(axis=1), 1)


@given(CASES, WIDTHS, RATES)
def test_composite_starts_from_the_decayed_posterior(case, width, rate):
    hmm, tokens = case
    carried = reference.fixed_decay(hmm, tokens, rate, impossible="-inf")
    possible = np.isfinite(carried.log_prob)
    if not possible.all():
        tokens = tokens[: possible.argmin() + 1]
    answers = oracles.windowed(hmm, tokens, width, lambda s: carried.posterior[s])
    assert_matches(reference.composite(hmm, tokens, width, rate, impossible="-inf"), answers)


@given(CASES, WIDTHS)
def test_batches_are_sequences_side_by_side(case, width):
    hmm, tokens = case
    batch = np.stack([tokens, tokens, tokens]).reshape(1, 3, -1)
    for run in (
        lambda x: reference.forward(hmm, x),
        lambda x: reference.window(hmm, x, width),
        lambda x: reference.composite(hmm, x, width, 0.3, impossible="-inf"),
    ):
        one, many = run(tokens), run(batch)
        for name in ("log_prob", "prior", "posterior"):
            expected = np.broadcast_to(getattr(one, name), (1, 3, *getattr(one, name).shape))
            np.testing.assert_array_equal(getattr(many, name), expected)


@given(models_with_streams(min_length=2))
def test_predictive_holds_the_probability_of_the_next_token(case):
    hmm, tokens = case
    for result in (reference.forward(hmm, tokens), reference.unigram(hmm, tokens, impossible="-inf")):
        whole = reference.predictive(hmm, tokens, result)
        np.testing.assert_allclose(whole.sum(axis=-1), 1)
        chosen = np.take_along_axis(whole, tokens[1:, None], axis=-1)[:, 0]
        np.testing.assert_allclose(chosen, np.exp(result.log_prob), rtol=1e-12)
        np.testing.assert_array_equal(reference.predictive(hmm, tokens, result, [0, -1]), whole[[0, -1]])


@pytest.mark.parametrize("run", [reference.forward, lambda h, x: reference.window(h, x, 5000)])
def test_frozen_regimes_lose_no_evidence(run):
    """A thousand tokens against a regime, then two thousand for it: at 2000 both are equally likely again."""
    emission = np.array([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2])
    hmm = TwoTimescaleHMM(sticky_transition(2, 0.0), emission, np.array([0.5, 0.5]))
    tokens = np.repeat([0, 1], [1001, 2000])
    posterior = run(hmm, tokens).posterior
    assert posterior[1000, 1] == 0.0  # as float64; what is carried is 9**-1000
    np.testing.assert_allclose(posterior[2000], [0.5, 0.5], rtol=1e-12)
    np.testing.assert_allclose(posterior[2003], [1 / 730, 729 / 730], rtol=1e-12)
    np.testing.assert_allclose(posterior[-1], [0.0, 1.0], atol=1e-300)


def test_a_switching_rate_of_1e_20_is_felt():
    hmm = TwoTimescaleHMM(
        sticky_transition(2, 1e-20), np.array([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]), np.array([1.0, 0.0])
    )
    result = reference.forward(hmm, np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(result.log_prob, [0.0, np.log(1e-20), 0.0], rtol=1e-14)
    np.testing.assert_array_equal(result.posterior[-1], [0.0, 1.0])
    assert matched_rate(1e-20, 2) == 2e-20


def test_an_impossible_token_raises_with_its_place_or_scores_minus_infinity():
    never = np.array([[[0.5, 0.5, 0.0]] * 3, [[0.9, 0.1, 0.0]] * 3])
    hmm = TwoTimescaleHMM(sticky_transition(2, 0.1), never, np.array([0.5, 0.5]))
    tokens = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 2, 1]])
    for run in (
        reference.forward,
        reference.unigram,
        lambda h, x, **k: reference.fixed_decay(h, x, 0.1, **k),
        lambda h, x, **k: reference.window(h, x, 2, **k),
        lambda h, x, **k: reference.composite(h, x, 2, 0.1, **k),
    ):
        with pytest.raises(ImpossibleObservation, match="position 3 of sequence 1") as caught:
            run(hmm, tokens)
        assert (caught.value.position, caught.value.sequence) == (3, (1,))
        result = run(hmm, tokens, impossible="-inf")
        np.testing.assert_array_equal(np.isneginf(result.log_prob), [[False] * 4, [False, False, True, False]])
        assert np.isfinite(result.prior).all()
        assert np.isfinite(result.posterior).all()


def test_an_impossible_first_token_has_position_0():
    hmm = TwoTimescaleHMM([[1.0]], [[[0.5, 0.5]] * 2], [1.0], [[1.0, 0.0]])
    with pytest.raises(ImpossibleObservation) as caught:
        reference.forward(hmm, np.array([1, 0]))
    assert caught.value.position == 0
    assert np.isfinite(reference.forward(hmm, np.array([1, 0]), impossible="-inf").log_prob).all()


@pytest.mark.parametrize(
    "run",
    [
        lambda h, x: reference.window(h, x, 0),
        lambda h, x: reference.composite(h, x, 0, 0.1),
        lambda h, x: reference.window(h, x, 2, edge="other"),
        lambda h, x: reference.fixed_decay(h, x, 1.5),
        lambda h, x: reference.forward(h, x, impossible="other"),
    ],
)
def test_settings_out_of_range_are_errors(run):
    hmm = TwoTimescaleHMM(sticky_transition(4, 0.1), np.full((4, 3, 3), 1 / 3), np.full(4, 0.25))
    with pytest.raises(ValueError):
        run(hmm, np.array([0, 1, 2]))
