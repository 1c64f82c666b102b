"""Diagnostics against what is known of special models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hmms, rows

from filters import diagnostics, reference
from filters.hmm import TwoTimescaleHMM, book_instance, matched_rate, sticky_transition
from filters.sampling import sample


def two_coins(bias=0.9, switch_rate=0.01):
    emission = np.array([[[bias, 1 - bias]] * 2, [[1 - bias, bias]] * 2])
    return TwoTimescaleHMM(sticky_transition(2, switch_rate), emission, np.array([0.5, 0.5]))


def test_discrimination_of_two_coins():
    expected = 0.8 * np.log(9)
    assert diagnostics.mean_discrimination(two_coins()) == pytest.approx(expected)
    assert diagnostics.stationary_discrimination(two_coins()) == pytest.approx(expected)


def test_stationary_discrimination_is_the_mean_log_likelihood_ratio_of_a_stream():
    hmm, _, _ = book_instance(length=1)
    tokens, regimes = sample(hmm, 64, 200, seed=1, stationary=True)
    logs = np.log(hmm.emission[:, tokens[:, :-1], tokens[:, 1:]])
    own = np.take_along_axis(logs, regimes[None, :, 1:], axis=0)[0]
    ratio = own - (logs.sum(axis=0) - own) / (hmm.regimes - 1)
    error = ratio.mean(axis=1).std(ddof=1) / 8
    assert abs(ratio.mean() - diagnostics.stationary_discrimination(hmm)) < 4 * error


def test_zeros_in_a_table_are_reported_as_infinite():
    emission = np.array([[[0.5, 0.5]] * 2, [[1.0, 0.0]] * 2])
    hmm = TwoTimescaleHMM(sticky_transition(2, 0.1), emission, np.array([0.5, 0.5]))
    assert diagnostics.mean_discrimination(hmm) == np.inf
    assert diagnostics.stationary_discrimination(hmm) == np.inf
    assert diagnostics.excluding_share(hmm) == 0.5
    assert diagnostics.identification_time(hmm) == 0.0
    assert np.isfinite(diagnostics.measured_identification_time(hmm, switches=16).mean)


@given(st.integers(2, 8), st.floats(1e-6, 0.4) | st.sampled_from([1e-20]))
def test_mixing_time_of_a_sticky_chain_is_one_over_the_matched_rate(regimes, rate):
    """State-space book, solution of exercise 14.5."""
    hmm = TwoTimescaleHMM(sticky_transition(regimes, rate), np.ones((regimes, 1, 1)), np.full(regimes, 1 / regimes))
    assert diagnostics.mixing_time(hmm) == pytest.approx(1 / matched_rate(rate, regimes), rel=1e-9)
    assert diagnostics.switch_rate(hmm) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("transition", "expected"),
    [
        ([[1.0]], 0.0),
        (np.eye(3), np.inf),
        ([[0.0, 1.0], [1.0, 0.0]], np.inf),
        (np.full((2, 2), 0.5), 1.0),
        ([[1.0, 0.0], [0.1, 0.9]], 10.0),
        ([[0.9, 0.1, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.5]], np.inf),
    ],
)
def test_mixing_time_of_special_chains(transition, expected):
    size = len(transition)
    hmm = TwoTimescaleHMM(transition, np.ones((size, 1, 1)), np.full(size, 1 / size))
    assert diagnostics.mixing_time(hmm) == pytest.approx(expected)


def test_effective_state_size_counts_equal_directions():
    assert diagnostics.effective_state_size(3 * np.eye(5)) == pytest.approx(5)
    assert diagnostics.effective_state_size(np.ones((4, 7))) == pytest.approx(1)
    assert diagnostics.effective_state_size(np.zeros((2, 2))) == 0
    alike = TwoTimescaleHMM(sticky_transition(3, 0.1), np.full((3, 2, 2), 0.5), np.full(3, 1 / 3))
    assert diagnostics.effective_state_size(diagnostics.prediction_operator(alike)) == pytest.approx(1)


def test_measured_identification_is_sooner_than_information_from_certainty():
    """The filter is never as sure of a regime as the prior odds of a switch allow, and may be early by luck."""
    hmm = two_coins(bias=0.6, switch_rate=1e-4)
    expected = diagnostics.identification_time(hmm)
    assert expected == pytest.approx(np.log(9999) / (0.2 * np.log(1.5)))
    measured = diagnostics.measured_identification_time(hmm, switches=200)
    assert measured.unidentified == 0
    assert 0.4 * expected < measured.mean < expected
    assert 0 < measured.standard_error < 0.1 * measured.mean


def test_identification_without_switches_or_without_difference():
    frozen = two_coins(switch_rate=0.0)
    assert diagnostics.identification_time(frozen) == 0.0  # even odds are where it starts
    assert diagnostics.identification_time(frozen, 0.9) == pytest.approx(np.log(9) / (0.8 * np.log(9)))
    assert diagnostics.measured_identification_time(frozen, 0.8, switches=64).mean < 3
    alike = two_coins(bias=0.5)
    assert diagnostics.identification_time(alike) == np.inf
    assert diagnostics.measured_identification_time(alike, switches=4, horizon=32).unidentified == 1
    one = TwoTimescaleHMM([[1.0]], [[[1.0]]], [1.0])
    assert diagnostics.identification_time(one) == diagnostics.measured_identification_time(one).mean == 0


@given(rows(5, st.floats(0.05, 1.0)), rows(5, st.floats(0.05, 1.0)))
def test_divergence_is_not_negative_and_is_the_textbook_sum(exact, other):
    value = diagnostics.kl_divergence(exact, other)
    assert value >= 0
    assert value == pytest.approx((exact * np.log(exact / other)).sum(), abs=1e-14)
    assert diagnostics.kl_divergence(exact, exact) == 0


def test_divergence_at_its_edges():
    assert diagnostics.kl_divergence(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == np.inf
    assert diagnostics.kl_divergence(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(np.log(2))
    tiny = diagnostics.kl_divergence(np.array([1e-310, 1.0]), np.array([0.5, 0.5]))
    assert tiny == pytest.approx(np.log(2))
    close = diagnostics.kl_divergence(np.array([0.5, 0.5]), np.array([0.5 + 1e-9, 0.5 - 1e-9]))
    assert close == pytest.approx(2e-18, rel=1e-6)


def test_the_two_estimates_of_an_excess_agree_and_the_first_is_the_sharper():
    hmm, _, _ = book_instance(length=1)
    excess = diagnostics.expected_excess(hmm, "window", 8, sequences=48, length=300, burn_in=64)
    gap = excess.divergence.mean - excess.sampled.mean
    assert abs(gap) < 4 * np.hypot(excess.divergence.standard_error, excess.sampled.standard_error)
    assert excess.divergence.standard_error < excess.sampled.standard_error / 2
    assert 0.018 < excess.divergence.mean < 0.032  # the book's 0.0246 is one draw of it


@pytest.mark.parametrize(
    ("hmm", "width", "verdict"),
    [
        (two_coins(bias=0.6, switch_rate=0.002), 8, "yes"),
        (two_coins(bias=0.7, switch_rate=0.002), 32, "weakly: the window"),
        (two_coins(bias=0.5), 8, "no: the regimes cannot"),
        (two_coins(bias=0.9, switch_rate=0.1), 64, "no: the window's excess"),
        (TwoTimescaleHMM([[1.0]], [[[1.0]]], [1.0]), 8, "no: there is one regime"),
    ],
)
def test_verdicts(hmm, width, verdict):
    assert diagnostics.separation(hmm, width, sequences=24, length=400).verdict.startswith(verdict)


def test_a_verdict_knows_regimes_that_switch_too_soon():
    hmm = book_instance(overlap=0.1, length=1)[0]
    told = diagnostics.separation(hmm, 8, resolution=1e-4, sequences=8, length=200)
    assert told.verdict.startswith("weakly: regimes switch")
    assert told.resolution == 1e-4


@given(hmms(max_regimes=3, max_vocab=3))
def test_every_model_gets_a_diagnosis(hmm):
    """With impossible tokens left out of the streams nothing raises, and nothing is nan."""
    for value in (
        diagnostics.mean_discrimination(hmm),
        diagnostics.stationary_discrimination(hmm),
        diagnostics.identification_time(hmm),
        diagnostics.mixing_time(hmm),
        diagnostics.measured_identification_time(hmm, switches=3, horizon=8).mean,
        diagnostics.effective_state_size(diagnostics.prediction_operator(hmm)),
    ):
        assert value >= 0


def test_a_diagnosis_is_flat():
    found = diagnostics.diagnose(two_coins(bias=0.7), sequences=8, length=160)
    assert all(isinstance(value, float | str) for value in found.values())
    assert found["dwelling time 1/eps (tokens)"] == pytest.approx(100)


def test_samples_have_the_models_law():
    hmm, _, _ = book_instance(length=1)
    tokens, regimes = sample(hmm, 200, 200, seed=0, stationary=True)
    counts = np.zeros((hmm.regimes, hmm.vocab_size))
    np.add.at(counts, (regimes.ravel(), tokens.ravel()), 1)
    np.testing.assert_allclose(counts / counts.sum(), hmm.stationary_joint, atol=0.02)
    assert (np.diff(regimes) != 0).mean() == pytest.approx(0.02, abs=0.002)
    assert np.isfinite(reference.forward(hmm, tokens).log_prob).all()
    again, _ = sample(hmm, 200, 200, seed=0, stationary=True)
    np.testing.assert_array_equal(tokens, again)


def test_the_prediction_operator_weighs_sources_alike_in_every_regime():
    """A belief's prediction after every token, times how often that token occurs, whatever the regime."""
    hmm, _, _ = book_instance(length=1)
    operator = diagnostics.prediction_operator(hmm).reshape(hmm.regimes, hmm.vocab_size, hmm.vocab_size)
    frequency = hmm.stationary_joint.sum(axis=0)
    belief = np.array([0.1, 0.2, 0.3, 0.4])
    for u in range(hmm.vocab_size):
        np.testing.assert_allclose(belief @ operator[:, u], frequency[u] * (belief @ hmm.emission[:, u]), rtol=1e-12)
    np.testing.assert_allclose(operator.sum(axis=-1), np.tile(frequency, (hmm.regimes, 1)), rtol=1e-12)
    assert 1 < diagnostics.effective_state_size(operator.reshape(hmm.regimes, -1)) < hmm.regimes


