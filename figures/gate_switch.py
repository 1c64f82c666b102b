"""How often AMOR's blocks fire, and how surprised they are, against the tokens since the last change of regime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from figures import results as recorded
from figures.gate import gated
from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/amor-smoke", "task": None, "longest": 48}
ABOUT: dict[str, str] = {
    "results": "a sweep's folder",
    "task": "a name; null for all whose sequences have regimes",
    "longest": "tokens since the change that are drawn",
}

LEGEND = [
    Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), label="mean over all times since a change"),
    Patch(facecolor=GREY, alpha=0.25, linewidth=0, label="two binomial standard errors"),
    Line2D([], [], color=GREY, linewidth=0.6, label="first token of the new regime"),
]


def draw(
    out: Path, *, results: str | Path = "runs/amor-smoke", task: str | None = None, longest: int = 48
) -> list[Path]:
    """One column a model: above the share of positions that fire, below the mean score that is compared.

    Time 0 is the first token of the new regime; a broken line is the mean over all of these times, a band two binomial
    standard errors for the number of positions. Lines are means over seeds. ValueError where no recorded model with
    gates has regimes.
    """
    numbers = by_time(results, task, longest)
    panels = list(numbers.groupby(["task", "point", "architecture"], sort=False))
    with style():
        figure = new(PAGE, 3.95)
        axes = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row")
        for column, ((name, point, architecture), part) in enumerate(panels):
            for row, field in enumerate(("fire", "score")):
                axis = axes[row, column]
                for block, line in part[part.field == field].groupby("block"):
                    which = int(str(block))
                    color, marker = COLORS[which % len(COLORS)], MARKERS[which % len(MARKERS)]
                    axis.plot(line.tokens, line["mean"], marker, ls="-", color=color, label=f"block {block}", ms=3)
                    if field == "fire":
                        error = 2 * np.sqrt(line["mean"] * (1 - line["mean"]) / line.positions)
                        axis.fill_between(
                            line.tokens, line["mean"] - error, line["mean"] + error, color=color, alpha=0.12, lw=0
                        )
                    axis.axhline(line.overall.iloc[0], color=color, linewidth=0.8, linestyle=(0, (4, 2)))
                axis.axvline(0, color=GREY, linewidth=0.6)
            axes[0, column].set_title(" ".join(str(one) for one in (name, point, architecture) if one), loc="left")
            axes[1, column].set_xlabel("tokens since the regime changed")
        axes[0, 0].set_ylabel("share that fires")
        axes[1, 0].set_ylabel("score (normalised entropy)")
        blocks = axes[0, 0].get_legend_handles_labels()[0]
        figure.legend(handles=[*blocks, *LEGEND], loc="outside lower center", ncols=3 if len(blocks) == 3 else 4)
        return save(figure, out, "gate_switch", numbers)


def by_time(results: str | Path, task: str | None, longest: int) -> pd.DataFrame:
    """One row per model, block, field (fire, score) and time: mean over seeds, positions, and the mean over all times.

    ValueError where nothing recorded has regimes and gates.
    """
    wanted = gated(results, task, None)[["task", "architecture", "point"]]
    table = recorded.read(results).merge(wanted, on=["task", "architecture", "point"])
    rows = []
    for _, trial in table.iterrows():
        curves = recorded.curves(results, trial["folder"])
        if "field/since_switch/labels" not in curves:
            continue
        labels, counts = curves["field/since_switch/labels"], curves["field/since_switch/count"]
        for key in sorted(curves):
            parts = key.split("/")
            if len(parts) == 3 and parts[0] == "field" and parts[1].startswith("gate.") and parts[2] == "since_switch":
                _, block, field = parts[1].split(".")
                overall = float(np.average(curves[key], weights=counts))
                for label, count, mean in zip(labels, counts, curves[key], strict=True):
                    if label <= longest:
                        name = (trial["task"], trial["point"], trial["architecture"])
                        rows.append((*name, int(block), field, int(label), float(mean), float(count), overall))
    names = ["task", "point", "architecture", "block", "field", "tokens", "mean", "positions", "overall"]
    if not rows:
        raise ValueError(f"results: {results} has no model with gates on a task whose regime changes")
    long = pd.DataFrame(rows, columns=names)
    keys = names[:6]
    return long.groupby(keys, sort=False)[["mean", "positions", "overall"]].mean().reset_index()
