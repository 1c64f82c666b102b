"""The running average's limit: nearly reducible, reducible and periodic chains, and entries near the end of float64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import rows, tables

from filters.stationary import closed_classes, stationary_law
from filters.wide import Wide

TINY = st.sampled_from([0.0, 5e-324, 1e-300, 1e-200, 1e-20, 0.3, 1.0])


def exactly(transition, start):
    """The same limit in rational arithmetic: censor the transient states, then solve each closed class."""
    classes = closed_classes(transition)
    law = [Fraction(0)] * len(transition)
    chain = [[Fraction(float(p)) for p in row] for row in transition]
    mass = [Fraction(float(m)) for m in start]
    alive = list(range(len(chain)))
    for state in range(len(chain)):
        if any(state in members for members in classes):
            continue
        alive.remove(state)
        out = sum(chain[state][j] for j in alive)
        for j in alive:
            mass[j] += mass[state] * chain[state][j] / out
            for i in alive:
                chain[i][j] += chain[i][state] * chain[state][j] / out
    for members in classes:
        weights = _minors([[chain[i][j] for j in members] for i in members])
        total, weight = sum(weights), sum(mass[i] for i in members)
        for i, w in zip(members, weights):
            law[i] = weight * w / total
    return np.array([float(part / sum(law)) for part in law])


def _minors(chain):
    """The principal minors of `I - P`, with its diagonal as the sum of the row's others: proportional to the law."""
    size = len(chain)
    generator = [[-chain[i][j] if i != j else sum(chain[i]) - chain[i][i] for j in range(size)] for i in range(size)]
    return [
        _determinant([[generator[i][j] for j in range(size) if j != k] for i in range(size) if i != k])
        for k in range(size)
    ]


def _determinant(matrix):
    if not matrix:
        return Fraction(1)
    return sum(
        (-1) ** j * matrix[0][j] * _determinant([row[:j] + row[j + 1 :] for row in matrix[1:]])
        for j in range(len(matrix))
    )


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(tables((n, n), TINY), rows(n, TINY))))
def test_every_entry_has_its_relative_accuracy(case):
    transition, start = case
    np.testing.assert_allclose(stationary_law(transition, start), exactly(transition, start), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    ("transition", "start", "expected"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [1.0, 0.0], [0.5, 0.5]),
        (np.eye(3), [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([[0.5, 0.25, 0.25], [0, 1, 0], [0, 0, 1]], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([[1 - 1e-20, 1e-20], [3e-20, 1 - 3e-20]], [1.0, 0.0], [0.75, 0.25]),
        ([[1.0, 1e-320], [1.0, 0.0]], [0.5, 0.5], [1.0, 1e-320]),
        ([[1.0]], [1.0], [1.0]),
    ],
)
def test_special_chains(transition, start, expected):
    law = stationary_law(np.array(transition), np.array(start))
    np.testing.assert_allclose(law, expected, rtol=1e-12, atol=1e-315)


def test_a_long_ladder_underflows_nowhere():
    """Each state is 1e-30 as likely as the one below: the top of 20 is far below float64."""
    size, up = 20, 1e-30
    transition = np.diag(np.full(size - 1, up), 1) + np.diag(np.full(size - 1, 1.0 - up), -1)
    transition[0, 0], transition[-1, -1] = 1.0 - up, up
    law = stationary_law(transition)
    np.testing.assert_allclose(law[:10], 1e-30 ** np.arange(10), rtol=1e-12)
    np.testing.assert_array_equal(law[11:], 0.0)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=6), st.lists(st.floats(0, 1e300), min_size=1, max_size=6))
def test_wide_numbers_compute_like_rationals(first, second):
    size = min(len(first), len(second))
    a, b = np.array(first[:size]), np.array(second[:size])
    for wide, exact in (
        (Wide.of(a) * Wide.of(b), [Fraction(x) * Fraction(y) for x, y in zip(a, b)]),
        (Wide.of(a) + Wide.of(b), [Fraction(x) + Fraction(y) for x, y in zip(a, b)]),
    ):
        for mantissa, exponent, value in zip(wide.mantissa, wide.exponent, exact):
            got = Fraction(float(mantissa)) * Fraction(2) ** int(exponent) if mantissa else Fraction(0)
            assert abs(got - value) <= value * Fraction(1, 2**52)
