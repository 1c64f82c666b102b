"""Where AMOR's blocks fire in one sequence: each block's gate and entropy, position by position, with the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from figures import results as recorded
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "results": "runs/amor-smoke",
    "task": None,
    "architecture": None,
    "sequence": 0,
    "positions": 64,
    "start": None,
}
ABOUT: dict[str, str] = {
    "results": "a sweep's folder",
    "task": "a name; null for all that have gates",
    "architecture": "a name; null for all that have gates",
    "sequence": "which of the recorded test sequences",
    "positions": "how many of it are drawn",
    "start": "the first of them; null for the first scored one",
}

SHUT = "#f4f4f4"
CHANGE: Any = {"color": "black", "linewidth": 1, "linestyle": (0, (3, 2))}
LEGEND = [
    Patch(facecolor=COLORS[0], label="the block fires (a colour each)"),
    Patch(facecolor=SHUT, edgecolor=GREY, linewidth=0.5, label="it does not"),
    Patch(facecolor="#808080", label="score, darker is higher"),
    Line2D([], [], **CHANGE, label="the regime changes"),
]
CAPTION = "share that fires in this excerpt, in brackets over all test sequences; tokens below, bold where scored"


def draw(
    out: Path,
    *,
    results: str | Path = "runs/amor-smoke",
    task: str | None = None,
    architecture: str | None = None,
    sequence: int = 0,
    positions: int = 64,
    start: int | None = None,
) -> list[Path]:
    """Draws the first recorded seed of every model with gates; a coloured cell is a position where the block fires.

    Below the gates the score that block 0 compared with its threshold, darker where it is higher, and the tokens, bold
    at scored positions; a broken line marks a change of regime. Shares beside the blocks are those of the positions
    drawn, beside them the model's over all test sequences. ValueError where nothing recorded fits the dials.
    """
    if start is not None and start < 0:
        raise ValueError(f"start: {start} is before the first position; nearest: 0")
    if positions < 1:
        raise ValueError(f"positions: {positions} leaves nothing to draw; nearest: 1")
    found = gated(results, task, architecture)
    heights, panels = [], []
    for _, row in found.iterrows():
        curves = recorded.curves(results, row["folder"])
        if not 0 <= sequence < len(curves["sample/tokens"]):
            raise ValueError(f"sequence: {sequence} is not recorded; there are {len(curves['sample/tokens'])}, from 0")
        first = first_scored(curves["sample/scored"][sequence], positions) if start is None else start
        panel = window(curves, sequence, first, positions)
        if panel.empty:
            raise ValueError(f"start: {start} is behind the last position, {curves['sample/tokens'].shape[1] - 1}")
        panels.append((f"{row['task']}, {row['architecture']}", panel, row))
        heights.append(len(blocks_of(panel)) + 2.2)
    with style():
        figure = new(PAGE, 0.85 + 0.21 * sum(heights) + 0.3 * len(panels))
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, panel, row) in zip(axes, panels, strict=True):
            _panel(axis, panel, row)
            axis.set_title(title, loc="left")
        axes[-1].set_xlabel("position")
        figure.legend(handles=LEGEND, loc="outside lower center", ncols=len(LEGEND), title=CAPTION, title_fontsize=7)
        named = [panel.assign(model=title, sequence=sequence) for title, panel, _ in panels]
        return save(figure, out, "gate", pd.concat(named, ignore_index=True))


def gated(results: str | Path, task: str | None, architecture: str | None) -> pd.DataFrame:
    """The first seed of each recorded model with gates. ValueError where there is none of the names given."""
    table = recorded.read(results)
    table = table[table["metric.gate.rate"].notna()] if "metric.gate.rate" in table else table[:0]
    for column, wanted in (("task", task), ("architecture", architecture)):
        if wanted is not None:
            known = sorted(table[column].unique())
            table = table[table[column] == wanted]
            if table.empty:
                names = ", ".join(known) or "none"
                raise ValueError(f"{column}: {wanted!r} has no recorded gates in {results}; known: {names}")
    if table.empty:
        raise ValueError(f"results: {results} has no trained model with gates")
    return table.drop_duplicates(["task", "architecture", "point"])


def first_scored(scored: np.ndarray, positions: int) -> int:
    """Where `positions` positions begin that show the first scored one of a sequence, and as many more as there are."""
    first = int(np.flatnonzero(scored)[0]) if np.any(scored) else 0
    return max(0, min(first, len(scored) - positions))


def window(curves: dict[str, np.ndarray], sequence: int, start: int, positions: int) -> pd.DataFrame:
    """One row a position: token, whether scored, regime where there is one, and each block's decision and score."""
    part = slice(start, start + positions)
    columns: dict[str, Any] = {name: curves[f"sample/{name}"][sequence, part] for name in ("tokens", "scored")}
    if "sample/regimes" in curves:
        columns["regime"] = curves["sample/regimes"][sequence, part]
    for name in sorted(curves):
        if name.startswith("sample/field/gate."):
            columns[name.removeprefix("sample/field/gate.")] = curves[name][sequence, part]
    length = len(columns["tokens"])
    return pd.DataFrame({"position": np.arange(start, start + length), **columns})


def blocks_of(panel: pd.DataFrame) -> list[str]:
    """The columns of the gates' decisions, block 0 first."""
    return sorted((name for name in panel.columns if name.endswith(".fire")), key=lambda name: int(name.split(".")[0]))


def _panel(axis: Axes, panel: pd.DataFrame, row: pd.Series) -> None:
    fires = blocks_of(panel)
    left, right = panel.position.iloc[0] - 0.5, panel.position.iloc[-1] + 0.5
    for place, name in enumerate(fires):
        colours = ListedColormap([SHUT, COLORS[place % len(COLORS)]])
        cells = panel[[name]].to_numpy().T
        axis.imshow(
            cells, cmap=colours, vmin=0, vmax=1, aspect="auto", extent=(left, right, place + 0.46, place - 0.46)
        )
    names, bottom = [_share(name.split(".")[0], panel[name].mean(), row) for name in fires], len(fires)
    if "0.score" in panel:
        cells = panel[["0.score"]].to_numpy().T
        axis.imshow(cells, cmap="Greys", aspect="auto", extent=(left, right, bottom + 0.46, bottom - 0.46))
        names.append("score, block 0")
        bottom += 1
    axis.set_xlim(left, right)
    axis.set_ylim(bottom + 0.7, -0.6)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.spines[["left", "bottom"]].set_visible(False)
    regime = panel["regime"].to_numpy() if "regime" in panel else np.zeros(len(panel))
    for change in np.flatnonzero(np.diff(regime)):
        axis.axvline(panel.position.iloc[change + 1] - 0.5, **CHANGE)
    size = min(7.0, 265 / len(panel))
    for place, token, scored in panel[["position", "tokens", "scored"]].itertuples(index=False):
        bold = bool(scored)
        axis.text(
            place,
            bottom + 0.05,
            str(token),
            ha="center",
            va="center",
            fontsize=size,
            color="black" if bold else GREY,
            weight="bold" if bold else "normal",
        )


def _share(block: str, here: float, row: pd.Series) -> str:
    """`block 0  41% (43%)`: the share of positions that fire, here and over all test sequences where it is recorded."""
    overall = float(row.get(f"metric.gate.{block}.rate", np.nan))
    return f"block {block}  {100 * here:.0f}%" + (f" ({100 * overall:.0f}%)" if np.isfinite(overall) else "")
