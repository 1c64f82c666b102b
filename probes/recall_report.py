"""Tables of references that need no training: all tasks at a glance, and where load tells two memories apart.

A reference's mean is taken in closed form (or by quadrature) where its task has one, and sampled otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from figures._readers import auc_over_octaves, l90
from probes.splits import evaluation_blocks
from probes.tasks.mqar import abstaining_accuracy
from probes.tasks.recall import RecallTask

if TYPE_CHECKING:
    from probes.task import Task

LARGEST_TABLE = 2**22
"""Entries of a predictive table beyond which accuracy is not sampled."""


@dataclass(frozen=True)
class Value:
    """A reference's mean per scored token: log-loss in nats, over Bayes' in nats, and accuracy (None: not known).

    `error` is the standard error over sequences of the log-loss, None for a closed form. A bound has no accuracy of
    its own here.
    """

    reference: str
    log_loss: float
    excess: float
    accuracy: float | None
    error: float | None
    is_bound: bool


def values(task: Task, sequences: int = 64, seed: int = 0) -> list[Value]:
    """Every reference of a task; closed forms where only answers are scored, else `sequences` test sequences."""
    closed = {}
    if isinstance(task, RecallTask) and task.chosen.supervise == "scored":
        closed = task.expectations()
    references = task.references()
    found: dict[str, tuple[float, float | None, float | None]] = {
        name: (closed[name].log_loss, closed[name].accuracy, None) for name in references if name in closed
    }
    missing = [name for name in references if name not in closed]
    if missing:
        batch = evaluation_blocks(task, seed, "test", sequences)[0]
        count = batch.scored.sum(1).double()
        scored = int(count.sum())
        for name in missing:
            loss = -references[name].log_prob(batch).sum(1)
            mean = float(loss.sum() / count.sum())
            residual = loss - mean * count
            error = math.sqrt(float((residual**2).sum()) / (len(loss) * (len(loss) - 1))) / float(count.mean())
            accuracy = None
            if not references[name].is_bound and scored * task.vocab_size <= LARGEST_TABLE:
                table = references[name].log_predictive(batch)
                accuracy = None if table is None else float(table.exp().amax(1).mean())
            found[name] = mean, accuracy, error
    bayes = found["bayes"][0]
    return [
        Value(name, found[name][0], found[name][0] - bayes, found[name][1], found[name][2], reference.is_bound)
        for name, reference in references.items()
    ]


class Comparison(NamedTuple):
    """Accuracies of abstaining memories of two sizes at one load, their difference, and what the load is for them."""

    load: int
    small: float
    large: float
    gap: float
    regime: str


def compare(
    small: int, large: int, *, later: int = 0, loads: Iterable[int] = ()
) -> tuple[list[Comparison], Comparison]:
    """The accuracy gap of two memories over the load `N`, and its peak, which is at `N = d2 - s`.

    `clip((d2 - s)/N, 0, 1) - clip((d1 - s)/N, 0, 1)` for `s = later` pairs after the ones asked for: 0 up to `d1 - s`,
    at most `1 - (d1 - s)/(d2 - s)`, `(d2 - d1)/N` beyond. ValueError unless `1 <= small < large` and `large > later`.
    """
    if not 1 <= small < large:
        raise ValueError(
            f"--compare {small},{large}: two sizes of memory, the smaller first; nearest is {small},{small + 1}"
        )
    if large <= later:
        raise ValueError(
            f"--compare {small},{large}: {later} later pairs fill both memories; nearest is {small},{later + 1}"
        )
    peak = large - later
    grid = set(loads) or {2**octave for octave in range(math.ceil(math.log2(8 * large)) + 1)}
    rows = [_compared(load, small, large, later) for load in sorted(grid | {peak, max(1, small - later)})]
    return rows, _compared(peak, small, large, later)


def _compared(load: int, small: int, large: int, later: int) -> Comparison:
    low, high = abstaining_accuracy(small, load, later), abstaining_accuracy(large, load, later)
    return Comparison(load, low, high, high - low, "tells apart" if high > low else "both hold all")


def regime_columns(task: Task, state_bytes: int | None) -> dict[str, Any]:
    """Whether a task's load lies in the regime of a state's size: `regime.load`, `regime.slots`, `regime.inside`.

    `load` is what must be held, in pairs or tokens; `slots` is how many of them the state's bits could hold at the
    bits that one takes; the load is inside where it is larger, so that the size of the state limits recall. A state
    of floats has far more bits than a model uses: outside, the size proves nothing. Empty where a task has no load.
    """
    bits = task.slot_bits() if isinstance(task, RecallTask) else 0.0
    if not isinstance(task, RecallTask) or not bits or state_bytes is None:
        return {}
    load, slots = task.capacity(), math.floor(8 * state_bytes / bits)
    return {"regime.load": load, "regime.slots": slots, "regime.inside": load > slots}


def robustness_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """L90 and AUC of a row's accuracy over the gap, and over the length where longer sequences were scored.

    `robustness.gap.L90`: the longest gap `2^label` whose accuracy is at least 0.9 of the shortest gap's;
    `robustness.gap.AUC`: mean accuracy over the octaves covered. `robustness.length.*` likewise over multiples of the
    length, 1 being the task's own. Empty where there are not two points.
    """
    gaps, lengths = {}, {1.0: row.get("accuracy")}
    for name, value in row.items():
        parts = name.split(".")
        if parts[:2] == ["slice", "gap_octave"] and parts[3] == "accuracy":
            gaps[2.0 ** int(parts[2])] = value
        elif len(parts) == 3 and parts[1].startswith("length_x") and parts[2] == "accuracy":
            lengths[float(parts[1].removeprefix("length_x"))] = value
    found: dict[str, Any] = {}
    for axis, curve in (("gap", gaps), ("length", lengths)):
        points = sorted((place, value) for place, value in curve.items() if value is not None)
        if len(points) > 1:
            places, accuracies = (np.array(part) for part in zip(*points, strict=True))
            found[f"robustness.{axis}.L90"] = l90(places, accuracies)
            found[f"robustness.{axis}.AUC"] = auc_over_octaves(places, accuracies)
    return found
