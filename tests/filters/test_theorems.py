"""What the book and the field prove of these filters, as properties.

Equalities are asked of log-probabilities and posteriors to a few roundings; inequalities in expectation by summing over
every sequence of a small model.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import hmms, models_with_streams, rows

from filters import diagnostics, reference
from filters.hmm import TwoTimescaleHMM, forgetting_transition, matched_rate, sticky_transition

STICKY = models_with_streams(max_length=40, sticky=True)
WIDTHS = st.integers(1, 45)
ANY = {"impossible": "-inf"}


def assert_same(one, other, positions=slice(None)):
    for name in ("log_prob", "prior", "posterior"):
        a, b = getattr(one, name)[positions], getattr(other, name)[positions]
        np.testing.assert_array_equal(np.isneginf(a), np.isneginf(b))
        finite = np.isfinite(b)
        np.testing.assert_allclose(a[finite], b[finite], rtol=1e-12, atol=1e-13)


def rate_of(hmm):
    """The switching rate of a sticky model, from an entry that keeps its precision."""
    return float(hmm.transition[0, 1] * (hmm.regimes - 1)) if hmm.regimes > 1 else 0.0


def relabelled(hmm, regimes, tokens):
    """The model with its regimes and tokens in another order."""
    first = None if hmm.initial_emission is None else hmm.initial_emission[regimes][:, tokens]
    emission = hmm.emission[regimes][:, tokens][:, :, tokens]
    return TwoTimescaleHMM(hmm.transition[regimes][:, regimes], emission, hmm.initial[regimes], first)


def started(hmm, law):
    """The model with another law of the first regime, of which the first token says nothing."""
    return TwoTimescaleHMM(hmm.transition, hmm.emission, law)


@given(STICKY)
def test_matched_decay_is_the_bayes_filter(case):
    """State-space book, Theorem 14.4; every K and eps up to (K - 1) / K."""
    hmm, tokens = case
    rate = matched_rate(rate_of(hmm), hmm.regimes)
    assert_same(reference.fixed_decay(hmm, tokens, rate), reference.forward(hmm, tokens))


@given(STICKY, WIDTHS)
def test_matched_composite_is_the_bayes_filter_at_every_width(case, width):
    hmm, tokens = case
    rate = matched_rate(rate_of(hmm), hmm.regimes)
    assert_same(reference.composite(hmm, tokens, width, rate), reference.forward(hmm, tokens))


@given(models_with_streams(max_length=20), st.integers(2, 19), st.floats(0, 1))
def test_composite_and_window_differ_in_their_edge_only(case, width, rate):
    """Both are the filter from the edge on: of the carried posterior, or, put in its place, of the uniform law."""
    hmm, tokens = case
    carried = reference.fixed_decay(hmm, tokens, rate, **ANY)
    assume(np.isfinite(carried.log_prob).all())
    composite, window = reference.composite(hmm, tokens, width, rate, **ANY), reference.window(hmm, tokens, width)
    for t in range(width, len(tokens)):
        edge = t - width + 1
        from_carried = reference.forward(started(hmm, carried.posterior[edge]), tokens[edge : t + 1], **ANY)
        from_uniform = reference.forward(started(hmm, np.full(hmm.regimes, 1 / hmm.regimes)), tokens[edge : t + 1])
        np.testing.assert_allclose(window.posterior[t], from_uniform.posterior[-1], rtol=1e-12, atol=1e-14)
        if np.isfinite(from_carried.log_prob).all():
            np.testing.assert_allclose(composite.posterior[t], from_carried.posterior[-1], rtol=1e-10, atol=1e-14)


@st.composite
def doubly_stochastic(draw):
    """A model with a mixture of permutations for its chain, uniform at the start."""
    hmm, tokens = draw(models_with_streams(max_length=30, max_regimes=3))
    permutations = [np.eye(hmm.regimes)[list(p)] for p in itertools.permutations(range(hmm.regimes))]
    weights = draw(rows(len(permutations), st.floats(0.01, 1) | st.just(0.0)))
    chain = sum(w * p for w, p in zip(weights, permutations))
    return TwoTimescaleHMM(chain, hmm.emission, np.full(hmm.regimes, 1 / hmm.regimes)), tokens


@given(doubly_stochastic(), WIDTHS)
def test_composite_that_forgets_at_once_is_one_token_wider(case, width):
    hmm, tokens = case
    composite = reference.composite(hmm, tokens, width, 1.0, **ANY)
    assume(np.isfinite(composite.log_prob).all())
    assert_same(composite, reference.window(hmm, tokens, width + 1, **ANY))


@given(models_with_streams(max_length=20), st.integers(0, 5))
def test_a_window_that_holds_everything_is_the_filter_exactly(case, more):
    hmm, tokens = case
    exact = reference.forward(hmm, tokens)
    for result in (
        reference.window(hmm, tokens, len(tokens) + more),
        reference.window(hmm, tokens, len(tokens) + more, "stationary"),
        reference.composite(hmm, tokens, len(tokens) + more, 0.5),
    ):
        for name in ("log_prob", "prior", "posterior"):
            np.testing.assert_array_equal(getattr(result, name), getattr(exact, name))


@given(models_with_streams(max_length=20))
def test_a_window_that_reaches_back_all_the_way_is_the_filter(case):
    """One token short of everything: all predictions but the last see the whole past."""
    hmm, tokens = case
    assume(len(tokens) > 2)
    window, exact = reference.window(hmm, tokens, len(tokens) - 1), reference.forward(hmm, tokens)
    np.testing.assert_allclose(window.posterior[:-1], exact.posterior[:-1], rtol=1e-12, atol=1e-15)


@given(hmms(max_regimes=3, max_vocab=3), st.integers(1, 3))
def test_the_stationary_edge_is_never_worse_in_expectation(hmm, width):
    """Summed over every window of the stationary stream and every next token."""
    gain = 0.0
    for tokens in itertools.product(range(hmm.vocab_size), repeat=width + 1):
        tokens = np.array(tokens)
        weight = hmm.stationary_joint[:, tokens[0]]
        for before, after in itertools.pairwise(tokens):
            weight = (weight @ hmm.transition) * hmm.emission[:, before, after]
        if weight.sum() == 0:
            continue
        uniform = reference.forward(started(hmm, np.full(hmm.regimes, 1 / hmm.regimes)), tokens, **ANY)
        stationary = reference.forward(started(hmm, hmm.edge_posterior[tokens[0]]), tokens, **ANY)
        gain += weight.sum() * (stationary.log_prob[-1] - uniform.log_prob[-1])
    assert gain >= -1e-12


@given(st.integers(2, 8), st.floats(0, 1))
def test_both_chains_are_doubly_stochastic_with_one_other_eigenvalue(regimes, rate):
    """State-space book, solution of exercise 14.5."""
    eps = rate * (regimes - 1) / regimes
    for chain, other in (
        (sticky_transition(regimes, eps), 1 - matched_rate(eps, regimes)),
        (forgetting_transition(regimes, rate), 1 - rate),
    ):
        np.testing.assert_allclose(chain.sum(axis=0), 1, rtol=1e-14)
        np.testing.assert_allclose(chain.sum(axis=1), 1, rtol=1e-14)
        np.testing.assert_allclose(
            np.sort(np.linalg.eigvalsh(chain)), np.sort([1.0] + [other] * (regimes - 1)), atol=1e-13
        )
        hmm = TwoTimescaleHMM(chain, np.ones((regimes, 1, 1)), np.full(regimes, 1 / regimes))
        np.testing.assert_allclose(hmm.stationary_regime, 1 / regimes, rtol=1e-12)
        if rate > 1e-9:
            assert diagnostics.mixing_time(hmm) == pytest.approx(1 / (1 - abs(other)), rel=1e-6)


@given(hmms(max_regimes=3, max_vocab=3, positive=True), st.integers(2, 4), st.data())
def test_excess_is_the_mean_divergence_and_never_negative(hmm, length, data):
    """In expectation over every sequence, the sampled difference of log-losses and the KL divergence are one number."""
    name, arguments = data.draw(
        st.sampled_from([("window", (1,)), ("window", (2, "stationary")), ("fixed_decay", (0.7,)), ("unigram", ())])
    )
    first = np.full((hmm.regimes, hmm.vocab_size), 1 / hmm.vocab_size)
    first = hmm.initial[:, None] * (first if hmm.initial_emission is None else hmm.initial_emission)
    tokens = np.array(list(itertools.product(range(hmm.vocab_size), repeat=length)))
    bayes, other = reference.forward(hmm, tokens), getattr(reference, name)(hmm, tokens, *arguments)
    probability = first.sum(axis=0)[tokens[:, 0]] * np.exp(bayes.log_prob.sum(axis=1))
    np.testing.assert_allclose(probability.sum(), 1, rtol=1e-12)
    divergence = diagnostics.kl_divergence(
        reference.predictive(hmm, tokens, bayes), reference.predictive(hmm, tokens, other)
    )
    assert (divergence >= 0).all()
    expected = (probability[:, None] * divergence).sum(axis=0)
    sampled = (probability[:, None] * (bayes.log_prob - other.log_prob)).sum(axis=0)
    np.testing.assert_allclose(sampled, expected, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(1e-6, 1))
def test_near_bayes_prediction_exposes_the_prior(seed, regimes, nearness):
    random = np.random.default_rng(seed)
    block = random.dirichlet(np.ones(6), regimes)
    prior, noise = random.dirichlet(np.ones(regimes)), random.dirichlet(np.ones(6))
    exact = prior @ block
    predicted = (1 - nearness) * exact + nearness * noise
    np.testing.assert_allclose(diagnostics.recovered_prior(block, exact), prior, atol=1e-9)
    bound = diagnostics.recovery_bound(block, float(diagnostics.kl_divergence(exact, predicted)))
    error = np.linalg.norm(diagnostics.recovered_prior(block, predicted) - prior)
    assert error <= bound * (1 + 1e-9) + 1e-9
    assert diagnostics.recovery_bound(np.repeat(block[:1], 2, axis=0), 0.1) > 1e6


@given(models_with_streams(max_length=20), WIDTHS, st.floats(0, 1), st.data())
def test_relabelling_changes_nothing(case, width, rate, data):
    hmm, tokens = case
    regimes = np.array(data.draw(st.permutations(range(hmm.regimes))))
    order = np.array(data.draw(st.permutations(range(hmm.vocab_size))))
    other, renamed = relabelled(hmm, regimes, order), np.argsort(order)[tokens]
    for run in (
        lambda h, x: reference.forward(h, x, **ANY),
        lambda h, x: reference.window(h, x, width, **ANY),
        lambda h, x: reference.window(h, x, width, "stationary", **ANY),
        lambda h, x: reference.composite(h, x, width, rate, **ANY),
        lambda h, x: reference.unigram(h, x, **ANY),
    ):
        ours, theirs = run(hmm, tokens), run(other, renamed)
        assume(np.isfinite(ours.log_prob).all())
        np.testing.assert_allclose(theirs.log_prob, ours.log_prob, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(theirs.posterior, ours.posterior[:, regimes], rtol=1e-9, atol=1e-11)


@given(models_with_streams(min_length=2, max_length=40, positive=True), st.data())
def test_a_filter_run_in_two_pieces_is_one_run(case, data):
    hmm, tokens = case
    cut = data.draw(st.integers(1, len(tokens) - 1))
    whole, first = reference.forward(hmm, tokens), reference.forward(hmm, tokens[:cut])
    second = reference.forward(started(hmm, first.posterior[-1]), tokens[cut - 1 :])
    np.testing.assert_allclose(
        np.concatenate([first.log_prob, second.log_prob]), whole.log_prob, rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(np.vstack([first.posterior, second.posterior[1:]]), whole.posterior, rtol=1e-11)
