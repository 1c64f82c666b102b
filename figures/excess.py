"""Nats over Bayes of each trained architecture, with the restricted predictors of the task as reference lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from figures import results as recorded
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/smoke", "references": None}
ABOUT: dict[str, str] = {
    "results": "a sweep's folder",
    "references": "names of the reference lines; null for all that are no bound",
}


OWN = "receptive_field"
"""The reference that each architecture of bounded receptive field has for itself."""
LEAST = 1e-6
"""The least excess that has a place on the axis, nats."""
LABEL_SIZE = 6.5
"""Points."""


def draw(out: Path, *, results: str | Path = "runs/smoke", references: list[str] | None = None) -> list[Path]:
    """Draws the chosen trials of a recorded sweep, one panel a task and grid point.

    A dot is the mean over seeds; its bar is twice the paired standard error over test sequences for one seed, twice
    the standard error over seeds for more. A reference too close to Bayes for the axis is named at its edge, with its
    excess. ValueError where the sweep has no finished trial.
    """
    table = recorded.read(results)
    numbers = summary(table)
    lines, own = reference_lines(table, references), own_limits(table)
    panels = list(numbers.groupby(["task", "point"], sort=False))
    rows = max(len(part) for _, part in panels)
    labels = LABEL_SIZE * 0.52 * max((len(_label(line)) for _, line in lines.iterrows()), default=0) / 72
    with style():
        figure = new(PAGE, 0.6 + len(panels) * (0.4 + labels + 0.28 * rows))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, (key, part) in zip(axes, panels, strict=True):
            here = [rows[(rows.task == key[0]) & (rows.point == key[1])] for rows in (lines, own)]
            _panel(axis, part, *here)
            axis.set_title(" ".join(str(part) for part in key if part), loc="left", pad=18 + 72 * labels)
        axes[-1].set_xlabel("excess over the Bayes-optimal predictor (nats per token)")
        handles = []
        if len(own):
            label = "best predictor from a model's receptive field"
            handles.append(Line2D([], [], color=COLORS[1], marker="|", linestyle="none", markersize=8, label=label))
        if (lines.excess <= LEAST).any():
            label = "off the axis: nearer to Bayes, with its excess"
            handles.append(Line2D([], [], color=GREY, marker="<", linestyle="none", label=label))
        if handles:
            figure.legend(handles=handles, loc="outside lower right", ncols=len(handles))
        return save(figure, out, "excess", pd.concat([numbers, lines, own], ignore_index=True))


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
            if name in ("bayes", OWN) or values.empty or (bound is not None and bool(bound.dropna().any())):
                continue
            rows.append((task, point, name, "reference", values.mean()))
    return pd.DataFrame(rows, columns=["task", "point", "name", "kind", "excess"])


def own_limits(table: pd.DataFrame) -> pd.DataFrame:
    """One row per task, grid point and architecture of bounded receptive field: the excess of the best predictor
    from as many tokens, mean over seeds."""
    columns = ["task", "point", "name", "kind", "excess"]
    column = f"reference.{OWN}.excess"
    if column not in table:
        return pd.DataFrame(columns=columns)
    means = table.groupby(["task", "point", "architecture"], sort=False)[column].mean().dropna().reset_index()
    return means.set_axis(["task", "point", "name", "excess"], axis=1).assign(kind="receptive field")[columns]


def _panel(axis: Axes, models: pd.DataFrame, lines: pd.DataFrame, own: pd.DataFrame) -> None:
    models = models.sort_values("excess", ascending=False)
    place = np.arange(len(models))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
    drawn = lines.sort_values("excess")
    inside = drawn.excess[drawn.excess > LEAST]
    shown = [*models.excess, *inside, *own.excess]
    low, high = min(shown), max(shown)
    low, high = max(low, LEAST) / 1.6, high * 1.6
    ends = drawn.excess.where(drawn.excess > LEAST, low).to_numpy()
    axis.set_xlim(low, high)
    axis.set_ylim(-0.6, len(models) - 0.4)
    error = 2 * models.error.to_numpy()
    left = np.minimum(error, models.excess.to_numpy() * 0.999)
    axis.errorbar(models.excess, place, xerr=[left, error], fmt="o", color=COLORS[0], capsize=2, zorder=3)
    axis.set_yticks(place, models.name)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", which="both", length=3, pad=3)
    limits = own.set_index("name").excess.reindex(models.name).to_numpy(dtype=float)
    if np.isfinite(limits).any():
        axis.plot(limits, place, "|", color=COLORS[1], markersize=10)
    spots = _spread(np.log(ends), (np.log(high) - np.log(low)) * 0.026)
    for (_, line), end, spot in zip(drawn.iterrows(), ends, spots, strict=True):
        if end == line.excess:
            axis.axvline(end, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
        else:
            axis.plot(end, 1.0, "<", color=GREY, transform=axis.get_xaxis_transform(), clip_on=False)
        axis.annotate(
            _label(line),
            xy=(end, 1.0),
            xytext=(float(np.exp(spot)), 1.06),
            xycoords=("data", "axes fraction"),
            textcoords=("data", "axes fraction"),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=LABEL_SIZE,
            color=GREY,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )


def _label(line: pd.Series) -> str:
    """The name of a reference line; that of one beyond the axis, which is named at its edge, with its excess."""
    name = str(line["name"]).replace("_", " ")
    return name if line.excess > LEAST else f"{name}: {max(0.0, round(line.excess, 12)):.0g}"


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
