"""Where AMOR's blocks fire in one sequence: each block's gate and entropy, position by position, with the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from figures import results as recorded
from figures.style import COLORS, GREY, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "results": "runs/amor-smoke",
    "task": None,
    "architecture": None,
    "sequence": 0,
    "positions": 64,
    "start": 0,
}
"""`results`: a sweep's folder. `task`, `architecture`: names, None for all that have gates. `sequence`: which of the
recorded test sequences. `start`, `positions`: the part of it that is drawn."""

SHUT = "#f4f4f4"


def draw(
    out: Path,
    *,
    results: str | Path = "runs/amor-smoke",
    task: str | None = None,
    architecture: str | None = None,
    sequence: int = 0,
    positions: int = 64,
    start: int = 0,
) -> list[Path]:
    """Draws the first recorded seed of every model with gates; a coloured cell is a position where the block fires.

    Below the gates the score that block 0 compared with its threshold, darker where it is higher, and the tokens, bold
    at scored positions where not all are scored; a broken line marks a change of regime. ValueError where
    nothing recorded fits the dials.
    """
    found = gated(results, task, architecture)
    heights, panels = [], []
    for _, row in found.iterrows():
        curves = recorded.curves(results, row["folder"])
        if not 0 <= sequence < len(curves["sample/tokens"]):
            raise ValueError(f"sequence: {sequence} is not recorded; there are {len(curves['sample/tokens'])}, from 0")
        panel = window(curves, sequence, start, positions)
        if panel.empty:
            raise ValueError(f"start: {start} is behind the last position, {curves['sample/tokens'].shape[1] - 1}")
        panels.append((f"{row['task']}, {row['architecture']}", panel))
        heights.append(len(blocks_of(panel)) + 2.2)
    with style():
        figure = new(PAGE, 0.35 + 0.21 * sum(heights) + 0.3 * len(panels))
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, panel) in zip(axes, panels, strict=True):
            _panel(axis, panel)
            axis.set_title(title, loc="left")
        axes[-1].set_xlabel("position")
        named = [panel.assign(model=title, sequence=sequence) for title, panel in panels]
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


def _panel(axis: Axes, panel: pd.DataFrame) -> None:
    fires = blocks_of(panel)
    left, right = panel.position.iloc[0] - 0.5, panel.position.iloc[-1] + 0.5
    for row, name in enumerate(fires):
        colours = ListedColormap([SHUT, COLORS[row % len(COLORS)]])
        cells = panel[[name]].to_numpy().T
        axis.imshow(cells, cmap=colours, vmin=0, vmax=1, aspect="auto", extent=(left, right, row + 0.46, row - 0.46))
    names, bottom = [f"block {name.split('.')[0]}  {100 * panel[name].mean():.0f}%" for name in fires], len(fires)
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
    for place in np.flatnonzero(np.diff(regime)):
        axis.axvline(panel.position.iloc[place + 1] - 0.5, color=COLORS[1], linewidth=1, linestyle=(0, (3, 2)))
    partly = not panel.scored.astype(bool).all() and panel.scored.astype(bool).any()
    size = min(7.0, 300 / len(panel))
    for place, token, scored in panel[["position", "tokens", "scored"]].itertuples(index=False):
        bold = partly and bool(scored)
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
