"""The V-shaped cost of a decay at the wrong rate: nothing at the matched rate, more the further away on either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures._filtering import ABOUT_STREAMS, STREAMS, Streams, positive
from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style
from filters.hmm import book_instance, matched_rate

DIALS: dict[str, Any] = {
    "overlap": 0.4,
    "switch_rates": [0.005, 0.02, 0.08],
    "factors": [1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32, 64],
    **STREAMS,
}
ABOUT: dict[str, str] = {
    "overlap": "how far the regimes differ: 0 not at all, 1 in every token",
    "switch_rates": "chances that the regime changes at a token",
    "factors": "the decay's switching rate over the true one; those above the largest rate, 3/4, are left out",
    **ABOUT_STREAMS,
}


def draw(
    out: Path,
    *,
    overlap: float = 0.4,
    switch_rates: list[float] | None = None,
    factors: list[float] | None = None,
    sequences: int = 64,
    length: int = 1024,
    seed: int = 0,
) -> list[Path]:
    """Draws the excess of `fixed_decay` against the rate it is matched to, one line a true rate, two standard errors.

    Reference: State-space book, Theorem 14.4 and section 14.6: the matched rate is `eps K / (K - 1)`.
    """
    positive("overlap", overlap, 1.0)
    rates = positive("switch_rates", DIALS["switch_rates"] if switch_rates is None else switch_rates, 0.75)
    grid = positive("factors", DIALS["factors"] if factors is None else factors)
    rows = []
    for rate in rates:
        streams = Streams(book_instance(overlap=overlap, switch_rate=rate, length=1)[0], sequences, length, seed)
        for assumed in [rate * factor for factor in grid if rate * factor <= 0.75]:
            found = streams.excess("fixed_decay", matched_rate(assumed, 4)).divergence
            rows.append([overlap, rate, assumed, matched_rate(assumed, 4), found.mean, found.standard_error])
    columns = ["overlap", "switch_rate", "assumed_switch_rate", "forgetting_rate", "excess", "standard_error"]
    numbers = pd.DataFrame(rows, columns=columns)
    with style():
        figure = new(0.72 * PAGE, 3.0)
        axis = figure.subplots()
        for rate, color, marker in zip(rates, COLORS, MARKERS):
            part = numbers[numbers.switch_rate == rate]
            axis.errorbar(
                part.assumed_switch_rate,
                part.excess,
                2 * part.standard_error,
                color=color,
                marker=marker,
                label=f"true ε = {rate:g}",
            )
            axis.axvline(rate, color=color, lw=0.8, ls=":")
        axis.set_xscale("log")
        axis.set(xlabel="switching rate that the decay is matched to", ylabel="excess over Bayes (nats/token)")
        axis.set_title(f"overlap η = {overlap:g}; dotted: the true rate, where the excess is 0", loc="left")
        axis.axhline(0, color=GREY, lw=0.6)
        axis.set_ylim(bottom=-0.03 * np.nanmax(numbers.excess))
        axis.legend(loc="upper left", bbox_to_anchor=(0.02, 1.0))
        return save(figure, out, "decay_mistiming", numbers)
