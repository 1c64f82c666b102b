"""What streams are drawn from, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from filters import jax_backend, reference, torch_backend
from filters.hmm import ModelError, TokenError, TwoTimescaleHMM, sticky_transition
from filters.sampling import sample


def two_coins():
    emission = np.array([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2])
    return TwoTimescaleHMM(sticky_transition(2, 0.1), emission, np.array([0.5, 0.5]))


REFUSED = {
    "regimes has shape (1, 1); it must be (sequences, length), here (2, 3)": (2, 3, 0, np.zeros((1, 1), int)),
    "regimes has shape (3, 2); it must be (sequences, length), here (2, 3)": (2, 3, 0, np.zeros((3, 2), int)),
    "regimes must be of an integer type, not float64": (2, 3, 0, np.zeros((2, 3))),
    "regimes[1, 2] is 2; it must lie in 0..1": (2, 3, 0, [[0, 1, 0], [1, 1, 2]]),
    "regimes[0, 0] is -1; it must lie in 0..1": (1, 2, 0, [[-1, 0]]),
    "sequences is -1; it must be an integer of at least 0, the nearest being 0": (-1, 3, 0),
    "sequences is 2.0; it must be an integer of at least 0": (2.0, 3, 0),
    "length is 0; it must be an integer of at least 1, the nearest being 1": (2, 0, 0),
    "seed is None; it must be an integer of at least 0": (2, 3, None),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_drawn_is_refused(message):
    sequences, length, seed, *regimes = REFUSED[message]
    with pytest.raises(ValueError) as error:
        sample(two_coins(), sequences, length, seed, regimes=regimes[0] if regimes else None)
    assert str(error.value) == message


def test_prescribed_regimes_are_followed():
    regimes = np.repeat([[0, 1], [1, 0]], 500, axis=1)
    tokens, followed = sample(two_coins(), 2, 1000, 0, regimes=regimes.tolist())
    np.testing.assert_array_equal(followed, regimes)
    assert (tokens == regimes).mean() == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("stationary", [True, False])
def test_no_sequences_may_be_drawn(stationary):
    assert [part.shape for part in sample(two_coins(), 0, 3, 0, stationary=stationary)] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("module", [reference, jax_backend])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "tokens must have shape (..., T) with T >= 1, not (0,)"),
        ([[], []], "tokens must have shape (..., T) with T >= 1, not (2, 0)"),
        ([[0, 1], [1]], "tokens must have shape (..., T), all sequences of one length, and these differ"),
        ([0.0, 1.0], "tokens must be of an integer type, not float64"),
    ],
)
def test_tokens_of_no_shape_are_refused_for_it(module, tokens, message):
    with pytest.raises(TokenError) as error:
        module.forward(two_coins(), tokens)
    assert str(error.value) == message
    if tokens != [[0, 1], [1]]:
        with pytest.raises(TokenError) as error:
            torch_backend.forward(two_coins(), torch.tensor(tokens, dtype=torch.float64))
        assert str(error.value) == message


@pytest.mark.parametrize("complex_table", [[0.5 + 0j, 0.5], np.array([0.5 + 0.5j, 0.5])])
def test_complex_tables_are_refused_as_such(complex_table):
    with pytest.raises(ModelError, match=r"^initial is complex; its entries must be real$"):
        TwoTimescaleHMM(sticky_transition(2, 0.1), two_coins().emission, complex_table)
