"""Decoding memory against the share of attention blocks: what a window and a fixed state cost beside a full cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {"width": 1024, "window": 1024, "context": 65536}
ABOUT: dict[str, str] = {
    "width": "of the model",
    "window": "tokens that an attention block keeps",
    "context": "tokens of the full cache",
}

LINEUP = {
    "Griffin": (1, 3),
    "Samba": (1, 2),
    "Jamba": (1, 8),
    "Bamba": (3, 32),
    "Nemotron-H": (10, 118),
    "Kimi Linear": (1, 4),
}
"""Attention fractions of the published hybrids. Reference: State-space book, section 14.5; SambaY and Hunyuan TurboS
have none that fits this count (a single full-attention layer, macro-blocks)."""

LABELS = {
    "Griffin": (10, -10),
    "Samba": (-6, 11),
    "Jamba": (-6, 11),
    "Bamba": (14, -9),
    "Nemotron-H": (14, -22),
    "Kimi Linear": (-6, 11),
}
"""Where each label stands beside its point, in points."""


def draw(out: Path, *, width: int = 1024, window: int = 1024, context: int = 65536) -> list[Path]:
    """Draws `state_per_block` over the attention fraction on a log scale, the line-up on it, full attention dashed.

    Reference: State-space book, Proposition 14.2. ValueError for a dial below 1.
    """
    for name, value in {"width": width, "window": window, "context": context}.items():
        if value < 1:
            raise ValueError(f"{name}: {value} is below 1; nearest: 1")
    fractions = np.linspace(0, 1, 201)
    full = 2 * context * width
    curve = pd.DataFrame({"model": "", "fraction": fractions, "floats": state_per_block(fractions, width, window)})
    points = pd.DataFrame(
        [[name, part / of, state_per_block(part / of, width, window)] for name, (part, of) in LINEUP.items()],
        columns=["model", "fraction", "floats"],
    )
    whole = pd.DataFrame([["full attention", 1.0, float(full)]], columns=["model", "fraction", "floats"])
    numbers = pd.concat([curve, points, whole], ignore_index=True)
    with style():
        figure = new(0.72 * PAGE, 3.0)
        axis = figure.subplots()
        axis.plot(curve.fraction, curve.floats, color=COLORS[0])
        axis.plot(points.fraction, points.floats, "o", color=COLORS[1], zorder=3)
        for name, fraction in LINEUP.items():
            axis.annotate(
                f"{name} ({fraction[0]}/{fraction[1]})",
                (fraction[0] / fraction[1], state_per_block(fraction[0] / fraction[1], width, window)),
                xytext=LABELS[name],
                textcoords="offset points",
                ha="left" if LABELS[name][0] > 0 else "right",
                va="center",
                fontsize=7,
                arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6, "relpos": (float(LABELS[name][0] < 0), 0.5)},
            )
        axis.axhline(full, color=GREY, ls="--")
        axis.text(1, full / 1.15, f"full attention at {context:,} tokens", ha="right", va="top", color=GREY, fontsize=7)
        axis.set_yscale("log")
        axis.set(xlabel="share of attention blocks f", ylabel="decoding state per block (floats)", xlim=(-0.09, 1.02))
        axis.set_xticks(np.linspace(0, 1, 6))
        axis.set_ylim(width / 2, 3 * full)
        axis.set_title(f"d = {width}, window w = {window}", loc="left")
        return save(figure, out, "cost_frontier", numbers)


def state_per_block(fraction: Any, width: int, window: int) -> Any:
    """`f 2 w d + (1 - f) d` floats: an attention block keeps keys and values of its window, another a state of d."""
    return fraction * 2.0 * window * width + (1 - fraction) * width
