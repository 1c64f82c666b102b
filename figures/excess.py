"""Nats over Bayes of each trained architecture, with the restricted predictors of the task as reference lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from figures import results as recorded
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/smoke", "references": None}
"""`results`: a sweep's folder. `references`: names of the reference lines, None for all that are no bound."""


def draw(out: Path, *, results: str | Path = "runs/smoke", references: list[str] | None = None) -> list[Path]:
    """Draws the chosen trials of a recorded sweep, one panel a task and grid point.

    A dot is the mean over seeds; its bar is twice the paired standard error over test sequences for one seed, twice
    the standard error over seeds for more. ValueError where the sweep has no finished trial.
    """
    table = recorded.read(results)
    numbers = summary(table)
    lines = reference_lines(table, references)
    panels = list(numbers.groupby(["task", "point"], sort=False))
    rows = max(len(part) for _, part in panels)
    with style():
        figure = new(PAGE, 0.9 + len(panels) * (0.9 + 0.28 * rows))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, (key, part) in zip(axes, panels, strict=True):
            _panel(axis, part, lines[(lines.task == key[0]) & (lines.point == key[1])])
            axis.set_title(" ".join(str(part) for part in key if part), loc="left", pad=58)
        axes[-1].set_xlabel("excess over the Bayes-optimal predictor (nats per token)")
        return save(figure, out, "excess", pd.concat([numbers, lines], ignore_index=True))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per task, grid point and architecture: mean excess over seeds, its error, and which error it is."""
    rows = []
    for (task, point, name), part in table.groupby(["task", "point", "architecture"], sort=False):
        seeds = len(part)
        error = part.excess.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else part.excess_se.iloc[0]
        kind = "standard error over seeds" if seeds > 1 else "paired standard error over sequences"
        rows.append((task, point, name, "trained", part.excess.mean(), error, kind, seeds))
    return pd.DataFrame(rows, columns=["task", "point", "name", "kind", "excess", "error", "error_kind", "seeds"])


def reference_lines(table: pd.DataFrame, wanted: list[str] | None) -> pd.DataFrame:
    """One row per task, grid point and reference: its excess on the same sequences, mean over seeds.

    ValueError for a wanted reference that the sweep does not have.
    """
    known = recorded.references(table)
    for name in wanted or []:
        if name not in known:
            raise ValueError(f"references: {name!r} is not in these results; known: {', '.join(known)}")
    rows = []
    for (task, point), part in table.groupby(["task", "point"], sort=False):
        for name in wanted or known:
            values = part[f"reference.{name}.excess"].dropna()
            bound = part.get(f"reference.{name}.is_bound")
            if name == "bayes" or values.empty or (bound is not None and bool(bound.dropna().any())):
                continue
            rows.append((task, point, name, "reference", values.mean()))
    return pd.DataFrame(rows, columns=["task", "point", "name", "kind", "excess"])


def _panel(axis: Axes, models: pd.DataFrame, lines: pd.DataFrame) -> None:
    models = models.sort_values("excess", ascending=False)
    place = np.arange(len(models))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
    drawn = lines[lines.excess > 1e-6].sort_values("excess")
    low = min(models.excess.min(), *drawn.excess) if len(drawn) else models.excess.min()
    high = max(models.excess.max(), *drawn.excess) if len(drawn) else models.excess.max()
    low, high = max(low, 1e-6) / 1.6, high * 1.6
    axis.set_xlim(low, high)
    axis.set_ylim(-0.6, len(models) - 0.4)
    error = 2 * models.error.to_numpy()
    left = np.minimum(error, models.excess.to_numpy() * 0.999)
    axis.errorbar(models.excess, place, xerr=[left, error], fmt="o", color=COLORS[0], capsize=2, zorder=3)
    axis.set_yticks(place, models.name)
    axis.tick_params(axis="y", length=0)
    spots = _spread(np.log(drawn.excess.to_numpy()), (np.log(high) - np.log(low)) * 0.026)
    for (_, line), spot in zip(drawn.iterrows(), spots, strict=True):
        axis.axvline(line.excess, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
        axis.annotate(
            str(line["name"]).replace("_", " "),
            xy=(line.excess, 1.0),
            xytext=(float(np.exp(spot)), 1.06),
            xycoords=("data", "axes fraction"),
            textcoords=("data", "axes fraction"),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=6.5,
            color=GREY,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )


def _spread(places: np.ndarray, least: float) -> np.ndarray:
    """`places`, ascending, moved as little as needed for neighbours to be `least` apart, centre kept."""
    spots = places.copy()
    for _ in range(200):
        gaps = np.diff(spots)
        tight = gaps < least - 1e-12
        if not tight.any():
            break
        move = np.where(tight, (least - gaps) / 2, 0)
        spots[:-1] -= move
        spots[1:] += move
    return spots
