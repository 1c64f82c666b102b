"""Decode latency, prefill latency and peak prefill memory against context length, each with its bound."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style

DIALS: dict[str, Any] = {"results": "runs/bench/inference.json", "scale": "1.5B", "batch": 1, "gate": "dial"}
ABOUT: dict[str, str] = {
    "results": "what `fastslow bench inference` wrote",
    "scale": "which of its models: 180M, 440M or 1.5B",
    "batch": "which of its batch sizes",
    "gate": "AMOR's rows: dial, at the firing rates that were set, or own, where its gates fire by themselves",
}
SCHEMA = "1"

PANELS = {
    "decode_ms": ("decode_bound_ms", "ms per token", "decoding"),
    "prefill_s": ("prefill_bound_s", "seconds", "prefill"),
    "prefill_gb": (None, "GB", "peak prefill memory"),
}
"""Column, its bound's column, unit and title."""


def draw(
    out: Path,
    *,
    results: str | Path = "runs/bench/inference.json",
    scale: str = "1.5B",
    batch: int = 1,
    gate: str = "dial",
) -> list[Path]:
    """Draws one panel a quantity, one line a model; dotted in the same colour what no run can be faster than.

    The bounds are bytes over the copy bandwidth and products over the matrix rate measured in the same run. A context
    at which memory ran out has no point. FileNotFoundError without the results, ValueError for another schema, or
    where they have no such rows.
    """
    numbers = read(Path(results), scale, batch, gate)
    with style():
        figure = new(PAGE, 4.6)
        axes = figure.subplots(1, 3)
        names = list(dict.fromkeys(numbers.model))
        for axis, (column, (bound, unit, title)) in zip(axes, PANELS.items(), strict=True):
            _panel(axis, numbers, names, column, bound)
            several = "ms per step" if batch > 1 and unit == "ms per token" else unit
            axis.set(title=title, xlabel="tokens of context", ylabel=several)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        return save(figure, out, "inference", numbers)


def read(path: Path, scale: str, batch: int, gate: str) -> pd.DataFrame:
    """One row a model and context: what was measured, its bounds, and the firing rates found."""
    if not path.exists():
        raise FileNotFoundError(f"results: {path} is not there; record it with fastslow bench inference")
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("schema") != SCHEMA:
        raise ValueError(f"results: {path} has schema {record.get('schema')}, the figure reads {SCHEMA}")
    table = pd.DataFrame(record["rows"])
    scales = sorted(set(table.scale))
    if scale not in scales:
        raise ValueError(
            f"scale: {path} has no {scale!r}; nearest: {_nearest(scale, scales)!r} (known: {', '.join(scales)})"
        )
    known = sorted({str(kind) for kind in table.gate if isinstance(kind, str)} | {"dial"})
    if gate not in known:
        raise ValueError(f"gate: {path} has no {gate!r}; nearest: {_nearest(gate, known)!r}")
    part = table[(table.scale == scale) & (table.batch == batch) & (table.gate.isna() | (table.gate == gate))]
    if part.empty:
        raise ValueError(f"batch: {path} has no {batch} at {scale}; nearest: {min(table.batch)}")
    columns = ["model", "context", "status", *PANELS, *(bound for bound, _, _ in PANELS.values() if bound)]
    return part.reindex(columns=[*columns, "prefill_rate", "decode_rate"]).reset_index(drop=True)


def _panel(axis: Axes, numbers: pd.DataFrame, names: list[str], column: str, bound: str | None) -> None:
    """One quantity; a CPU's record has no peak memory, and its panel says so."""
    for index, name in enumerate(names):
        part = numbers[(numbers.model == name) & numbers[column].notna()].sort_values("context")
        color = COLORS[index % len(COLORS)]
        line = "-" if index < len(COLORS) else "--"
        axis.plot(part.context, part[column], line, color=color, marker=MARKERS[index % len(MARKERS)], label=name, ms=3)
        if bound is not None:
            alone = "_" if len(part) == 1 else ""  # one point is no line
            axis.plot(part.context, part[bound], ":", marker=alone, color=color, lw=0.8)
    if bound is not None:
        axis.plot([], [], ":", color=GREY, lw=0.8, label="bound of each")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:g}K"))
    if numbers[column].isna().all():
        axis.set_yticks([])
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=GREY)
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 12 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _nearest(name: str, known: list[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.0)))
