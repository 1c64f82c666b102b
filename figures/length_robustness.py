"""How far a fading memory reaches: accuracy over the separation, with L90 and the area under the curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures import _readers as readers
from figures import _trained as trained
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "decays": [0.97, 0.99, 0.999, 1.0],
    "separations": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
    "targets": 8,
    "dimension": 64,
    "seeds": 8,
    "results": None,
}
ABOUT: dict[str, str] = {
    "decays": "of a linear memory, per token",
    "separations": "tokens between a pair and its query",
    "targets": "pairs that are asked for",
    "dimension": "of the keys, also the number of values",
    "seeds": "draws of the keys",
    "results": "a sweep with labelled gaps, drawn beside; null for none",
}


def draw(
    out: Path,
    *,
    decays: list[float] | None = None,
    separations: list[int] | None = None,
    targets: int = 8,
    dimension: int = 64,
    seeds: int = 8,
    results: str | Path | None = None,
) -> list[Path]:
    """Draws competing pairs between targets and queries, the control of blanks, and trained models where given."""
    grid = np.array(separations or DIALS["separations"])
    chosen = decays or DIALS["decays"]
    numbers = table(chosen, grid, targets, dimension, seeds)
    found = None
    if results is not None:
        found = trained.accuracy_by(results, "gap_octave")
        numbers = pd.concat([numbers, found.rename(columns={"x": "separation"})], ignore_index=True)
    with style():
        figure = new(PAGE, 3.4)
        axes = figure.subplots(1, 2 if found is None else 3, sharey=True)
        for axis, between in zip(axes, ("pairs", "blanks")):
            for color, decay in zip(COLORS, chosen):
                part = numbers[(numbers.between == between) & (numbers.decay == decay)]
                label = f"{decay:g}"
                if between == "pairs":
                    label += f"   {part.L90.iloc[0]:.0f}   {part.AUC.iloc[0]:.3f}"
                axis.plot(part.separation, part.accuracy, "o-", color=color, label=label)
            axis.set_title("competing pairs between" if between == "pairs" else "blanks between (control)", loc="left")
        trained.below(axes[0], "decay   L90   AUC")
        axes[1].annotate(
            "all alike: blanks change no answer", (0.03, 0.05), xycoords="axes fraction", color=GREY, fontsize=7
        )
        if found is not None:
            trained.plot(axes[-1], found, "trained models", robustness=True)
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_xlabel(
                "separation" if axis is axes[-1] and found is not None else "pairs (or blank pairs) between"
            )
            axis.set_ylim(-0.03, 1.05)
        axes[0].set_ylabel("accuracy")
        return save(figure, out, "length_robustness", numbers)


def table(decays: list[float], separations: np.ndarray, targets: int, dimension: int, seeds: int) -> pd.DataFrame:
    """One row per decay, kind of filler and separation: accuracy over seeds, L90 and AUC of the whole curve."""
    parts = []
    for decay in decays:
        for between in ("pairs", "blanks"):
            accuracy = []
            for separation in separations:
                fresh, blanks = (separation, 0) if between == "pairs" else (0, 2 * separation)
                runs = [
                    readers.draw_pairs(targets + fresh, targets, dimension, dimension, seed) for seed in range(seeds)
                ]
                accuracy.append(
                    np.mean([readers.outer_product_accuracy(run, dimension, decay, blanks) for run in runs])
                )
            curve = np.array(accuracy)
            part = pd.DataFrame({"between": between, "decay": decay, "separation": separations, "accuracy": curve})
            part["L90"] = readers.l90(separations, curve)
            part["AUC"] = readers.auc_over_octaves(separations, curve)
            parts.append(part)
    return pd.concat(parts, ignore_index=True)
