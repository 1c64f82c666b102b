"""What the chapter-14 figures measure: excess over Bayes of exact predictors on the book's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from filters import jax_backend
from filters.diagnostics import Excess, excess_over
from filters.hmm import TwoTimescaleHMM, book_instance
from filters.sampling import sample

BURN_IN = 128
"""Predictions left out at the start of every stream, as in the book."""
STREAMS: dict[str, Any] = {"sequences": 64, "length": 1024, "seed": 0}
"""Dials of the Monte-Carlo streams."""
ABOUT_STREAMS = {
    "sequences": "streams of the Monte Carlo",
    "length": "tokens of each, above the burn-in of 128",
    "seed": "of the streams",
}


class Streams:
    """Stationary streams of one model with the exact predictor's beliefs, against which others are measured."""

    def __init__(self, hmm: TwoTimescaleHMM, sequences: int, length: int, seed: int) -> None:
        if length <= BURN_IN + 1:
            raise ValueError(f"length: {length} tokens leave nothing after {BURN_IN}; nearest: {BURN_IN + 2}")
        if sequences < 2:
            raise ValueError(f"sequences: {sequences} give no standard error; nearest: 2")
        self.hmm = hmm
        self.tokens, _ = sample(hmm, sequences, length, seed, stationary=True)
        self.bayes = jax_backend.forward(hmm, self.tokens)

    def excess(self, predictor: str, *arguments: Any) -> Excess:
        """Nats per token over Bayes of a predictor of `filters.jax_backend`."""
        other = getattr(jax_backend, predictor)(self.hmm, self.tokens, *arguments)
        return excess_over(self.hmm, self.tokens, self.bayes, other, BURN_IN)


def excesses(
    overlap: float,
    switch_rate: float,
    predictors: Mapping[str, tuple[Any, ...]],
    *,
    sequences: int,
    length: int,
    seed: int,
) -> pd.DataFrame:
    """One row a predictor `(name, *arguments)`: excess in nats per token over Bayes, on the book's tables.

    `excess` with `standard_error` is the mean KL divergence over stationary streams, the population value with its
    Monte-Carlo error over sequences; `book_draw` is the excess on the book's one stream of 8192 tokens.
    """
    hmm, tokens, _ = book_instance(overlap=overlap, switch_rate=switch_rate)
    streams = Streams(hmm, sequences, length, seed)
    optimal = jax_backend.forward(hmm, tokens).log_prob[BURN_IN:].mean()
    rows = []
    for label, (name, *arguments) in predictors.items():
        drawn = getattr(jax_backend, name)(hmm, tokens, *arguments).log_prob[BURN_IN:].mean()
        found = streams.excess(name, *arguments).divergence
        rows.append([overlap, switch_rate, label, found.mean, found.standard_error, float(optimal - drawn)])
    columns = ["overlap", "switch_rate", "predictor", "excess", "standard_error", "book_draw"]
    return pd.DataFrame(rows, columns=columns)


def whole(name: str, values: Any) -> list[int]:
    """`values` as a list of whole numbers of 1 or more. ValueError names the dial and the value."""
    found = positive(name, values)
    for value in found:
        if value != int(value):
            raise ValueError(f"{name}: {value:g} is no whole number; nearest: {max(1, round(value))}")
    return [int(value) for value in found]


def positive(name: str, values: Any, most: float | None = None) -> list[float]:
    """`values` as a list of numbers above 0 and at most `most`. ValueError names the dial and the value."""
    found = [float(value) for value in np.atleast_1d(values)]
    for value in found:
        if not value > 0 or (most is not None and value > most):
            raise ValueError(
                f"{name}: {value:g} is not in (0, {most or np.inf:g}]; nearest: {most if value > 0 else 1e-3}"
            )
    if not found:
        raise ValueError(f"{name}: no value given; nearest: one")
    return found
