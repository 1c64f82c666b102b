"""The gates of published hybrids in two axes: how finely a gate decides, and what it responds to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {}
ABOUT: dict[str, str] = {}

GRANULARITIES = ("scalar", "vector", "block")
TRIGGERS = ("position", "input", "output", "loss")
LINEUP = {
    "Griffin": ("vector", "input"),
    "Samba": ("vector", "input"),
    "Jamba": ("block", "position"),
    "Bamba": ("block", "position"),
    "Nemotron-H": ("scalar", "position"),
    "SambaY": ("vector", "input"),
    "Hunyuan TurboS": ("block", "position"),
    "Kimi Linear": ("vector", "input"),
    "Gated DeltaNet": ("scalar", "input"),
    "Hymba": ("block", "input"),
    "AMOR": ("scalar", "output"),
}
"""Granularity and trigger of each model's gate. Reference: State-space book, section 14.4."""


def draw(out: Path) -> list[Path]:
    """Draws the grid of granularity by trigger with each model in its cell; empty cells are open designs."""
    numbers = pd.DataFrame(
        [[name, granularity, trigger] for name, (granularity, trigger) in LINEUP.items()],
        columns=["model", "granularity", "trigger"],
    )
    with style():
        figure = new(PAGE, 2.9)
        axis = figure.subplots()
        for column, trigger in enumerate(TRIGGERS):
            for row, granularity in enumerate(GRANULARITIES):
                cell = numbers[(numbers.granularity == granularity) & (numbers.trigger == trigger)]
                filled = len(cell) > 0
                axis.add_patch(
                    Rectangle(
                        (column - 0.47, row - 0.45),
                        0.94,
                        0.9,
                        facecolor=COLORS[0] if filled else "none",
                        alpha=0.16 if filled else 1,
                        edgecolor="none" if filled else GREY,
                        linestyle=":",
                        lw=0.8,
                    )
                )
                text = "\n".join(cell.model) if filled else "open"
                axis.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if filled else GREY)
        axis.set_xticks(range(len(TRIGGERS)), TRIGGERS)
        axis.set_yticks(range(len(GRANULARITIES)), GRANULARITIES)
        axis.set(xlim=(-0.5, len(TRIGGERS) - 0.5), ylim=(len(GRANULARITIES) - 0.5, -0.5))
        axis.set(xlabel="what the gate responds to", ylabel="what one gate value decides")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        return save(figure, out, "design_space", numbers)
