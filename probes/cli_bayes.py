"""`fastslow bayes`: the exact references of a task on sampled sequences. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.catalogue import CatalogueError, load_catalogue, parse_sets
from probes.cli_common import console, number, table


def show(name: str, sets: list[str], *, sequences: int, seed: int, config: Path | None) -> None:
    """Prints the task's dials, and each reference's nats per token, excess and accuracy with standard errors."""
    given = parse_sets(sets)
    for section in given:
        if section != "task":
            key = next(iter(given[section]))
            raise CatalogueError(f"--set {section}.{key}: bayes trains nothing and takes dials of the task only")
    task = load_catalogue(config).make_task(name, given.get("task"))

    from probes.scoring import EvaluationSet, ratio

    scores = EvaluationSet(task, seed, "test", sequences).score()
    console.print(table(["dial", "value"], [[key, _value(value)] for key, value in task.dials().items()], title=name))
    rows = []
    for reference, sums in scores.items():
        bound = task.references()[reference].is_bound
        nats, excess, accuracy = ratio(sums.nll, sums.count), sums.excess(), sums.accuracy()
        rows.append(
            [
                f"{reference} (bound)" if bound else reference,
                number(*nats),
                "0" if reference == "bayes" else number(*excess),
                "–" if accuracy is None else number(*accuracy),
            ]
        )
    columns = ["reference", "nats per token", "nats over bayes", "accuracy"]
    title = f"{sequences} test sequences, seed {seed}; mean ± standard error over sequences"
    console.print(table(columns, rows, right=columns[1:], title=title))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    return str(value)
