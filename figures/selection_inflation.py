"""What choosing the best of k runs adds to a score: the mean maximum in units of the spread, and its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures import _readers as readers
from figures import _trained as trained
from figures.style import COLORS, COLUMN, GREY, new, save, style

DIALS: dict[str, Any] = {"counts": [1, 2, 4, 8, 16, 32, 64, 128], "draws": 4000, "seed": 0, "results": None}
ABOUT: dict[str, str] = {
    "counts": "runs chosen from",
    "draws": "repetitions of the simulation",
    "seed": "of the simulation",
    "results": "a sweep with several seeds, drawn beside; null for none",
}


def draw(
    out: Path,
    *,
    counts: list[int] | None = None,
    draws: int = 4000,
    seed: int = 0,
    results: str | Path | None = None,
) -> list[Path]:
    """Draws the exact mean, a simulation of equally good runs, the bound, and a sweep's own selections where given."""
    numbers = table(counts or DIALS["counts"], draws, seed)
    with style():
        figure = new(COLUMN, 2.6)
        axis = figure.subplots()
        axis.plot(numbers["count"], numbers.bound, ":", color=GREY, label=r"bound $\sqrt{2\,\ln k}$")
        axis.plot(numbers["count"], numbers.exact, "-", color=COLORS[0], label="exact mean")
        axis.errorbar(
            numbers["count"], numbers.simulated, yerr=2 * numbers.error, fmt="o", color=COLORS[1], label="simulated"
        )
        if results is not None:
            found = trained.selections(results)
            axis.plot(found["count"], found.simulated, "D", color=COLORS[2], label="trained models")
            numbers = pd.concat([numbers, found], ignore_index=True)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("runs to choose from, k")
        axis.set_ylabel("best of k (standard deviations)")
        axis.legend()
        return save(figure, out, "selection_inflation", numbers)


def table(counts: list[int], draws: int, seed: int) -> pd.DataFrame:
    """One row per number of runs: exact and simulated mean maximum of standard normals, its error, the bound."""
    generator = np.random.default_rng(seed)
    rows = []
    for count in counts:
        best = generator.standard_normal((draws, count)).max(1)
        error = best.std(ddof=1) / np.sqrt(draws)
        rows.append((count, readers.expected_maximum(count), best.mean(), error, np.sqrt(2 * np.log(count))))
    return pd.DataFrame(rows, columns=["count", "exact", "simulated", "error", "bound"])
