"""The composite of a window and a decayed state as a map: excess over Bayes by width and forgetting rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from figures._filtering import ABOUT_STREAMS, STREAMS, Streams, positive, whole
from figures.style import COLORS, PAGE, new, save, style
from filters.hmm import book_instance, matched_rate

DIALS: dict[str, Any] = {
    "overlap": 0.4,
    "switch_rate": 0.02,
    "widths": [1, 2, 4, 8, 16, 32],
    "rates": [0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.7, 1.0],
    **{**STREAMS, "length": 512},
}
ABOUT: dict[str, str] = {
    "overlap": "how far the regimes differ: 0 not at all, 1 in every token",
    "switch_rate": "chance that the regime changes at a token",
    "widths": "tokens of the window",
    "rates": "forgetting rates, 1 forgets everything at every token; the matched one is added",
    **ABOUT_STREAMS,
}

FLOOR = 1e-6
"""The least excess that the colours tell from zero, nats."""


def draw(
    out: Path,
    *,
    overlap: float = 0.4,
    switch_rate: float = 0.02,
    widths: list[int] | None = None,
    rates: list[float] | None = None,
    sequences: int = 64,
    length: int = 512,
    seed: int = 0,
) -> list[Path]:
    """Draws the excess of `composite(width, rate)`; zero along the matched rate, falling with the width elsewhere.

    Reference: State-space book, section 14.6, which defers this measurement.
    """
    positive("overlap", overlap, 1.0)
    positive("switch_rate", switch_rate, 0.75)
    columns = whole("widths", DIALS["widths"] if widths is None else widths)
    matched = matched_rate(switch_rate, 4)
    grid = sorted({*positive("rates", DIALS["rates"] if rates is None else rates, 1.0), matched})
    streams = Streams(book_instance(overlap=overlap, switch_rate=switch_rate, length=1)[0], sequences, length, seed)
    rows = []
    for rate in grid:
        for width in columns:
            found = streams.excess("composite", width, rate).divergence
            rows.append([overlap, switch_rate, width, rate, rate == matched, found.mean, found.standard_error])
    names = ["overlap", "switch_rate", "width", "rate", "matched", "excess", "standard_error"]
    numbers = pd.DataFrame(rows, columns=names)
    table = numbers.excess.to_numpy().reshape(len(grid), len(columns))
    with style():
        figure = new(0.72 * PAGE, 3.4)
        axis = figure.subplots()
        shown = np.maximum(table, FLOOR)
        image = axis.imshow(shown, norm=LogNorm(FLOOR, shown.max()), cmap="cividis_r", origin="lower", aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            text = f"{value:.3f}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")
            if value < FLOOR:
                text = "0" if grid[row] == matched else "<1e-6"
            dark = np.log(shown[row, column] / FLOOR) > 0.55 * np.log(shown.max() / FLOOR)
            axis.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
        axis.axhspan(grid.index(matched) - 0.5, grid.index(matched) + 0.5, fill=False, ec=COLORS[1], lw=1.6)
        labels = [f"{rate:.3g}" + (" = λ*" if rate == matched else "") for rate in grid]
        axis.set_yticks(range(len(grid)), labels)
        axis.set_xticks(range(len(columns)), [str(width) for width in columns])
        axis.set(xlabel="window width (tokens)", ylabel="forgetting rate λ of the carried state")
        axis.set_title(f"overlap η = {overlap:g}, switching rate ε = {switch_rate:g}", loc="left")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        bar = figure.colorbar(image, ax=axis, pad=0.02)
        bar.set_label("excess over Bayes (nats/token)")
        return save(figure, out, "composite_map", numbers)
