"""The style of all figures: fit for print at one or two columns, colour-blind safe, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from cycler import cycler
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches: one text column, the whole page."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers; the yellow that vanishes on white is left out."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6b6b6b"

_RC: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 9,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLORS),
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastslow",
    "savefig.dpi": 300,
    "figure.constrained_layout.use": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Within this block figures are drawn in the project's style; the caller's settings are as before afterwards."""
    with matplotlib.rc_context(_RC):
        yield


def new(width: float = PAGE, height: float = 3.0) -> Figure:
    """An empty figure of `width` x `height` inches that needs no display."""
    return Figure(figsize=(width, height))


def save(figure: Figure, out: Path, name: str, numbers: pd.DataFrame) -> list[Path]:
    """Writes `name.png`, `name.svg` and the numbers drawn as `name.csv` into `out`; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{ending}" for ending in ("png", "svg", "csv")]
    figure.savefig(paths[0])
    figure.savefig(paths[1], metadata={"Date": None})
    numbers.to_csv(paths[2], index=False)
    return paths
