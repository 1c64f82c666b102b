"""Where AMOR's gate pays: FLOPs saved per decoded token, against context length and firing rate, for both gates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from figures.style import COLORS, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "vocab_size": 128256,
    "d_model": 2048,
    "hidden": 512,
    "firing_rate": 0.4,
    "shortest": 256,
    "longest": 1048576,
}
ABOUT: dict[str, str] = {
    "vocab_size": "tokens of the head, which the entropy gate reads",
    "d_model": "width of the model",
    "hidden": "units of the distilled router",
    "firing_rate": "the rate whose break-even is marked",
    "shortest": "tokens of context where the axis begins",
    "longest": "tokens of context where it ends; the defaults are the paper's model at 1.5B",
}

GATES = {"entropy": "native gate: the head once more", "router": "distilled router"}
COUNTED = {"scores": "scores and values", "projections": "with query and output projections"}


def draw(
    out: Path,
    *,
    vocab_size: int = 128256,
    d_model: int = 2048,
    hidden: int = 512,
    firing_rate: float = 0.4,
    shortest: int = 256,
    longest: int = 1048576,
) -> list[Path]:
    """Draws one panel a gate: colour is the saving as a fraction of an attention block that is always on, lines are
    where it is zero. Per decoded token and block, matrix products only.

    Reference: Zheng & Shani, AMOR, arXiv 2602.13215, equations 9 to 12. ValueError for a rate or length out of range.
    """
    if not 0 <= firing_rate < 1:
        raise ValueError(f"firing_rate: {firing_rate} is not in [0, 1); nearest: {min(max(firing_rate, 0.0), 0.99)}")
    if not 1 <= shortest < longest:
        raise ValueError(f"longest: {longest} tokens is not above shortest {shortest}; nearest: {shortest + 1}")
    cost = {"entropy": 2 * vocab_size * d_model, "router": 2 * (d_model * hidden + hidden + d_model)}
    numbers = thresholds(cost, d_model)
    length = np.geomspace(shortest, longest, 241)
    rate = np.linspace(0, 1, 201)
    with style():
        figure = new(PAGE, 2.9)
        axes = figure.subplots(1, 2, sharey=True)
        for axis, gate in zip(axes, GATES, strict=True):
            image = axis.pcolormesh(
                length,
                rate,
                saving(length[None, :], rate[:, None], cost[gate], d_model),
                cmap="RdBu",
                vmin=-1,
                vmax=1,
                shading="gouraud",
                rasterized=True,
            )
            _lines(axis, numbers[numbers.gate == gate])
            _mark(axis, firing_rate, cost[gate], d_model)
            axis.set(title=GATES[gate], xlabel="tokens attended to", xlim=(shortest, longest), ylim=(0, 1))
        axes[0].set_ylabel("firing rate")
        axes[0].legend(loc="upper left", facecolor="white", frameon=True, framealpha=0.9, edgecolor="none")
        bar = figure.colorbar(image, ax=axes, extend="min", pad=0.01)
        bar.set_label("FLOPs saved, of attention always on")
        return save(figure, out, "break_even", numbers)


def skipped(length: Any, d_model: int, *, projections: bool) -> Any:
    """FLOPs that a block which does not fire leaves out at L tokens: `4 D L`, and `4 D^2` with its projections."""
    return 4 * d_model * (length + d_model * projections)


def saving(length: Any, rate: Any, gate_flops: float, d_model: int) -> Any:
    """`((1 - f)(4 D L + 4 D^2) - C_gate) / (4 D L + 8 D^2)`: the part saved of a block that is always on."""
    kept = (1 - rate) * skipped(length, d_model, projections=True) - gate_flops
    return kept / (skipped(length, d_model, projections=True) + 4 * d_model**2)


def break_even(rate: Any, gate_flops: float, d_model: int, *, projections: bool) -> Any:
    """Tokens L at which `(1 - f) skipped(L) = C_gate`, not below 0; infinite at rate 1."""
    with np.errstate(divide="ignore"):
        length = gate_flops / (4.0 * d_model * (1 - np.asarray(rate, dtype=float)))
    return np.maximum(0.0, length - d_model * projections)


def thresholds(cost: Mapping[str, float], d_model: int) -> pd.DataFrame:
    """Break-even lengths by gate, by what is counted, and by firing rate in steps of 0.005."""
    rate = np.arange(200) / 200
    tables = [
        pd.DataFrame(
            {
                "gate": gate,
                "counted": counted,
                "gate_flops": cost[gate],
                "firing_rate": rate,
                "tokens": break_even(rate, cost[gate], d_model, projections=counted == "projections"),
            }
        )
        for gate in GATES
        for counted in COUNTED
    ]
    return pd.concat(tables, ignore_index=True)


def _lines(axis: Axes, numbers: pd.DataFrame) -> None:
    for counted, line, color in zip(COUNTED, ("--", "-"), (COLORS[4], COLORS[6]), strict=True):
        part = numbers[numbers.counted == counted]
        axis.plot(part.tokens, part.firing_rate, line, color=color, label=COUNTED[counted])
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(base=4))
    axis.xaxis.set_major_formatter(FuncFormatter(_tokens))


def _mark(axis: Axes, rate: float, gate_flops: float, d_model: int) -> None:
    """The break-even at the marked rate, both ways of counting, in words."""
    first, second = (float(break_even(rate, gate_flops, d_model, projections=p)) for p in (False, True))
    axis.plot([first], [rate], "o", color=COLORS[4], markeredgecolor="black", zorder=3)
    text = (
        f"at {rate:g}: {first:,.0f}\nor {second:,.0f} tokens" if second else f"at {rate:g}: {first:,.0f}\nor any length"
    )
    right = first > 4 * d_model
    axis.annotate(
        text,
        (first, rate),
        xytext=(-8 if right else 8, 12),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=7,
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
    )


def _tokens(value: float, _: int | None = None) -> str:
    if value >= 1 << 20:
        return f"{value / (1 << 20):g}M"
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"
