"""The model's tables, the book's instance and its published values."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import reference
from filters.diagnostics import mean_discrimination
from filters.hmm import (
    ModelError,
    TokenError,
    TwoTimescaleHMM,
    book_instance,
    forgetting_transition,
    matched_rate,
    overlap_emissions,
    sticky_transition,
)


def uniform(regimes=2, vocab=3):
    return TwoTimescaleHMM(
        sticky_transition(regimes, 0.1), np.full((regimes, vocab, vocab), 1 / vocab), np.full(regimes, 1 / regimes)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": [[0.9, 0.2], [0.5, 0.5]]}, r"transition\[0\] sums to 1\.1"),
        ({"transition": [[1.0]]}, r"transition has shape \(1, 1\)|emission has shape|initial has shape"),
        ({"transition": [[0.5, 0.5]]}, r"transition has shape \(1, 2\)"),
        ({"emission": [[[0.5, 0.5]] * 2, [[1.5, -0.5]] * 2]}, r"emission\[1, 0, 1\] is -0\.5"),
        ({"emission": [[[0.5, 0.5]] * 2]}, r"emission has shape \(1, 2, 2\)"),
        ({"emission": [[[0.5, 0.5]] * 3] * 2}, r"emission has shape \(2, 3, 2\)"),
        ({"emission": [[[np.nan, 1.0]] * 2] * 2}, r"emission\[0, 0, 0\] is nan"),
        ({"initial": [0.5, 0.6]}, r"initial sums to 1\.1"),
        ({"initial": []}, "initial must have 1"),
        ({"initial": ["a", "b"]}, "initial is no array"),
        ({"initial_emission": [[0.5, 0.5]]}, "initial_emission has shape"),
    ],
)
def test_what_is_no_distribution_is_rejected_by_name(change, message):
    tables = {"transition": [[0.9, 0.1], [0.1, 0.9]], "emission": [[[0.5, 0.5]] * 2] * 2, "initial": [0.5, 0.5]}
    with pytest.raises(ModelError, match=message):
        TwoTimescaleHMM(**(tables | change))


def test_tables_are_copied_and_read_only():
    table = np.array([[1.0]])
    hmm = TwoTimescaleHMM(table, [[[1.0]]], [1.0])
    table[0, 0] = 5.0
    assert hmm.transition[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        hmm.emission[0, 0, 0] = 0.0
    with pytest.raises(AttributeError):
        hmm.transition = table


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_every_integer_type_gives_the_same(dtype):
    hmm = uniform()
    expected = reference.forward(hmm, np.array([0, 2, 1, 1]))
    result = reference.forward(hmm, np.array([0, 2, 1, 1], dtype=dtype))
    np.testing.assert_array_equal(result.posterior, expected.posterior)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([[0, 1], [3, 0]]), r"token 3 at position 0 of sequence 1 is outside 0\.\.2"),
        (np.array([0, -1]), r"token -1 at position 1 is outside 0\.\.2"),
        (np.array([2**64 - 1], dtype=np.uint64), "token 18446744073709551615 at position 0"),
        (np.array([0.0, 1.0]), "integer type, not float64"),
        (np.array([True, False]), "integer type, not bool"),
        (np.zeros((2, 0), dtype=int), r"T >= 1, not \(2, 0\)"),
        (np.array(1), r"T >= 1, not \(\)"),
    ],
)
def test_tokens_that_cannot_be_read_are_errors(tokens, message):
    with pytest.raises(TokenError, match=message):
        reference.forward(uniform(), tokens)


@given(st.integers(1, 40), st.floats(0, 1))
def test_matched_rate_makes_the_two_chains_one(regimes, switch_rate):
    """State-space book, Theorem 14.4."""
    matched = forgetting_transition(regimes, matched_rate(switch_rate, regimes))
    np.testing.assert_allclose(matched, sticky_transition(regimes, switch_rate), atol=4e-16)
    if regimes == 1:
        assert matched_rate(switch_rate, 1) == 0.0


@pytest.mark.parametrize(
    "build",
    [
        lambda: sticky_transition(0, 0.1),
        lambda: sticky_transition(2, 1.1),
        lambda: forgetting_transition(4, 1.4),
        lambda: forgetting_transition(4, -0.1),
        lambda: matched_rate(np.nan, 2),
        lambda: overlap_emissions([[1.0]], [[[1.0]]], 2.0),
    ],
)
def test_rates_out_of_range_name_the_nearest(build):
    with pytest.raises(ModelError):
        build()


def test_overlap_mixes_the_tables():
    shared, own = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
    np.testing.assert_array_equal(overlap_emissions(shared, own, 0.25), [[[0.75, 0.25], [0.25, 0.75]]])


@pytest.fixture(scope="module")
def book():
    return book_instance()


def test_book_instance_is_the_committed_one(book):
    hmm, tokens, regimes = book
    assert hmm.emission.shape == (4, 12, 12)
    assert tokens.shape == regimes.shape == (8192,)
    digest = hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()
    assert digest == "fceea5ca9d4e2bca1666ae1ba242c04ddcd87bacee387bc52fbcf86eea95b8f4"
    assert set(np.unique(regimes)) == {0, 1, 2, 3}
    assert 0.01 < (np.diff(regimes) != 0).mean() < 0.03


def test_published_values(book):
    """State-space book, section 14.6: the reference configuration, after a burn-in of 128 predictions."""
    hmm, tokens, _ = book
    optimal = -reference.forward(hmm, tokens).log_prob[128:].mean()

    def excess(result):
        return float(-result.log_prob[128:].mean() - optimal)

    assert f"{mean_discrimination(hmm):.3f}" == "0.534"
    assert f"{optimal:.4f}" == "1.9289"
    assert f"{excess(reference.window(hmm, tokens, 8)):.4f}" == "0.0246"
    assert f"{excess(reference.fixed_decay(hmm, tokens, matched_rate(0.2, 4))):.4f}" == "0.0512"
    assert f"{excess(reference.unigram(hmm, tokens)):.4f}" == "0.4965"


def test_book_tables_do_not_depend_on_the_dials(book):
    wide, tokens, _ = book_instance(overlap=1.0, switch_rate=0.5, length=64)
    middle, _, _ = book_instance(overlap=0.4, switch_rate=0.5, length=1)
    np.testing.assert_array_equal(middle.emission, book[0].emission)
    assert not np.allclose(wide.emission, book[0].emission)
    assert tokens.shape == (64,)


def test_callers_jax_configuration_is_untouched_and_not_used(book):
    before = (jax.config.jax_enable_x64, jax.config.jax_threefry_partitionable, jax.config.jax_default_prng_impl)
    try:
        jax.config.update("jax_threefry_partitionable", False)
        jax.config.update("jax_default_prng_impl", "rbg")
        _, tokens, _ = book_instance(length=16)
        assert not jax.config.jax_threefry_partitionable
        assert jax.config.jax_enable_x64 == before[0]
        assert (tokens != book_instance(length=16, seed=1)[1]).any()
        jax.config.update("jax_threefry_partitionable", True)
        jax.config.update("jax_default_prng_impl", "threefry2x32")
        np.testing.assert_array_equal(tokens, book_instance(length=16)[1])
    finally:
        jax.config.update("jax_threefry_partitionable", before[1])
        jax.config.update("jax_default_prng_impl", before[2])


def test_the_definition_needs_neither_torch_nor_jax():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n"
        "import filters, filters.hmm, filters.reference, filters.diagnostics\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
