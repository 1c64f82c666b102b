"""The fast-slow system: the fall onto the slow manifold, and a gap to the reduced solution that shrinks like eps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures._filtering import positive
from figures.style import COLORS, GREY, PAGE, new, save, style
from filters.fast_slow import FastSlow

DIALS: dict[str, Any] = {
    "epsilons": [0.2, 0.05, 0.0125],
    "a": -0.5,
    "b": 1.0,
    "c": 1.0,
    "d": -1.0,
    "slow": 1.0,
    "fast": -1.0,
    "horizon": 2.0,
}
ABOUT: dict[str, str] = {
    "epsilons": "timescale ratios of x' = a x + b y, eps y' = c x + d y",
    "a": "of the slow variable on itself",
    "b": "of the fast one on the slow",
    "c": "of the slow one on the fast",
    "d": "of the fast variable on itself, below 0",
    "slow": "where x starts",
    "fast": "where y starts",
    "horizon": "time that is drawn",
}


def draw(
    out: Path,
    *,
    epsilons: list[float] | None = None,
    a: float = -0.5,
    b: float = 1.0,
    c: float = 1.0,
    d: float = -1.0,
    slow: float = 1.0,
    fast: float = -1.0,
    horizon: float = 2.0,
) -> list[Path]:
    """Draws the fast variable, its distance from the manifold, and the largest gap of the slow one with its bound.

    Reference: State-space book, Theorem 14.1 and exercise 14.4. `filters.fast_slow.NotHurwitz` unless d < 0.
    """
    chosen = sorted(positive("epsilons", DIALS["epsilons"] if epsilons is None else epsilons), reverse=True)
    positive("horizon", horizon)
    system = FastSlow(*(np.array([[value]]) for value in (a, b, c, d)))
    times = np.linspace(0, horizon, 401)
    reduced = system.reduced([slow], times)
    rows = [["reduced", 0.0, t, y, 0.0, x, 0.0] for t, x, y in zip(times, reduced.slow[:, 0], reduced.fast[:, 0])]
    for epsilon in chosen:
        exact = system.solve(epsilon, [slow], [fast], times)
        bound = system.bound(epsilon, [slow], [fast], times).layer
        for t, x, y, layer, most in zip(times, exact.slow[:, 0], exact.fast[:, 0], exact.layer[:, 0], bound):
            rows.append(["exact", epsilon, t, y, layer, x, most])
    names = ["solution", "epsilon", "time", "fast", "layer", "slow", "layer_bound"]
    numbers = pd.DataFrame(rows, columns=names)
    ladder = np.geomspace(chosen[-1] / 10, chosen[0], 9)
    gaps = [np.abs(system.solve(e, [slow], [fast], times).slow - reduced.slow).max() for e in ladder]
    bounds = [system.bound(e, [slow], [fast], times).gap for e in ladder]
    gap_rows = pd.DataFrame({"solution": "gap", "epsilon": ladder, "gap": gaps, "gap_bound": bounds})
    with style():
        figure = new(PAGE, 2.5)
        left, middle, right = figure.subplots(1, 3)
        for epsilon, color in zip(chosen, COLORS):
            part = numbers[numbers.epsilon == epsilon]
            left.plot(part.time, part.fast, color=color, label=f"ε = {epsilon:g}")
            middle.plot(part.time / epsilon, np.abs(part.layer), color=color, label=f"ε = {epsilon:g}")
        left.plot(times, reduced.fast[:, 0], "k--", label="slow manifold")
        left.set(xlabel="time", title="fast variable y")
        left.legend(loc="lower right")
        middle.set(yscale="log", xlabel="time / ε", xlim=(0, 10), title="distance |y + D⁻¹Cx|")
        middle.set_ylim(bottom=1e-3)
        right.loglog(ladder, gaps, "o-", color=COLORS[0], label="largest |x − xᵣ|")
        right.loglog(ladder, bounds, "--", color=COLORS[1], label="the theorem's bound")
        right.loglog(ladder, gaps[0] * ladder / ladder[0], ":", color=GREY, label="slope 1")
        right.set(xlabel="ε", title="gap of the slow variable")
        right.legend(loc="upper left")
        return save(figure, out, "fast_slow_layer", pd.concat([numbers, gap_rows], ignore_index=True))
