"""Oryx trials of a recorded sweep, as its figures read them: which controls were scored, and what came out.

Only controls whose one tensor is `mode` are looked at; per-layer schedules are left to their own analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures import results as recorded

TRAINING = {"random_chunks": "chunked training", "per_sequence": "sequence-level training"}


@dataclass(frozen=True)
class Group:
    """The seeds of one task, architecture and grid point."""

    task: str
    architecture: str
    training: str
    length: int
    rows: pd.DataFrame
    variants: dict[str, dict[str, Any]]
    """Schedule and parameters of the mode, by the variant's name."""
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.architecture.replace('_', ' ')}, {self.training}"

    def mean(self, column: str) -> float:
        """A column's mean over seeds; NaN where it is not recorded."""
        return float(self.rows[column].mean()) if column in self.rows else float("nan")

    def curve(self, name: str) -> np.ndarray:
        """An array of `curves.npz`, mean over seeds."""
        return np.mean([recorded.curves(self.folder, trial)[name] for trial in self.rows.folder], axis=0)


def groups(folder: str | Path, tasks: list[str] | None = None) -> list[Group]:
    """The Oryx trials of a sweep, grouped, in the sweep's order.

    ValueError where there are none, or none of a task asked for.
    """
    table = recorded.read(folder)
    found: list[Group] = []
    points: list[str] = []
    for (task, architecture, point), rows in table.groupby(["task", "architecture", "point"], sort=False):
        if tasks and task not in tasks:
            continue
        trial = recorded.definition(folder, rows.folder.iloc[0])
        if trial["architecture"].get("kind") != "oryx":
            continue
        variants = {
            name: control["mode"]
            for name, control in trial["evaluate"]["variants"].items()
            if set(control) == {"mode"} and "schedule" in control["mode"]
        }
        schedule = trial["train"]["control"].get("mode", {}).get("schedule", "attention")
        training = TRAINING.get(schedule, f"trained on {schedule}")
        length = len(recorded.curves(folder, rows.folder.iloc[0])["position_count"])
        found.append(Group(str(task), str(architecture), training, length, rows, variants, Path(folder)))
        points.append(str(point))
    if not found:
        raise ValueError(f"results: {folder} has no Oryx trial{' of ' + ', '.join(tasks) if tasks else ''}")
    named = [(group.task, group.title) for group in found]
    return [
        replace(group, training=f"{group.training} ({point})") if named.count(name) > 1 else group
        for group, point, name in zip(found, points, named, strict=True)
    ]


def places(schedule: dict[str, Any], length: int) -> list[int]:
    """Positions at which a `switch` schedule changes the mode."""
    at = schedule.get("at", 0.5)
    listed = at if isinstance(at, list) else [at]
    return [round(p * length) if isinstance(p, float) and p != int(p) else int(p) for p in listed]
