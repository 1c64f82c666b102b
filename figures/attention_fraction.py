"""Excess of Oryx, or its accuracy, against the fraction of tokens in attention mode, by how these are chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from figures.oryx_runs import Group, groups
from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/oryx-smoke", "tasks": None, "score": "excess"}
ABOUT: dict[str, str] = {
    "results": "a sweep's folder",
    "tasks": "some of its tasks; null for all",
    "score": "excess (nats over Bayes) or accuracy",
}

SCORES = {"excess": "excess over Bayes (nats per token)", "accuracy": "accuracy"}
SPAN = 0.1
"""Least height of a panel of accuracies, so that differences within a percent do not fill one."""
FAMILIES = ("last tokens", "first tokens", "random chunks", "query and after", "context")
"""How the attended tokens were chosen, in the order of colours."""


def draw(
    out: Path, *, results: str | Path = "runs/oryx-smoke", tasks: list[str] | None = None, score: str = "excess"
) -> list[Path]:
    """A row per task, a column per architecture and training; a point per variant, mean over seeds.

    Dashed lines join the single modes, at 0 and 1, at the level of each. ValueError for an unknown score, or where
    no variant tells its fraction.
    """
    if score not in SCORES:
        raise ValueError(f"score: unknown {score!r}; known: {', '.join(SCORES)}")
    found = groups(results, tasks)
    numbers = pd.concat([points(group, score) for group in found], ignore_index=True)
    if numbers.empty:
        raise ValueError(f"results: {results} has no variant that records its fraction of attention")
    tasks = list(dict.fromkeys(group.task for group in found))
    titles = list(dict.fromkeys(group.title for group in found))
    with style():
        figure = new(PAGE, 0.7 + 1.6 * len(tasks))
        axes = figure.subplots(len(tasks), len(titles), squeeze=False, sharex=True)
        for axis in axes.flat:
            axis.set_axis_off()
        for group in found:
            axis = axes[tasks.index(group.task), titles.index(group.title)]
            axis.set_axis_on()
            mine = (numbers.task == group.task) & (numbers.architecture == group.architecture)
            _panel(axis, numbers[mine & (numbers.training == group.training)])
            named = f"{group.task}, {group.architecture}".replace("_", " ")
            axis.set_title(f"{named}\n{group.training}", loc="left", fontsize=6.5)
            _least_height(axis, score)
        figure.supxlabel("fraction of tokens in attention mode", fontsize=8)
        figure.supylabel(SCORES[score], fontsize=8)
        handles: dict[str, Any] = {}
        for axis in axes.flat:
            handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=len(handles))
        return save(figure, out, "attention_fraction", numbers)


def points(group: Group, score: str) -> pd.DataFrame:
    """One row per variant: how tokens were chosen (`family`), their fraction, and the score."""
    rows = []
    for name, schedule in group.variants.items():
        fraction = group.mean(f"variant.{name}.metric.attention_fraction")
        family = family_of(schedule)
        if np.isfinite(fraction) and family is not None:
            value = group.mean(f"variant.{name}.{score}")
            rows.append((group.task, group.architecture, group.training, name, family, fraction, value))
    names = ["task", "architecture", "training", "variant", "family", "fraction", score]
    table = pd.DataFrame(rows, columns=names).sort_values(["family", "fraction"], ignore_index=True)
    return table.astype({"fraction": float, score: float})


def family_of(schedule: dict[str, Any]) -> str | None:
    """How a schedule chooses the attended tokens; None for one that has more than one switch or no such reading."""
    kind = schedule["schedule"]
    if kind in ("attention", "linear"):
        return "single mode"
    if kind == "random_chunks":
        return "random chunks"
    if kind == "prompt":
        return "query and after" if schedule.get("prompt", "attention") == "attention" else "context"
    if kind == "switch" and not isinstance(schedule.get("at", 0.5), list):
        return "last tokens" if schedule.get("first", "attention") == "linear" else "first tokens"
    return None


def _panel(axis: Axes, part: pd.DataFrame) -> None:
    score = part.columns[-1]
    single = part[part.family == "single mode"].sort_values("fraction")
    for value in single[score]:
        axis.axhline(value, color=GREY, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    axis.plot(
        single.fraction, single[score], "*", color=GREY, markersize=7, label="single mode (dashed: its level)", zorder=4
    )
    for family, color, marker in zip(FAMILIES, COLORS, MARKERS, strict=False):
        mine = part[part.family == family]
        if len(mine):
            axis.plot(mine.fraction, mine[score], marker=marker, color=color, linewidth=1, label=family, zorder=3)
    axis.set_xlim(-0.05, 1.05)


def _least_height(axis: Axes, score: str) -> None:
    """An accuracy's panel is at least `SPAN` high and does not reach far above 1, an excess' begins at 0."""
    low, high = axis.get_ylim()
    if score == "excess":
        axis.set_ylim(min(low, 0.0), 1.05 * high)
        return
    more = max(0.0, SPAN - (high - low)) / 2
    low, high = low - more, high + more
    if high > 1.01:
        low, high = min(low, 1.01 - SPAN), 1.01
    axis.set_ylim(low, high)
