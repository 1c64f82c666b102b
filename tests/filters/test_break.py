"""An attempt to break the filters: models at the ends of float64, streams near the impossible.

Tables are drawn from a seed, so that a hundred thousand cases take minutes: HYPOTHESIS_PROFILE=nightly, `-m slow`.
"""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from filters import reference, torch_backend
from filters.hmm import TwoTimescaleHMM, matched_rate, sticky_transition
from filters.stationary import stationary_law

CASES = 100_000 if settings.get_current_profile_name() == "nightly" else 1000
WEIGHTS = np.array([0.0, 0.0, 5e-324, 1e-310, 1e-300, 1e-160, 1e-20, 1e-8, 1e-3, 0.5, 1.0, 1.0, 1.0])
ANY = {"impossible": "-inf"}


def drawn(seed):
    """A model of up to 3 regimes and tokens, tokens, a width and a rate."""
    random = np.random.default_rng(seed)

    def table(*shape):
        if random.random() < 0.3:
            return random.dirichlet(np.full(shape[-1], random.choice([0.1, 1.0])), shape[:-1])
        weights = random.choice(WEIGHTS, shape)
        weights[..., 0] += weights.sum(axis=-1) == 0
        return weights / weights.sum(axis=-1, keepdims=True)

    regimes, vocab, length = random.integers(1, 4), random.integers(1, 4), random.integers(1, 8)
    rate = random.choice([0.0, 1e-300, 1e-20, 1e-3, 1.0, random.random()])
    chain = table(regimes, regimes)
    if random.random() < 0.3:
        chain = sticky_transition(regimes, min(rate, (regimes - 1) / regimes))
    first = table(regimes, vocab) if random.random() < 0.3 else None
    hmm = TwoTimescaleHMM(chain, table(regimes, vocab, vocab), table(1, regimes)[0], first)
    return hmm, random.integers(0, vocab, length), int(random.integers(1, 9)), float(rate)


def assert_sane(result):
    for name in ("log_prob", "prior", "posterior"):
        assert not np.isnan(getattr(result, name)).any(), name
    assert (result.log_prob <= 1e-14).all()
    np.testing.assert_allclose(result.prior.sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(result.posterior.sum(axis=-1), 1, atol=1e-12)


def assert_agree(result, expected):
    assert_sane(expected)
    for name in ("log_prob", "prior", "posterior"):
        ours, theirs = np.asarray(getattr(result, name)), getattr(expected, name)
        np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(theirs))
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=1e-12, atol=1e-12)


def assert_enumerated(hmm, tokens, width, result):
    """Against every path, as long as the paths' own products stay in the range of float64."""
    uniform = np.full(hmm.regimes, 1 / hmm.regimes)
    for t in range(len(tokens) - 1):
        edge = max(0, t - width + 1)
        first = uniform if edge else oracles.first_law(hmm, tokens)
        seen = tokens[edge : t + 1]
        if oracles.path_weights(first, hmm.transition, hmm.emission, seen)[1].sum() < 1e-250:
            return
        answer = oracles.beliefs(first, hmm.transition, hmm.emission, seen, tokens[t + 1])
        np.testing.assert_allclose(result.posterior[t], answer.posterior, atol=1e-12)
        np.testing.assert_allclose(result.prior[t], answer.prior, atol=1e-12)
        if answer.probability > 1e-40:
            np.testing.assert_allclose(result.log_prob[t], np.log(answer.probability), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=CASES)
@given(st.integers(0, 2**63 - 1), st.integers(0, 6))
def test_nothing_breaks(seed, kind):
    hmm, tokens, width, rate = drawn(seed)
    on_torch = torch.as_tensor(tokens)
    exact = reference.forward(hmm, tokens, **ANY)
    assert_sane(exact)
    if kind == 0:
        assert_enumerated(hmm, tokens, len(tokens), exact)
        assert_enumerated(hmm, tokens, width, reference.window(hmm, tokens, width, **ANY))
    elif kind == 1:
        assert_agree(torch_backend.forward(hmm, on_torch, **ANY), exact)
        expected = reference.fixed_decay(hmm, tokens, rate, **ANY)
        assert_agree(torch_backend.fixed_decay(hmm, on_torch, rate, **ANY), expected)
    elif kind == 2:
        expected = reference.composite(hmm, tokens, width, rate, **ANY)
        assert_agree(torch_backend.composite(hmm, on_torch, width, rate, **ANY), expected)
    elif kind == 3:
        for edge in ("uniform", "stationary"):
            expected = reference.window(hmm, tokens, width, edge, **ANY)
            assert_agree(torch_backend.window(hmm, on_torch, width, edge, **ANY), expected)
    elif kind == 4:
        assert_agree(torch_backend.unigram(hmm, on_torch, **ANY), reference.unigram(hmm, tokens, **ANY))
        law = stationary_law(hmm.transition, hmm.initial)
        np.testing.assert_allclose(law.sum(), 1, rtol=1e-12)
        np.testing.assert_allclose(law @ hmm.transition, law, rtol=1e-9, atol=1e-15)
    elif kind == 5 and hmm.regimes > 1:
        eps = min(rate, (hmm.regimes - 1) / hmm.regimes)
        sticky = TwoTimescaleHMM(sticky_transition(hmm.regimes, eps), hmm.emission, hmm.initial, hmm.initial_emission)
        bayes, matched = reference.forward(sticky, tokens, **ANY), matched_rate(eps, hmm.regimes)
        if np.isfinite(bayes.log_prob).all():
            assert_agree(reference.fixed_decay(sticky, tokens, matched, **ANY), bayes)
            assert_agree(reference.composite(sticky, tokens, width, matched, **ANY), bayes)
    elif kind == 6:
        part = reference.forward(hmm, tokens[: max(1, len(tokens) // 2)], **ANY)
        np.testing.assert_array_equal(part.posterior, exact.posterior[: len(part.posterior)])
