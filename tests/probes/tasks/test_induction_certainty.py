"""Closed forms of `induction` where a single place is out of sight, so that a guess is certain."""

import math

import pytest

from probes.tasks.induction import Induction


@pytest.mark.parametrize("vocab_size", [2, 4, 7, 32, 64, 129])
def test_closed_forms_are_finite_and_improve_with_the_window(vocab_size):
    expected = Induction(vocab_size=vocab_size, length=64, windows=[1, 4, 16]).expectations()
    losses = [expected[f"window_{width}"].log_loss for width in (1, 4, 16)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses == sorted(losses, reverse=True)
