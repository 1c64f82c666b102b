"""How wide a window must be before it needs no carried state, by how well the regimes can be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures._filtering import ABOUT_STREAMS, STREAMS, excesses, positive, whole
from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style
from filters.diagnostics import measured_identification_time
from filters.hmm import book_instance

DIALS: dict[str, Any] = {
    "switch_rate": 0.005,
    "overlaps": [1.0, 0.4, 0.2],
    "widths": [2, 4, 8, 16, 32, 64, 128, 256],
    **STREAMS,
}
ABOUT: dict[str, str] = {
    "switch_rate": "chance that the regime changes at a token",
    "overlaps": "how far the regimes differ: 0 not at all, 1 in every token",
    "widths": "tokens of the window",
    **ABOUT_STREAMS,
}


def draw(
    out: Path,
    *,
    switch_rate: float = 0.005,
    overlaps: list[float] | None = None,
    widths: list[int] | None = None,
    sequences: int = 64,
    length: int = 1024,
    seed: int = 0,
) -> list[Path]:
    """Draws the excess of `window(w)` against w for each overlap, and marks each measured identification time.

    Lines are population values with two standard errors, crosses the book's single stream of 8192 tokens.
    Reference: State-space book, section 14.6 (window crossover) and exercise 14.2.
    """
    positive("switch_rate", switch_rate, 0.75)
    chosen = positive("overlaps", DIALS["overlaps"] if overlaps is None else overlaps, 1.0)
    grid = whole("widths", DIALS["widths"] if widths is None else widths)
    predictors = {str(width): ("window", width) for width in grid}
    tables = []
    for overlap in chosen:
        table = excesses(overlap, switch_rate, predictors, sequences=sequences, length=length, seed=seed)
        hmm = book_instance(overlap=overlap, switch_rate=switch_rate, length=1)[0]
        table.insert(3, "width", grid)
        table["identification_time"] = measured_identification_time(hmm, seed=seed).mean
        tables.append(table)
    numbers = pd.concat(tables, ignore_index=True)
    with style():
        figure = new(0.72 * PAGE, 3.0)
        axis = figure.subplots()
        for table, overlap, color, marker in zip(tables, chosen, COLORS, MARKERS):
            errors = 2 * table.standard_error
            axis.errorbar(table.width, table.excess, errors, color=color, marker=marker, label=f"η = {overlap:g}")
            axis.plot(table.width, table.book_draw, "x", color=color, alpha=0.7)
            time = table.identification_time.iloc[0]
            axis.plot(
                [time], [np.interp(np.log2(time), np.log2(table.width), table.excess)], "|", color=color, ms=16, mew=2
            )
        axis.plot([], [], "|", color=GREY, ms=9, mew=2, label="identification time")
        axis.plot([], [], "x", color=GREY, label="the book's draw")
        axis.set_xscale("log", base=2)
        axis.set_xticks(grid, [str(width) for width in grid])
        axis.set(xlabel="window width (tokens)", ylabel="excess over Bayes (nats/token)")
        axis.set_title(f"switching rate ε = {switch_rate:g}", loc="left")
        axis.axhline(0, color=GREY, lw=0.6)
        axis.legend()
        return save(figure, out, "window_crossover", numbers)
