"""Where recall tells two memories apart: accuracy over the load, slot and outer-product readers, and their gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures import _readers as readers
from figures import _trained as trained
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "small": 16,
    "large": 64,
    "loads": [4, 8, 16, 32, 64, 128, 256, 512, 1024],
    "vocabulary": 64,
    "seeds": 8,
    "results": None,
}
ABOUT: dict[str, str] = {
    "small": "slots of the smaller memory, and dimensions of its keys",
    "large": "the same of the larger one",
    "loads": "pairs to hold",
    "vocabulary": "values",
    "seeds": "draws of the keys",
    "results": "a sweep over task.pairs, drawn beside; null for none",
}


def draw(
    out: Path,
    *,
    small: int = 16,
    large: int = 64,
    loads: list[int] | None = None,
    vocabulary: int = 64,
    seeds: int = 8,
    results: str | Path | None = None,
) -> list[Path]:
    """Draws one panel for each kind of reader, and one for the trained models of a sweep where `results` names it."""
    grid = np.array(loads or DIALS["loads"])
    numbers = table(small, large, grid, vocabulary, seeds)
    panels = [("slots", "slots"), ("outer product", "outer-product memory")]
    if results is not None:
        found = trained.accuracy_by(results, "load")
        numbers = pd.concat([numbers, found.rename(columns={"x": "load"})], ignore_index=True)
    with style():
        figure = new(PAGE, 3.2)
        axes = figure.subplots(1, len(panels) + (results is not None), sharey=True)
        for axis, (reader, title) in zip(axes, panels):
            part = numbers[numbers.reader == reader]
            for color, size in zip(COLORS, (small, large)):
                curve = part[part["size"] == size]
                axis.plot(curve.load, curve.accuracy, "o-", color=color, label=f"{size}")
                axis.fill_between(
                    curve.load, curve.accuracy - curve.error, curve.accuracy + curve.error, color=color, alpha=0.2
                )
            gap = part[part["size"] == large]
            peak = gap.iloc[int(np.argmax(gap.gap))]
            label = f"gap, at most {peak.gap:.2f} at {peak.load:.0f}"
            axis.plot(gap.load, gap.gap, "--", color=GREY, label=label)
            axis.set_title(title, loc="left")
            trained.below(axis, "slots" if reader == "slots" else "key dimension")
        if results is not None:
            trained.plot(axes[-1], found, "trained models")
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_xlabel("pairs stored, each asked for once")
            axis.set_ylim(-0.03, 1.08)
        axes[0].set_ylabel("accuracy")
        return save(figure, out, "discriminative_regime", numbers)


def table(small: int, large: int, loads: np.ndarray, vocabulary: int, seeds: int) -> pd.DataFrame:
    """One row per reader, size and load: accuracy, its standard error over seeds, and the gap between the two sizes."""
    rows = []
    for load in loads:
        slots = {size: float(readers.slot_accuracy(np.array([load]), size)[0]) for size in (small, large)}
        for size, accuracy in slots.items():
            rows.append(("slots", size, load, accuracy, 0.0, slots[large] - slots[small]))
        found: dict[int, np.ndarray] = {}
        for size in (small, large):
            runs = [readers.draw_pairs(load, load, size, vocabulary, seed) for seed in range(seeds)]
            found[size] = np.array([readers.outer_product_accuracy(pairs, vocabulary) for pairs in runs])
        for size, accuracies in found.items():
            error = accuracies.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else np.nan
            gap = found[large].mean() - found[small].mean()
            rows.append(("outer product", size, load, accuracies.mean(), error, gap))
    return pd.DataFrame(rows, columns=["reader", "size", "load", "accuracy", "error", "gap"])
