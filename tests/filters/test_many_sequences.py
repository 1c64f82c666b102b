"""Many sequences at once on the CPU: the same results, in memory that serves again only when nobody holds it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models_with_streams

from filters import jax_backend, jax_batches, reference
from filters.hmm import ImpossibleObservation, TokenError, TwoTimescaleHMM, book_instance, sticky_transition
from filters.memory import Store, lent
from filters.sampling import sample

FIELDS = ("log_prob", "prior", "posterior")


def drawn(rows, length, seed=0):
    hmm = book_instance(length=1)[0]
    return hmm, sample(hmm, rows, length, seed)[0]


def assert_agree(result, expected, tolerance=1e-12):
    for name in FIELDS:
        ours, theirs = getattr(result, name), getattr(expected, name)
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 32 lanes or a few more, the last of which overlaps the one before."""
    monkeypatch.setattr(jax_batches, "BLOCK", 32)


@pytest.mark.parametrize(("rows", "length"), [(64, 1), (64, 2), (100, 65), (131, 33)])
def test_blocks_of_sequences_agree(small_blocks, rows, length):
    hmm, tokens = drawn(rows, length)
    assert_agree(jax_backend.forward(hmm, tokens), reference.forward(hmm, tokens))
    assert_agree(jax_backend.fixed_decay(hmm, tokens, 0.3), reference.fixed_decay(hmm, tokens, 0.3))
    assert_agree(jax_backend.unigram(hmm, tokens), reference.unigram(hmm, tokens))


def test_leading_dimensions_and_token_types_stay():
    hmm, tokens = drawn(96, 20)
    expected = reference.forward(hmm, tokens.reshape(2, 48, 20))
    assert_agree(jax_backend.forward(hmm, tokens.reshape(2, 48, 20)), expected)
    assert_agree(jax_backend.forward(hmm, np.asfortranarray(tokens.astype(np.uint8))), reference.forward(hmm, tokens))


def test_no_block_is_needed_for_the_result_to_be_that_of_single_sequences():
    hmm, tokens = drawn(70, 40)
    result = jax_backend.forward(hmm, tokens)
    for row in (0, 33, 69):
        one = jax_backend.forward(hmm, tokens[row])
        for name in FIELDS:
            np.testing.assert_allclose(getattr(result, name)[row], getattr(one, name), rtol=1e-12, atol=1e-12)


def test_float32_is_as_good_as_documented():
    hmm, tokens = drawn(80, 50)
    result, expected = jax_backend.forward(hmm, tokens, dtype="float32"), reference.forward(hmm, tokens)
    assert {getattr(result, name).dtype for name in FIELDS} == {np.dtype("float32")}
    assert_agree(result, expected, 5e-6)


@settings(max_examples=30)
@given(case=models_with_streams(max_length=20, max_regimes=2), data=st.data())
def test_extreme_models_agree(case, data):
    hmm, tokens = case
    any_tokens = data.draw(st.lists(st.integers(0, hmm.vocab_size - 1), min_size=len(tokens), max_size=len(tokens)))
    batch = np.tile([tokens, any_tokens], (35, 1))
    expected = reference.forward(hmm, batch[:2], impossible="-inf")
    result = jax_backend.forward(hmm, batch, impossible="-inf")
    for name in FIELDS:
        np.testing.assert_allclose(getattr(result, name)[:2], getattr(expected, name), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(getattr(result, name)[-2:], getattr(result, name)[:2])


def test_tokens_that_no_regime_emits_are_found():
    emission = np.array([[[0.5, 0.5, 0], [0.2, 0.8, 0], [0.1, 0.1, 0.8]]] * 2)
    hmm = TwoTimescaleHMM(sticky_transition(2, 0.1), emission, np.array([0.5, 0.5]))
    tokens = np.zeros((64, 30), dtype=int)
    tokens[40, 7] = 2
    with pytest.raises(ImpossibleObservation) as error:
        jax_backend.forward(hmm, tokens)
    assert (error.value.position, error.value.sequence) == (7, (40,))
    expected = reference.forward(hmm, tokens, impossible="-inf")
    assert_agree(jax_backend.forward(hmm, tokens, impossible="-inf"), expected)


@pytest.mark.parametrize(("kind", "bad"), [(np.int8, -1), (np.int64, -(2**62)), (np.uint8, 250), (np.int16, 200)])
def test_tokens_out_of_range_are_found_in_every_type(kind, bad):
    uniform = np.full((1, 200, 200), 1 / 200)
    hmm = TwoTimescaleHMM(np.ones((1, 1)), uniform, np.ones(1))
    tokens = np.zeros((2, 5), dtype=kind)
    assert jax_backend.forward(hmm, tokens).log_prob.shape == (2, 4)
    tokens[1, 3] = bad
    with pytest.raises(TokenError, match=rf"token {bad} at position 3 of sequence 1 is outside 0\.\.199"):
        hmm.check_tokens(tokens)


def test_results_that_are_held_are_never_written_again():
    hmm, tokens = drawn(64, 30)
    others = np.roll(tokens, 1, axis=1)
    first = jax_backend.forward(hmm, tokens)
    kept = {name: np.array(getattr(first, name)) for name in ("log_prob", "posterior")}
    row, last = first.posterior[3], first.log_prob[:, -1]
    for _ in range(5):
        jax_backend.forward(hmm, others)
    for name, values in kept.items():
        np.testing.assert_array_equal(getattr(first, name), values)
        assert not getattr(first, name).flags.writeable
    del first
    gc.collect()
    for _ in range(5):
        jax_backend.forward(hmm, others)
    np.testing.assert_array_equal(row, kept["posterior"][3])
    np.testing.assert_array_equal(last, kept["log_prob"][:, -1])


def test_threads_do_not_share_a_result():
    hmm, tokens = drawn(64, 30)
    streams = [np.roll(tokens, shift, axis=0) for shift in range(8)]
    expected = [jax_backend.forward(hmm, stream) for stream in streams]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda stream: jax_backend.forward(hmm, stream), streams * 4))
    for found, wanted in zip(results, expected * 4):
        np.testing.assert_array_equal(found.posterior, wanted.posterior)
        np.testing.assert_array_equal(found.log_prob, wanted.log_prob)


def test_a_store_keeps_the_latest_by_kind():
    store = Store(2)
    for thing in "abc":
        store.give("letter", thing)
    store.give("digit", 1)
    assert store.take("letter", lambda: "new") == "c"  # "a" and "b" were too many
    assert store.take("letter", lambda: "new") == "new"
    assert store.take("digit", lambda: "new") == 1


def test_an_array_is_lent_until_its_last_view_goes():
    array, back = np.arange(6.0), []
    view = lent(array, lambda: back.append(array))
    part = view[2:4].reshape(1, 2)
    del view
    gc.collect()
    assert not back
    np.testing.assert_array_equal(part, [[2.0, 3.0]])
    del part
    gc.collect()
    assert back[0] is array


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 9), (3, 9), (70, 9)])
def test_results_are_read_only_for_any_number_of_sequences(sequences, tokens):
    hmm, _, _ = book_instance(length=2)
    found, _ = sample(hmm, sequences, tokens, 0)
    result = jax_backend.forward(hmm, found)
    for array in (result.log_prob, result.posterior, result.prior):
        assert not array.flags.writeable
