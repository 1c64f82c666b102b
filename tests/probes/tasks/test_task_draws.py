"""Draws without loops, against their definitions; successive sampling against all orders of drawing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probes.tasks import draws
from probes.tasks.occurrence import first_occurrence, previous_occurrence
from probes.tasks.recall import octave
from probes.tasks.selective_copy import at_least
from probes.tasks.spread import Spread, around, certain, choose, level, two_ranges
from probes.tasks.successive import inclusion, next_inclusion


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 3000), st.data())
def test_distinct_draws_are_distinct_and_in_range(n, data):
    k = data.draw(st.integers(1, min(n, 40)))
    drawn = draws.distinct(generator(n), n, k, 20)
    assert drawn.shape == (20, k)
    assert drawn.min() >= 0
    assert drawn.max() < n
    ordered = drawn.sort(1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()


@pytest.mark.parametrize(("n", "k"), [(5, 3), (7, 2), (4, 4), (3, 3)])
def test_every_order_is_as_likely(n, k):
    count = 30_000
    drawn = draws.distinct(generator(), n, k, count)
    code = (drawn * n ** torch.arange(k)).sum(1)
    _, counts = torch.unique(code, return_counts=True)
    orders = math.perm(n, k)
    assert len(counts) == orders
    mean = count / orders
    chi_square = ((counts - mean) ** 2 / mean).sum()
    assert abs(chi_square - (orders - 1)) < 6 * math.sqrt(2 * (orders - 1))


def test_distinct_is_a_fisher_yates_shuffle():
    n, k = 11, 6
    place = (draws.uniforms(generator(3), 50, k) * (n - torch.arange(k))).long() + torch.arange(k)
    drawn = draws.distinct(generator(3), n, k, 50)
    for row, places in zip(drawn.tolist(), place.tolist()):
        items = list(range(n))
        for step, other in enumerate(places):
            items[step], items[other] = items[other], items[step]
        assert row == items[:k]


def test_weighted_draws_follow_the_weights():
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    drawn = draws.weighted_distinct(generator(), weights.log(), 2, 40_000)
    for first, second in itertools.permutations(range(3), 2):
        expected = weights[first] * weights[second] / (1 - weights[first])
        found = ((drawn[:, 0] == first) & (drawn[:, 1] == second)).double().mean()
        assert abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / 40_000)


def test_draws_are_reproducible_and_do_not_share_state():
    for draw in (
        lambda g: draws.integers(g, 3, 9, 4, 5),
        lambda g: draws.distinct(g, 50, 7, 4),
        lambda g: draws.shuffled(g, 6, 4),
    ):
        torch.manual_seed(0)
        first = draw(generator(1))
        torch.manual_seed(1)
        assert torch.equal(first, draw(generator(1)))
        assert not torch.equal(first, draw(generator(2)))


def orders(weights, k):
    """Each set of `k` with its probability, by every order of drawing."""
    sets: dict[frozenset[int], float] = {}
    for order in itertools.permutations(range(len(weights)), k):
        chance, left = 1.0, sum(weights)
        for item in order:
            chance *= weights[item] / left
            left -= weights[item]
        key = frozenset(order)
        sets[key] = sets.get(key, 0.0) + chance
    return sets


@pytest.mark.parametrize(
    ("n", "k", "power"), [(6, 3, 0.01), (5, 1, 0.01), (6, 5, 0.3), (6, 2, 2.5), (5, 5, 0.1), (6, 3, 1)]
)
def test_successive_sampling_by_quadrature(n, k, power):
    log_weights = (power - 1) * torch.arange(1, n + 1).double().log()
    sets = orders(log_weights.exp().tolist(), k)
    marginal = [sum(chance for chosen, chance in sets.items() if item in chosen) for item in range(n)]
    np.testing.assert_allclose(inclusion(log_weights, k), marginal, rtol=1e-12)
    taken = torch.tensor([[item in chosen for item in range(n)] for chosen in sets])
    found = next_inclusion(log_weights, k, taken)
    for row, chosen in enumerate(sets):
        for item in range(n):
            alike = [other for other in sets if all((i in other) == (i in chosen) for i in range(item))]
            expected = sum(sets[other] for other in alike if item in other) / sum(sets[other] for other in alike)
            assert found[row, item] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_inclusion_of_many_items_adds_up():
    found = inclusion(-0.99 * torch.arange(1, 193).double().log(), 64)
    assert float(found.sum()) == pytest.approx(64, rel=1e-12)
    assert (found[:-1] > found[1:]).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_occurrences(codes):
    row = torch.tensor([codes])
    first, previous = first_occurrence(row)[0].tolist(), previous_occurrence(row)[0].tolist()
    for place, code in enumerate(codes):
        assert first[place] == codes.index(code)
        before = [earlier for earlier in range(place) if codes[earlier] == code]
        assert previous[place] == (before[-1] if before else -1)


def test_octaves():
    assert octave(torch.tensor([1, 2, 3, 4, 7, 8, 1023, 1024])).tolist() == [0, 1, 1, 2, 2, 3, 9, 10]


@pytest.mark.parametrize(
    ("count", "population", "marked", "drawn"), [(1, 6, 2, 3), (2, 6, 2, 2), (0, 4, 1, 0), (3, 5, 2, 4)]
)
def test_hypergeometric_tails(count, population, marked, drawn):
    chosen = list(itertools.combinations(range(population), drawn))
    expected = sum(sum(item < marked for item in one) >= count for one in chosen) / len(chosen)
    assert at_least(count, population, marked, drawn) == pytest.approx(expected)


def test_spreads():
    device = torch.device("cpu")
    one = certain(torch.tensor([2, 4]))
    even = level(2, 1, 5, device)
    listed = around(torch.tensor([0.1, 0.2]).double().log(), 0, 4, torch.tensor([[3], [-1]]), math.log(0.7))
    split = two_ranges(
        torch.tensor([0.25, 1.0]).double().log(), (0, 2), torch.tensor([0.75, 0.0]).double().log(), (3, 6)
    )
    tables = {
        "certain": (one, [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]]),
        "level": (even, [[0, 0.25, 0.25, 0.25, 0.25, 0]] * 2),
        "listed": (listed, [[0.1, 0.1, 0.1, 0.7, 0, 0], [0.2, 0.2, 0.2, 0.2, 0, 0]]),
        "split": (split, [[0.125, 0.125, 0, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0, 0, 0]]),
        "chosen": (choose(torch.tensor([True, False]), one, split), [[0, 0, 1, 0, 0, 0], [0.5, 0.5, 0, 0, 0, 0]]),
    }
    for name, (spread, expected) in tables.items():
        assert isinstance(spread, Spread)
        dense = spread.dense(6)
        np.testing.assert_allclose(dense.exp(), expected, atol=1e-15, err_msg=name)
        for token in range(6):
            found = spread.log_prob(torch.full((2,), token))
            np.testing.assert_array_equal(found, dense[:, token], err_msg=name)
