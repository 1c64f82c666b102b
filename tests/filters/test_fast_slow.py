"""The fast-slow system against a scalar solution, an integrator, and the theorem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from filters.fast_slow import FastSlow, NotHurwitz, exponential


@st.composite
def systems(draw):
    """Blocks of order one, with a Hurwitz fast block, its non-normal part included."""
    slow, fast = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stable = np.triu(random.normal(size=(fast, fast)), 1) - np.diag(random.uniform(0.5, 2, fast))
    turn, _ = np.linalg.qr(random.normal(size=(fast, fast)))
    blocks = [random.normal(size=shape) / 2 for shape in ((slow, slow), (slow, fast), (fast, slow))]
    return FastSlow(*blocks, turn @ stable @ turn.T), random.normal(size=slow), random.normal(size=fast)


@given(systems(), st.sampled_from([1.0, 0.1, 1e-2, 1e-3]))
def test_the_bounds_hold(case, epsilon):
    """State-space book, Theorem 14.1."""
    system, x0, y0 = case
    times = np.concatenate([epsilon * np.linspace(0, 20, 41), np.linspace(0, 1, 21)])
    exact, reduced = system.solve(epsilon, x0, y0, times), system.reduced(x0, times)
    bound = system.bound(epsilon, x0, y0, times)
    assert (np.linalg.norm(exact.layer, axis=1) <= bound.layer * (1 + 1e-9) + 1e-11).all()
    assert np.linalg.norm(exact.slow - reduced.slow, axis=1).max() <= bound.gap * (1 + 1e-9) + 1e-11


@given(systems())
def test_the_gap_shrinks_like_epsilon(case):
    system, x0, y0 = case
    times = np.linspace(0, 1, 33)
    epsilons = np.array([1e-4, 1e-5])
    gaps = [
        np.abs(system.solve(e, x0, y0, times).slow - system.reduced(x0, times).slow).max() + 1e-12 for e in epsilons
    ]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.05)
    assert np.isfinite(system.bound(1e-5, x0, y0, times).gap)


def test_the_scalar_layer_is_an_exponential():
    """Without feedback on the slow variable the layer decays at |d| / epsilon exactly."""
    system = FastSlow([[0.0]], [[0.0]], [[1.0]], [[-2.0]])
    times = np.linspace(0, 0.1, 11)
    layer = system.solve(0.01, [1.0], [3.0], times).layer[:, 0]
    np.testing.assert_allclose(layer, 2.5 * np.exp(-200 * times), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(system.reduced([1.0], times).fast, 0.5)


@given(systems())
def test_an_integrator_gives_the_same(case):
    system, x0, y0 = case
    epsilon = 0.05
    full = np.block([[system.A, system.B], [system.C / epsilon, system.D / epsilon]])
    start = np.concatenate([x0, y0])
    solution = solve_ivp(lambda _, s: full @ s, (0, 0.5), start, rtol=1e-9, atol=1e-11, t_eval=[0.1, 0.5])
    exact = system.solve(epsilon, x0, y0, [0.1, 0.5])
    np.testing.assert_allclose(np.hstack([exact.slow, exact.fast]), solution.y.T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fast", [[[0.0]], [[1.0]], [[0.0, 1.0], [-1.0, 0.0]], [[-1.0, 0.0], [0.0, 1e-9]]])
def test_a_fast_block_that_is_not_hurwitz_is_an_error(fast):
    size = len(fast)
    with pytest.raises(NotHurwitz, match="eigenvalue with real part"):
        FastSlow(np.eye(1), np.ones((1, size)), np.ones((size, 1)), fast)


def test_other_errors_name_the_block():
    with pytest.raises(ValueError, match=r"B has shape \(1, 2\)"):
        FastSlow([[1.0]], [[1.0, 2.0]], [[1.0]], [[-1.0]])
    with pytest.raises(ValueError, match="epsilon is 0"):
        FastSlow([[1.0]], [[1.0]], [[1.0]], [[-1.0]]).solve(0, [1.0], [1.0], [0.5])


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_exponential_is_scipys(seed, scale):
    matrix = np.random.default_rng(seed).normal(size=(4, 4)) - 3 * np.eye(4)
    times = np.array([0.0, 0.3, 1.0]) * scale
    for got, time in zip(exponential(matrix, times), times):
        np.testing.assert_allclose(got, expm(matrix * time), rtol=1e-9, atol=1e-11 * np.abs(expm(matrix * time)).max())


PAIR = FastSlow(-np.eye(2), np.ones((2, 1)), np.ones((1, 2)), [[-1.0]])
START = [1.0, 2.0], [0.5]
REFUSED = {
    "A[0, 1] is nan; it must be finite": lambda: FastSlow([[0, np.nan], [0, 0]], np.ones((2, 1)), [[1, 1]], [[-1]]),
    "D[0, 0] is -inf; it must be finite": lambda: FastSlow(np.eye(2), np.ones((2, 1)), [[1, 1]], [[-np.inf]]),
    "A is complex; its entries must be real": lambda: FastSlow([[1j]], [[1]], [[1]], [[-1]]),
    "x0 has shape (3,); it must be (2,)": lambda: PAIR.solve(0.1, [1, 2, 3], [0.5], 1.0),
    "y0 has shape (2,); it must be (1,)": lambda: PAIR.bound(0.1, [1, 2], [0.5, 1], 1.0),
    "x0 has shape (1, 2); it must be (2,)": lambda: PAIR.reduced([[1, 2]], 1.0),
    "x0[1] is nan; it must be finite": lambda: PAIR.reduced([1, np.nan], 1.0),
    "times has -1; times start at 0, backwards the layer grows without bound": lambda: PAIR.solve(0.1, *START, [0, -1]),
    "times[1] is nan; it must be finite": lambda: PAIR.solve(0.1, *START, [0, np.nan]),
    "times has shape (1, 1); it must be (n,)": lambda: PAIR.reduced(START[0], [[0]]),
    "times is empty; a bound holds up to the last of at least one": lambda: PAIR.bound(0.1, *START, []),
    "epsilon is 0; it must be positive and finite (at 0 there is `reduced`)": lambda: PAIR.bound(0, *START, 1.0),
    "epsilon is inf; it must be positive and finite (at 0 there is `reduced`)": lambda: PAIR.solve(np.inf, *START, 1.0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_system_start_or_time_is_refused(message):
    with pytest.raises(ValueError) as error:
        REFUSED[message]()
    assert str(error.value) == message


def test_no_times_have_no_states():
    assert [part.shape for part in PAIR.solve(0.1, *START, [])] == [(0, 2), (0, 1), (0, 1)]
    np.testing.assert_array_equal(PAIR.solve(0.1, *START, 0).slow, [START[0]])
