"""What S bits cannot exceed: against every possible memory where they can be listed, and in shape."""

from __future__ import annotations

import itertools
import math

import pytest
import recall_checks as checks
from hypothesis import given
from hypothesis import strategies as st

from figures import _readers as readers
from probes.tasks import create
from probes.tasks.bounds import accuracy_bound, exact_bound, log_loss_bound


def best_memory(states, length, vocabulary):
    """Largest mean accuracy and probability of an exact string over all answers of `states` state values.

    A state value answers one string, token by token, whatever came before; the string read chooses the best of them.
    """
    strings = list(itertools.product(range(vocabulary), repeat=length))
    best = exact = 0.0
    for answers in itertools.combinations(strings, states):
        right = sum(max(sum(a == b for a, b in zip(word, one)) for one in answers) for word in strings)
        best = max(best, right / (len(strings) * length))
        exact = max(exact, sum(word in answers for word in strings) / len(strings))
    return best, exact


@pytest.mark.parametrize(("bits", "length", "vocabulary"), [(0, 3, 2), (1, 3, 2), (1, 2, 3), (2, 3, 2), (2, 2, 3)])
def test_no_memory_passes_the_bounds(bits, length, vocabulary):
    best, exact = best_memory(2**bits, length, vocabulary)
    log_count = length * math.log(vocabulary)
    assert best <= accuracy_bound(bits, length, log_count, vocabulary) + 1e-12
    assert exact == pytest.approx(exact_bound(bits, log_count))


def test_one_bit_of_a_perfect_code_is_tight():
    # three bits kept as one: the two words 000 and 111 lie within one error of every word
    assert accuracy_bound(1, 3, 3 * math.log(2), 2) == pytest.approx(0.75)
    assert best_memory(2, 3, 2)[0] == 0.75
    # without a bit, one answer is right half the time
    assert accuracy_bound(0, 8, 8 * math.log(2), 2) == pytest.approx(0.5)


@given(st.integers(0, 200), st.integers(1, 60), st.integers(2, 50))
def test_bounds_in_shape(bits, length, vocabulary):
    log_count = length * math.log(vocabulary)
    loss, accuracy = log_loss_bound(bits, length, log_count), accuracy_bound(bits, length, log_count, vocabulary)
    assert loss == pytest.approx(max(0.0, math.log(vocabulary) - bits * math.log(2) / length))
    assert 1 / vocabulary - 1e-9 <= accuracy <= 1
    assert accuracy <= accuracy_bound(bits + 1, length, log_count, vocabulary) + 1e-12
    assert accuracy == pytest.approx(readers.copying_accuracy_bound(bits, length, vocabulary), abs=1e-9)
    if loss == 0:
        assert accuracy == pytest.approx(1)


def test_a_bound_is_a_bound_and_says_whether_it_binds():
    task = create("copy", {"string": 6, "vocab_size": 6, "state_bits": [4, 400]})
    references = task.references()
    assert references["state_4_bits"].is_bound
    assert references["state_4_bits"].log_predictive(checks.draw(task, 2)) is None
    bounds = task.dials()["bounds"]
    assert bounds["state_4_bits"]["binds"]
    assert not bounds["state_400_bits"]["binds"]
    assert bounds["state_400_bits"]["accuracy"] == 1
    batch = checks.draw(task, 3)
    expected = math.log(4) - 4 * math.log(2) / 6
    assert references["state_4_bits"].log_prob(batch)[batch.scored].tolist() == pytest.approx([-expected] * 18)


@pytest.mark.parametrize("kind", ["mqar", "copy", "selective_copy", "compression"])
def test_the_slot_memory_stays_above_the_bound_of_its_bits(kind):
    task = create(kind, {"slots": [2]})
    bits = math.ceil(2 * task.slot_bits())
    bound = create(kind, {"state_bits": [bits]}).references()[f"state_{bits}_bits"]
    assert task.expectations()["slots_2"].log_loss >= bound.log_loss
    assert task.expectations()["slots_2"].accuracy <= bound.accuracy