REFUSED = {
    "burn_in is 128; it must be an integer in 0..48, the nearest being 48": lambda hmm: diagnostics.expected_excess(
        hmm, "window", 3, sequences=3, length=50
    ),
    "burn_in is -1; it must be an integer in 0..48, the nearest being 0": lambda hmm: diagnostics.expected_excess(
        hmm, "window", 3, length=50, burn_in=-1
    ),
    "predictor is 'windw'; it must be one of forward, fixed_decay, unigram, window, composite; "
    "did you mean 'window'?": lambda hmm: diagnostics.expected_excess(hmm, "windw", 3),
    "sequences is 0; it must be an integer of at least 1, the nearest being 1": lambda hmm: diagnostics.expected_excess(
        hmm, "window", 3, sequences=0
    ),
    "length is 1; it must be an integer of at least 2, the nearest being 2": lambda hmm: diagnostics.expected_excess(
        hmm, "window", 3, length=1
    ),
    "width is 2.5; it must be an integer of at least 1": lambda hmm: diagnostics.separation(hmm, 2.5),
    "confidence is 1.0; it must lie strictly between 0 and 1": lambda hmm: diagnostics.identification_time(hmm, 1.0),
    "confidence is 0.0; it must lie strictly between 0 and 1": lambda hmm: diagnostics.identification_time(hmm, 0.0),
    "confidence is 2.0; it must lie strictly between 0 and 1": lambda hmm: diagnostics.measured_identification_time(
        hmm, 2.0
    ),
    "switches is 0; it must be an integer of at least 1, the nearest being 1": lambda hmm: (
        diagnostics.measured_identification_time(hmm, switches=0)
    ),
    "horizon is 0; it must be an integer of at least 1, the nearest being 1": lambda hmm: (
        diagnostics.measured_identification_time(hmm, horizon=0)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.parametrize("regimes", [1, 2])
def test_what_cannot_be_measured_is_refused(message, regimes):
    hmm = TwoTimescaleHMM(
        sticky_transition(regimes, 0.1), two_coins().emission[:regimes], np.full(regimes, 1 / regimes)
    )
    with pytest.raises(ValueError) as error:
        REFUSED[message](hmm)
    assert str(error.value) == message


def test_an_excess_over_is_of_some_prediction():
    hmm = two_coins()
    tokens, _ = sample(hmm, 3, 10, seed=0)
    bayes, other = reference.forward(hmm, tokens), reference.window(hmm, tokens, 2)
    assert np.isfinite(diagnostics.excess_over(hmm, tokens, bayes, other, 8).sampled.mean)
    with pytest.raises(ValueError, match=r"burn_in is 9; it must be an integer in 0\.\.8"):
        diagnostics.excess_over(hmm, tokens, bayes, other, 9)


def test_one_sequence_settles_nothing():
    told = diagnostics.separation(two_coins(), 2, sequences=1, length=200)
    assert np.isnan(told.resolution)
    assert told.verdict.startswith("no")
