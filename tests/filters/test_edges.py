"""Sharp edges: long sequences, tiny rates, near-deterministic rows, number types, the caller's JAX configuration."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
import torch

from filters import jax_backend, reference, torch_backend
from filters.hmm import TokenError, TwoTimescaleHMM, book_instance, sticky_transition
from filters.sampling import sample
from filters.scaling import is_linear

FIELDS = ("log_prob", "prior", "posterior")
PREDICTORS = {"forward": (), "fixed_decay": (0.2,), "unigram": (), "window": (3,), "composite": (3, 0.2)}


@cache
def book():
    return book_instance()


def coins(switch_rate, bias=0.9):
    emission = np.array([[[bias, 1 - bias]] * 2, [[1 - bias, bias]] * 2])
    return TwoTimescaleHMM(sticky_transition(2, switch_rate), emission, np.array([0.5, 0.5]))


def in_extended_precision(hmm, tokens):
    """The log-likelihood by the plain recursion in 80-bit numbers, summed in pieces."""
    transition = hmm.transition.astype(np.longdouble)
    likelihood = hmm.emission.transpose(1, 2, 0)[tokens[:-1], tokens[1:]].astype(np.longdouble)
    belief = hmm.initial.astype(np.longdouble)
    scales = np.empty(len(likelihood), dtype=np.longdouble)
    for t, row in enumerate(likelihood):
        belief = (belief @ transition) * row
        scales[t] = belief.sum()
        belief = belief / scales[t]
    return np.log(scales).sum()


@pytest.mark.slow
def test_a_million_tokens_have_their_log_likelihood_to_1e_12():
    hmm = coins(1e-3, 0.7)
    tokens, _ = sample(hmm, 1, 1_000_000, seed=0)
    exact = in_extended_precision(hmm, tokens[0])
    ours = jax_backend.forward(hmm, tokens[0])
    theirs = torch_backend.forward(hmm, torch.as_tensor(tokens[0]))
    assert abs(ours.log_prob.sum() - exact) <= 1e-12 * abs(exact)
    assert abs(theirs.log_prob.sum().item() - exact) <= 1e-12 * abs(exact)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), rtol=1e-11, atol=1e-12)
    wide = jax_backend.window(hmm, tokens[0], 4096)
    for start in (0, 5000, 900_000):  # `initial` is uniform, so that a piece's first window is like any other
        piece = reference.window(hmm, tokens[0, start : start + 4096 + 50], 4096)
        np.testing.assert_allclose(wide.posterior[start + 4095 :][:50], piece.posterior[4095:][:50], atol=1e-12)


@pytest.mark.parametrize("hmm", [coins(0.0), coins(1e-20), coins(1e-3, 1 - 1e-12), coins(0.3, 1.0), coins(0.9, 1.0)])
def test_extreme_models_agree_over_a_long_stream(hmm):
    tokens, _ = sample(hmm, 1, 600, seed=3)
    expected = reference.forward(hmm, tokens[0])
    for result in (jax_backend.forward(hmm, tokens[0]), torch_backend.forward(hmm, torch.as_tensor(tokens[0]))):
        for name in FIELDS:
            np.testing.assert_allclose(getattr(result, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    assert expected.log_prob.dtype == np.float64
    if hmm.transition.min() < 0.01:
        return  # further programs; wide windows of such models are in test_backends
    window = reference.window(hmm, tokens[0], 30)
    for result in (jax_backend.window(hmm, tokens[0], 30), torch_backend.window(hmm, torch.as_tensor(tokens[0]), 30)):
        for name in FIELDS:
            np.testing.assert_allclose(getattr(result, name), getattr(window, name), rtol=1e-12, atol=1e-12)


def test_the_plain_recursion_is_used_only_where_nothing_underflows():
    assert is_linear(coins(1e-20).transition, coins(1e-20).emission)
    assert is_linear(coins(0.1, 1.0).transition, coins(0.1, 1.0).emission)  # zeros in the emission are no matter
    assert not is_linear(coins(0.0).transition, coins(0.0).emission)
    assert not is_linear(coins(1e-130).transition, coins(1e-130).emission)
    assert not is_linear(coins(1e-20).transition, coins(1e-20).emission, "float32")


@pytest.mark.parametrize("switch_rate", [1e-130, 1e-300])
def test_what_would_underflow_in_plain_numbers_does_not(switch_rate):
    """A sure switch in spite of a rate of 1e-300: its log-probability is that of the rate."""
    hmm = coins(switch_rate, 1.0)
    tokens = np.array([0, 0, 1, 1, 0])
    first = TwoTimescaleHMM(hmm.transition, hmm.emission, np.array([1.0, 0.0]))
    expected = [0.0, np.log(switch_rate), 0.0, np.log(switch_rate)]
    for result in (
        reference.forward(first, tokens),
        jax_backend.forward(first, tokens),
        torch_backend.forward(first, torch.as_tensor(tokens)),
    ):
        np.testing.assert_allclose(result.log_prob, expected, rtol=1e-14, atol=1e-15)


def test_jax_in_float32_is_as_good_as_documented():
    hmm, tokens, _ = book()
    tokens = tokens[:2048]
    for name, arguments in {"forward": (), "window": (64,), "composite": (8, 0.2)}.items():
        expected = getattr(reference, name)(hmm, tokens, *arguments)
        result = getattr(jax_backend, name)(hmm, tokens, *arguments, dtype="float32")
        for field in FIELDS:
            assert getattr(result, field).dtype == np.float32
            np.testing.assert_allclose(getattr(result, field), getattr(expected, field), rtol=5e-6, atol=5e-6)


def test_the_callers_jax_configuration_is_as_before():
    before = {name: jax.config.values[name] for name in ("jax_enable_x64", "jax_threefry_partitionable")}
    hmm, tokens, _ = book()
    on_host = jax_backend.window(hmm, tokens[:100], 12)
    on_device = jax_backend.window(hmm, tokens[:100], 12, device_arrays=True)
    assert {name: jax.config.values[name] for name in before} == before
    for name in FIELDS:
        assert type(getattr(on_host, name)) is np.ndarray
        assert isinstance(getattr(on_device, name), jax.Array)
        assert getattr(on_device, name).dtype == np.float64
        np.testing.assert_array_equal(np.asarray(getattr(on_device, name)), getattr(on_host, name))


@pytest.mark.parametrize("tokens", [np.array([0, 12]), np.array([[0, 1], [-1, 0]]), np.array([0.5]), np.array([], int)])
def test_jax_says_what_is_wrong_with_tokens(tokens):
    with pytest.raises(TokenError):
        jax_backend.forward(book()[0], tokens)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_settings_out_of_range_are_errors(backend):
    hmm, tokens, _ = book()
    module = jax_backend if backend == "jax" else torch_backend
    tokens = tokens[:20] if backend == "jax" else torch.as_tensor(tokens[:20])
    for run in (
        lambda: module.window(hmm, tokens, 0),
        lambda: module.window(hmm, tokens, 2, edge="other"),
        lambda: module.composite(hmm, tokens, 2, 2.0),
        lambda: module.fixed_decay(hmm, tokens, -0.1),
        lambda: module.forward(hmm, tokens, impossible="other"),
        lambda: module.forward(hmm, tokens, dtype="float16" if backend == "jax" else torch.float16),
    ):
        with pytest.raises(ValueError):
            run()


@pytest.mark.parametrize("shape", [(0, 5), (0, 1), (2, 0, 90)])
@pytest.mark.parametrize("switch_rate", [0.02, 0.0])
def test_no_sequences_at_all_have_results_without_rows(shape, switch_rate):
    hmm = TwoTimescaleHMM(sticky_transition(4, switch_rate), book()[0].emission, book()[0].initial)
    tokens, length = np.zeros(shape, dtype=int), shape[-1]
    for name, arguments in PREDICTORS.items():
        for module in (reference, jax_backend, torch_backend):
            given = torch.as_tensor(tokens) if module is torch_backend else tokens
            result = getattr(module, name)(hmm, given, *arguments)
            shapes = [tuple(getattr(result, field).shape) for field in FIELDS]
            assert shapes == [(*shape[:-1], length - 1), (*shape[:-1], length - 1, 4), (*shape, 4)]
            assert result.log_prob.dtype in (np.float64, torch.float64)


@pytest.mark.parametrize("module", [reference, jax_backend, torch_backend])
@pytest.mark.parametrize("width", [0, -1, 2.5, 3.0, np.float64(3), "3", None, True, np.True_, float("nan")])
def test_a_width_is_an_integer_of_at_least_one(module, width):
    hmm, tokens, _ = book()
    tokens = torch.as_tensor(tokens[:20]) if module is torch_backend else tokens[:20]
    for run in (lambda: module.window(hmm, tokens, width), lambda: module.composite(hmm, tokens, width, 0.2)):
        with pytest.raises(ValueError, match=r"^width is .*; it must be an integer of at least 1"):
            run()


@pytest.mark.parametrize("module", [reference, jax_backend, torch_backend])
@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_numpy_integers_are_widths(module, kind):
    hmm, tokens, _ = book()
    tokens = torch.as_tensor(tokens[:20]) if module is torch_backend else tokens[:20]
    for name, arguments in {"window": (), "composite": (0.2,)}.items():
        plain = getattr(module, name)(hmm, tokens, 3, *arguments)
        same = getattr(module, name)(hmm, tokens, kind(3), *arguments)
        np.testing.assert_array_equal(same.posterior, plain.posterior)


POSITIONS = [
    [],
    [3],
    [-1, 0, 0],
    4,
    np.array([1, 7]),
    np.arange(19) % 3 == 0,
    [True] * 19,
    slice(None, None, -1),
    slice(15, 2, -4),
    slice(0, 0),
    slice(3, None),
    None,
]


@pytest.mark.parametrize("positions", POSITIONS, ids=repr)
def test_torch_predicts_at_whatever_positions_the_definition_does(positions):
    hmm, tokens, _ = book()
    tokens = tokens[:40].reshape(2, 20)
    expected = reference.predictive(hmm, tokens, reference.forward(hmm, tokens), positions)
    given = torch.as_tensor(tokens)
    result = torch_backend.predictive(hmm, given, torch_backend.forward(hmm, given), positions)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, atol=1e-12)
    if isinstance(positions, np.ndarray):
        by_tensor = torch_backend.predictive(hmm, given, torch_backend.forward(hmm, given), torch.as_tensor(positions))
        np.testing.assert_array_equal(by_tensor, result)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("switch_rate", [0.02, 0.0])
def test_torch_on_a_gpu_agrees(switch_rate):
    hmm, tokens, _ = book()
    hmm = TwoTimescaleHMM(sticky_transition(4, switch_rate), hmm.emission, hmm.initial)
    tokens = tokens[:1024].reshape(2, 512)
    for name, arguments in {
        "forward": (),
        "fixed_decay": (0.2,),
        "unigram": (),
        "window": (40,),
        "composite": (40, 0.2),
    }.items():
        result = getattr(torch_backend, name)(hmm, torch.as_tensor(tokens, device="cuda"), *arguments)
        expected = getattr(reference, name)(hmm, tokens, *arguments)
        for field in FIELDS:
            assert getattr(result, field).is_cuda
            np.testing.assert_allclose(getattr(result, field).cpu(), getattr(expected, field), rtol=1e-12, atol=1e-12)
