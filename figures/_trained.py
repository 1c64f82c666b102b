"""Trained models on the axes of the readers' figures, from a sweep's published table."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from figures import _readers as readers
from figures import results as recorded
from figures.style import COLORS


def accuracy_by(results: str | Path, name: str) -> pd.DataFrame:
    """Accuracy over a dial (`dial.NAME`), or over the labels of a slice: one row per model and value.

    A model is an architecture on tasks of one kind, which is named where the sweep has several. `x` is the dial's
    value, or `2^label` for labels that count octaves; `accuracy` and `error` are mean and standard error over trials
    (NaN for one). ValueError where the sweep has neither.
    """
    table = recorded.read(results)
    kinds = table.task_kind.nunique() > 1
    table = table.assign(model=table.architecture + (" on " + table.task_kind if kinds else ""))
    long = _by_slice(table, name) if f"dial.{name}" not in table else _by_dial(table, name)
    if long.empty:
        raise ValueError(f"results: {results} has no dial and no slice {name!r}")
    found = long.groupby(["model", "x"], sort=True).accuracy.agg(["mean", "sem"]).reset_index()
    found = found.rename(columns={"mean": "accuracy", "sem": "error"})
    return found.assign(reader="trained", source="results")


def _by_dial(table: pd.DataFrame, name: str) -> pd.DataFrame:
    kept = table.dropna(subset=[f"dial.{name}"])
    return pd.DataFrame({"model": kept.model, "x": kept[f"dial.{name}"].astype(float), "accuracy": kept.accuracy})


def _by_slice(table: pd.DataFrame, name: str) -> pd.DataFrame:
    rows: list[tuple[str, float, float]] = []
    for column in table.columns:
        parts = column.split(".")
        if len(parts) == 4 and parts[:2] == ["slice", name] and parts[3] == "accuracy":
            label = int(parts[2])
            place = 2.0**label if name.endswith("octave") else float(label)
            kept = table[["model", column]].dropna()
            rows.extend((one, place, float(value)) for one, value in kept.itertuples(index=False))
    return pd.DataFrame(rows, columns=["model", "x", "accuracy"])


def plot(axis: Axes, found: pd.DataFrame, title: str, *, robustness: bool = False) -> None:
    """One curve an architecture; with `robustness` its L90 and AUC stand in the legend."""
    for color, (name, part) in zip(cycle(COLORS[::-1]), found.groupby("model", sort=False), strict=False):
        label = str(name)
        if robustness:
            x, y = part.x.to_numpy(), part.accuracy.to_numpy()
            label += f"   {readers.l90(x, y):.0f}   {readers.auc_over_octaves(x, y):.3f}"
        axis.errorbar(part.x, part.accuracy, yerr=part.error.fillna(0), fmt="s-", color=color, label=label)
    below(axis, "L90   AUC" if robustness else None)
    if title:
        axis.set_title(title, loc="left")


def below(axis: Axes, title: str | None = None) -> None:
    """A legend under the axes, where it hides no curve."""
    axis.legend(title=title, loc="upper center", bbox_to_anchor=(0.5, -0.22))


def selections(results: str | Path) -> pd.DataFrame:
    """What choosing the best seed would add, per task and architecture: `(mean - least excess) / standard deviation`.

    ValueError where no architecture has two seeds.
    """
    rows = []
    for _, part in recorded.read(results).groupby(["task", "point", "architecture"], sort=False):
        spread = part.excess.std(ddof=1) if len(part) > 1 else 0.0
        if spread > 0:
            rows.append((len(part), float((part.excess.mean() - part.excess.min()) / spread)))
    if not rows:
        raise ValueError(f"results: {results} has no architecture with two seeds")
    found = pd.DataFrame(rows, columns=["count", "simulated"])
    return found.assign(exact=[readers.expected_maximum(int(count)) for count in found["count"]], error=np.nan)
