"""Excess over Bayes by position around switches of Oryx's mode, against the two modes without a switch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from figures.oryx_runs import Group, groups, places
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/oryx-smoke", "task": None, "variants": None, "smooth": 3}
ABOUT: dict[str, str] = {
    "results": "a sweep's folder",
    "task": "a task of it; null for the first with Oryx trials",
    "variants": "some with the schedule switch; null for those called switch..., or all if none is",
    "smooth": "positions that a point is the mean of, never across a switch",
}

ATTENTION, LINEAR, SWITCHED = COLORS[0], COLORS[1], COLORS[6]


def draw(
    out: Path,
    *,
    results: str | Path = "runs/oryx-smoke",
    task: str | None = None,
    variants: list[str] | None = None,
    smooth: int = 3,
) -> list[Path]:
    """One row per architecture and training, one column per variant with the schedule `switch`; mean over seeds.

    The band below each panel is coloured by the mode in use. Paper: figures 3 and 4 (arXiv 2605.28769). ValueError
    where the sweep has no such variant.
    """
    found = groups(results, [task] if task else None)
    found = [group for group in found if group.task == found[0].task]
    names = chosen(found[0], variants)
    numbers = pd.concat([curves(group, name, smooth) for group in found for name in names], ignore_index=True)
    with style():
        figure = new(PAGE, 0.7 + 1.45 * len(found))
        axes = figure.subplots(len(found), len(names), squeeze=False, sharex=True, sharey="row")
        for row, group in zip(axes, found, strict=True):
            for axis, name in zip(row, names, strict=True):
                of_row = (numbers.architecture == group.architecture) & (numbers.training == group.training)
                _panel(axis, numbers[of_row & (numbers.variant == name)], group, name)
            _limits(row, numbers[(numbers.architecture == group.architecture) & (numbers.training == group.training)])
            row[0].set_title(group.title, loc="left", fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("position (tokens)")
        figure.supylabel("excess over Bayes (nats per token)", fontsize=8)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=3)
        return save(figure, out, "switch", numbers)


def chosen(group: Group, wanted: list[str] | None) -> list[str]:
    """The names of the variants to draw. ValueError for one that has no schedule `switch`, or where none has."""
    known = [name for name, mode in group.variants.items() if mode["schedule"] == "switch"]
    if not known:
        raise ValueError(f"results: {group.folder} has no variant with the schedule 'switch'")
    for name in wanted or []:
        if name not in known:
            raise ValueError(f"variants: {name!r} is no variant with the schedule 'switch'; known: {', '.join(known)}")
    return wanted or [name for name in known if name.startswith("switch")] or known


def curves(group: Group, variant: str, smooth: int) -> pd.DataFrame:
    """Excess by scored position of the variant and of both single modes, smoothed between switches."""
    count = group.curve("position_count")
    edges = [0, *places(group.variants[variant], group.length), group.length]
    table = pd.DataFrame({"position": np.arange(group.length)})
    for column, name in (("attention", "attention"), ("linear", "linear"), ("switched", variant)):
        values = np.where(count > 0, group.curve(f"variant/{name}/position_excess"), np.nan)
        table[column] = _smoothed(values, count, edges, smooth)
    mode = group.variants[variant].get("first", "attention")
    first = int(mode == "linear")
    table["mode"] = [("attention", "linear")[(first + sum(t >= e for e in edges[1:-1])) % 2] for t in table.position]
    for name in ("variant", "training", "architecture", "task"):
        table.insert(0, name, variant if name == "variant" else getattr(group, name))
    return table[count > 0]


def _smoothed(values: np.ndarray, count: np.ndarray, edges: list[int], width: int) -> np.ndarray:
    """Means over `width` positions, weighted by their number of predictions, inside each piece between `edges`."""
    result = np.full(len(values), np.nan)
    weight, total = np.where(count > 0, count, 0.0), np.where(count > 0, values * count, 0.0)
    for start, stop in pairwise(edges):
        for t in range(start, stop):
            near = slice(max(start, t - width // 2), min(stop, t + (width + 1) // 2))
            if weight[near].sum() > 0 and count[t] > 0:
                result[t] = total[near].sum() / weight[near].sum()
    return result


def _panel(axis: Axes, part: pd.DataFrame, group: Group, variant: str) -> None:
    axis.plot(part.position, part.attention, color=ATTENTION, label="attention throughout", linewidth=1)
    axis.plot(part.position, part.linear, color=LINEAR, label="linear throughout", linewidth=1)
    axis.plot(part.position, part.switched, color=SWITCHED, label="switched", linewidth=1.1, linestyle=(0, (3, 1)))
    for place in places(group.variants[variant], group.length):
        axis.axvline(place - 0.5, color=GREY, linewidth=0.6, linestyle=(0, (1, 1.5)))
    for mode, color in (("attention", ATTENTION), ("linear", LINEAR)):
        used = (part["mode"] == mode).to_numpy()
        axis.fill_between(
            part.position,
            0,
            0.035,
            where=used.tolist(),
            step="mid",
            color=color,
            alpha=0.5,
            linewidth=0,
            transform=axis.get_xaxis_transform(),
        )
    label = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    text = axis.text(0.98, 0.97, variant.replace("_", " "), transform=axis.transAxes, fontsize=6.5, bbox=label)
    text.set(ha="right", va="top")
    axis.set_xlim(part.position.min() - 0.5, part.position.max() + 0.5)


def _limits(row: np.ndarray, part: pd.DataFrame) -> None:
    values = part[["attention", "linear", "switched"]].to_numpy()
    low, high = np.nanmin(values), np.nanmax(values)
    span = max(high - low, 1e-9)
    row[0].set_ylim(low - 0.12 * span, high + 0.14 * span)
