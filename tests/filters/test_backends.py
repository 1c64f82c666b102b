"""The fast forms against the definition: |a - b| <= 1e-12 (1 + |b|) on every field."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models_with_streams

from filters import jax_backend, reference, torch_backend
from filters.hmm import ImpossibleObservation, TokenError, TwoTimescaleHMM, book_instance, sticky_transition
from filters.sampling import sample

FIELDS = ("log_prob", "prior", "posterior")


def on_torch(name):
    """A predictor of the torch backend, from and to NumPy."""

    def run(hmm, tokens, *arguments, **options):
        result = getattr(torch_backend, name)(hmm, torch.as_tensor(tokens), *arguments, **options)
        return reference.FilterResult(*(getattr(result, f).numpy() for f in FIELDS), result.emission)

    return run


PREDICTORS = {
    "forward": (),
    "fixed_decay": (0.3,),
    "unigram": (),
    "window": (3,),
    "composite": (3, 0.2),
}

BACKENDS = [
    pytest.param(SimpleNamespace(**{name: on_torch(name) for name in PREDICTORS}), id="torch"),
    pytest.param(jax_backend, id="jax"),
]
MOST_REGIMES = 4 if settings.get_current_profile_name() == "nightly" else 2  # each number compiles its own programs
every_backend = pytest.mark.parametrize("backend", BACKENDS)
jax_is_slow = pytest.mark.parametrize(
    "backend", [BACKENDS[0], pytest.param(*BACKENDS[1].values, id="jax", marks=pytest.mark.slow)]
)


@cache
def book():
    return book_instance()


def assert_agree(result, expected, tolerance=1e-12):
    for name in FIELDS:
        ours, theirs = getattr(result, name), getattr(expected, name)
        assert ours.shape == theirs.shape, name
        assert ours.dtype == np.float64
        assert not np.isnan(ours).any(), name
        np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(theirs), err_msg=name)
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=tolerance, atol=tolerance, err_msg=name)


def dense(regimes, vocab, seed=0, floor=0.0):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return (1 - floor) * random.dirichlet(np.full(shape[-1], 0.5), shape[:-1]) + floor / shape[-1]

    return TwoTimescaleHMM(draw(regimes, regimes), draw(regimes, vocab, vocab), draw(1, regimes)[0])


def sizes():
    """Every backend at every number of regimes; most of them slow, as JAX has to compile programs for each."""
    for backend in BACKENDS:
        for regimes in range(1, 9):
            slow = regimes not in ((3,) if backend.id == "jax" else (1, 3))
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(*backend.values, regimes, id=f"{backend.id}-{regimes}", marks=marks)


@pytest.mark.parametrize(("backend", "regimes"), list(sizes()))
def test_all_predictors_agree_at_every_size(backend, regimes):
    for length, vocab in [(1, 1), (1, 5), (2, 32), (7, 2), (7, 5), (64, 1), (64, 32), (1000, 5)]:
        if vocab == 32 and regimes == 3:
            continue  # 3 is quick, and tables of 32 tokens are further programs
        hmm = dense(regimes, vocab, seed=regimes * 100 + vocab)
        tokens = np.random.default_rng(length).integers(0, vocab, length)
        for name, arguments in PREDICTORS.items():
            expected = getattr(reference, name)(hmm, tokens, *arguments)
            assert_agree(getattr(backend, name)(hmm, tokens, *arguments), expected)
        if length == 1000:
            for width in (1, 2, 16, 17, 63, 400, 999, 2000):
                for edge in ("uniform", "stationary"):
                    expected = reference.window(hmm, tokens, width, edge)
                    assert_agree(backend.window(hmm, tokens, width, edge), expected)


@every_backend
@pytest.mark.parametrize("seed", range(5))
def test_zeros_in_the_emission_agree_over_many_chunks(backend, seed):
    """Every transition is positive, so plain numbers are used, and tokens exclude regimes all the time."""
    random = np.random.default_rng(seed)
    emission = random.dirichlet(np.ones(5), (3, 5)) * (random.random((3, 5, 5)) < 0.6)
    emission[..., 0] += emission.sum(axis=-1) == 0
    emission /= emission.sum(axis=-1, keepdims=True)
    hmm = TwoTimescaleHMM(random.dirichlet(np.ones(3), 3), emission, np.full(3, 1 / 3))
    tokens = sample(hmm, 1, 1000, seed)[0][0]
    for name, arguments in PREDICTORS.items() | {("window", (100,)), ("composite", (100, 0.2))}:
        expected = getattr(reference, name)(hmm, tokens, *arguments, impossible="-inf")
        assert_agree(getattr(backend, name)(hmm, tokens, *arguments, impossible="-inf"), expected)


@jax_is_slow
@pytest.mark.parametrize(("rows", "length"), [(3, 40), (70, 33)])
def test_batches_agree(backend, rows, length):
    hmm = dense(2, 3, seed=1)
    tokens = np.random.default_rng(length).integers(0, 3, (rows, length))
    for name, arguments in (("forward", ()), ("window", (20,)), ("composite", (3, 0.2))):
        expected = getattr(reference, name)(hmm, tokens, *arguments)
        assert_agree(getattr(backend, name)(hmm, tokens, *arguments), expected)
        expected = reference.FilterResult(*(getattr(expected, f)[:, None] for f in FIELDS))
        assert_agree(getattr(backend, name)(hmm, tokens[:, None], *arguments), expected)


@every_backend
@given(
    case=models_with_streams(max_length=60, max_regimes=MOST_REGIMES),
    width=st.integers(1, 70),
    rate=st.floats(0, 1) | st.sampled_from([0.0, 1e-20, 1.0]),
)
def test_all_predictors_agree_on_extreme_models(backend, case, width, rate):
    hmm, tokens = case
    options = {"impossible": "-inf"}
    for name, arguments in PREDICTORS.items() | {
        ("window", (width,)),
        ("window", (width, "stationary")),
        ("composite", (width, rate)),
        ("fixed_decay", (rate,)),
    }:
        expected = getattr(reference, name)(hmm, tokens, *arguments, **options)
        assert_agree(getattr(backend, name)(hmm, tokens, *arguments, **options), expected)


@jax_is_slow
@given(case=models_with_streams(max_length=20, max_regimes=MOST_REGIMES), data=st.data())
def test_impossible_tokens_are_found_at_the_same_place(backend, case, data):
    hmm, tokens = case
    any_tokens = data.draw(st.lists(st.integers(0, hmm.vocab_size - 1), min_size=len(tokens), max_size=len(tokens)))
    tokens = np.stack([tokens, any_tokens])
    for name, arguments in PREDICTORS.items():
        outcomes = []
        for module in (reference, backend):
            try:
                getattr(module, name)(hmm, tokens, *arguments)
                outcomes.append(None)
            except ImpossibleObservation as error:
                outcomes.append((error.position, error.sequence))
        assert outcomes[0] == outcomes[1]
        options = {"impossible": "-inf"}
        expected = getattr(reference, name)(hmm, tokens, *arguments, **options)
        assert_agree(getattr(backend, name)(hmm, tokens, *arguments, **options), expected)


@jax_is_slow
@pytest.mark.parametrize("switch_rate", [0.0, 1e-20, 1e-3])
def test_evidence_turns_after_a_thousand_tokens(backend, switch_rate):
    emission = np.array([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2])
    hmm = TwoTimescaleHMM(sticky_transition(2, switch_rate), emission, np.array([0.5, 0.5]))
    tokens = np.repeat([0, 1], [1001, 2000])
    expected = reference.forward(hmm, tokens)
    for result in (
        backend.forward(hmm, tokens),
        backend.forward(hmm, np.tile(tokens, (70, 1))),
        backend.window(hmm, tokens, 3500),
        backend.composite(hmm, tokens, 100, 0.0) if switch_rate == 0 else backend.forward(hmm, tokens),
    ):
        for name in FIELDS:
            got = getattr(result, name)
            got = got[-1] if got.ndim > getattr(expected, name).ndim else got
            np.testing.assert_allclose(got, getattr(expected, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("backend", "width"),
    [
        pytest.param(*BACKENDS[0].values, 400, id="torch-400"),
        pytest.param(*BACKENDS[0].values, 1500, id="torch-1500", marks=pytest.mark.slow),
        pytest.param(*BACKENDS[1].values, 400, id="jax-400", marks=pytest.mark.slow),
        pytest.param(*BACKENDS[1].values, 1500, id="jax-1500", marks=pytest.mark.slow),
    ],
)
def test_windows_of_a_frozen_chain_are_exact(backend, width):
    emission = np.array([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2])
    hmm = TwoTimescaleHMM(sticky_transition(2, 0.0), emission, np.array([0.5, 0.5]))
    tokens = np.repeat([0, 1, 0], [500, 600, 100] if width == 400 else [1200, 1100, 400])
    assert_agree(backend.window(hmm, tokens, width), reference.window(hmm, tokens, width))
    assert_agree(backend.composite(hmm, tokens, width, 0.0), reference.composite(hmm, tokens, width, 0.0))
    one_hot = TwoTimescaleHMM(hmm.transition, emission, np.array([1.0, 0.0]))
    assert_agree(backend.composite(one_hot, tokens, width, 0.0), reference.composite(one_hot, tokens, width, 0.0))


@every_backend
def test_published_values(backend):
    """State-space book, section 14.6."""
    hmm, tokens, _ = book()
    optimal = -backend.forward(hmm, tokens).log_prob[128:].mean()
    values = [
        backend.window(hmm, tokens, 8),
        backend.fixed_decay(hmm, tokens, 0.2 * 4 / 3),
        backend.unigram(hmm, tokens),
    ]
    assert f"{optimal:.4f}" == "1.9289"
    assert [f"{-v.log_prob[128:].mean() - optimal:.4f}" for v in values] == ["0.0246", "0.0512", "0.4965"]


@every_backend
@given(case=models_with_streams(min_length=2))
def test_predictive_agrees(backend, case):
    hmm, tokens = case
    for name in ("forward", "unigram"):
        options = {"impossible": "-inf"}
        expected = getattr(reference, name)(hmm, tokens, **options)
        result = getattr(torch_backend, name)(hmm, torch.as_tensor(tokens), **options)
        for positions in (None, [0], slice(1, None), np.arange(len(tokens) - 1) % 2 == 0):
            ours = torch_backend.predictive(hmm, torch.as_tensor(tokens), result, positions)
            np.testing.assert_allclose(ours, reference.predictive(hmm, tokens, expected, positions), atol=1e-12)


@every_backend
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_later_tokens_change_nothing_before_them(backend, predictor):
    """What fills up the last block never enters a posterior, and neither does the future."""
    hmm = dense(3, 4, floor=0.01)
    tokens = np.random.default_rng(0).integers(0, 4, 700)
    whole = getattr(backend, predictor)(hmm, tokens, *PREDICTORS[predictor])
    for length in (1, 31, 699):
        part = getattr(backend, predictor)(hmm, tokens[:length], *PREDICTORS[predictor])
        np.testing.assert_allclose(part.posterior, whole.posterior[:length], rtol=1e-12)
        np.testing.assert_allclose(part.log_prob, whole.log_prob[: length - 1], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint64])
def test_torch_reads_every_integer_type(dtype):
    hmm = dense(3, 4)
    result = torch_backend.forward(hmm, torch.tensor([0, 3, 2, 2]).to(dtype))
    np.testing.assert_allclose(result.posterior, reference.forward(hmm, np.array([0, 3, 2, 2])).posterior, rtol=1e-12)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, 1], [4, 0]]), r"token 4 at position 0 of sequence 1 is outside 0\.\.3"),
        (torch.tensor([0, -1]), "token -1 at position 1"),
        (torch.tensor([0.5]), "integer type, not float32"),
        (torch.tensor([True]), "integer type, not bool"),
        (torch.zeros(2, 0, dtype=torch.int64), r"not \(2, 0\)"),
        (np.array([0]), "torch tensor, not ndarray"),
    ],
)
def test_torch_says_what_is_wrong_with_tokens(tokens, message):
    with pytest.raises(TokenError, match=message):
        torch_backend.forward(dense(3, 4), tokens)


def test_torch_in_float32_is_as_good_as_documented():
    hmm, tokens, _ = book()
    tokens = tokens[:2048]
    for name, arguments in PREDICTORS.items():
        expected = getattr(reference, name)(hmm, tokens, *arguments)
        result = getattr(torch_backend, name)(hmm, torch.as_tensor(tokens), *arguments, dtype=torch.float32)
        for field in FIELDS:
            assert getattr(result, field).dtype == torch.float32
            np.testing.assert_allclose(getattr(result, field), getattr(expected, field), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "rows"),
    [
        ("forward", (), 1),
        ("forward", (), 64),
        ("window", (3,), 1),
        ("window", (10, "stationary"), 1),
        ("composite", (10, 0.2), 1),
    ],
)
def test_jax_filters_run_without_compilation(name, arguments, rows):
    """Many sequences, short windows, long ones with their edge laws."""
    hmm = dense(2, 3)
    tokens = sample(hmm, rows, 12, 0)[0]
    with jax.disable_jit():
        result = getattr(jax_backend, name)(hmm, tokens, *arguments)
    assert_agree(result, getattr(reference, name)(hmm, tokens, *arguments))
