"""`fastslow bayes`: the exact references of a task on sampled sequences. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probes.catalogue import CatalogueError, load_catalogue, parse_sets
from probes.cli_common import number, places, show_table, table
from probes.settings import nest
from probes.strict_yaml import YamlError, load_value

if TYPE_CHECKING:
    from probes.scoring import Estimate, Sums
    from probes.task import Task


def show(name: str, sets: list[str], *, sequences: int, seed: int, config: Path | None) -> None:
    """Prints the task's dials, and each reference's nats per token, excess and accuracy with standard errors."""
    task = load_catalogue(config).make_task(name, _task_dials(sets))
    scores = score(task, sequences, seed)
    show_table(table(["dial", "value"], [[key, _value(value)] for key, value in task.dials().items()]), name)
    rows = []
    for reference, sums in scores.items():
        accuracy = sums.accuracy()
        rows.append(
            [
                _label(reference, sums),
                number(*_nats(sums)),
                "0" if reference == "bayes" else number(*sums.excess()),
                "–" if accuracy is None else number(*accuracy),
            ]
        )
    columns = ["reference", "nats per token", "nats over bayes", "accuracy"]
    show_table(table(columns, rows, right=columns[1:]), _title(sequences, seed))
    if hasattr(task, "hmm"):
        from filters.diagnostics import diagnose

        found = diagnose(task.hmm, _width(task), sequences=min(sequences, 64), seed=seed)
        shown = table(["diagnostic", "value"], [[key, _value(value)] for key, value in found.items()])
        show_table(shown, f"{name}: whether it tells a window from a carried state")


def show_sweep(name: str, axis: str, sets: list[str], *, sequences: int, seed: int, config: Path | None) -> None:
    """Prints one row a value of a dial: Bayes in nats per token, and the excess of each reference."""
    key, values = read_axis(axis)
    catalogue, given = load_catalogue(config), _task_dials(sets)
    found, tasks = [], []
    for value in values:
        dials = nest({**{f"task.{dial}": setting for dial, setting in given.items()}, key: value}, "--sweep ")["task"]
        tasks.append(catalogue.make_task(name, dials))
        found.append(score(tasks[-1], sequences, seed))
    rows = [_estimates("bayes, nats per token", [_nats(scores["bayes"]) for scores in found])]
    for reference in dict.fromkeys(reference for scores in found for reference in scores if reference != "bayes"):
        excess = [scores[reference].excess() if reference in scores else None for scores in found]
        label = _label(reference, next(scores[reference] for scores in found if reference in scores))
        rows.append(_estimates(label, excess))
    rows.extend(_timescales(tasks, seed))
    columns = [key, *map(_value, values), "largest s.e."]
    show_table(table(columns, rows, right=columns[1:]), f"{name}: nats over bayes; {_title(sequences, seed)}")


def _estimates(label: str, values: Sequence[Estimate | None]) -> list[str]:
    """The means and the largest standard error, with as many digits as show two of that."""
    largest = max(one.se for one in values if one is not None)
    digits = places(largest)
    return [label, *(number(one and one.mean, digits=digits) for one in values), number(largest, digits=digits)]


def show_all(*, sequences: int, seed: int, config: Path | None) -> None:
    """Prints one row a task and reference of the catalogue: nats per token, over Bayes, and accuracy.

    Closed forms where a task has them, the others sampled on at most `sequences` sequences.
    """
    from probes.recall_report import values

    catalogue = load_catalogue(config)
    rows = []
    for name in catalogue.tasks:
        entry = {key: value for key, value in catalogue.task_entry(name).items() if key != "kind"}
        dials = ", ".join(f"{key} {_value(value)}" for key, value in entry.items())
        for value in values(catalogue.make_task(name), sequences, seed):
            first = value.reference == "bayes"
            rows.append(
                [
                    name if first else "",
                    dials if first else "",
                    f"{value.reference} (bound)" if value.is_bound else value.reference,
                    number(value.log_loss) if value.error is None else number(value.log_loss, value.error),
                    "0" if first else number(value.excess),
                    "–" if value.accuracy is None else number(value.accuracy),
                ]
            )
    columns = ["task", "dials", "reference", "nats per token", "nats over bayes", "accuracy"]
    title = f"closed forms, and means ± standard errors over {sequences} test sequences, seed {seed}"
    show_table(table(columns, rows, right=columns[3:]), title)


def show_comparison(name: str, sizes: str, sets: list[str], *, config: Path | None) -> None:
    """Prints the accuracies of two memories of `small,large` pairs over the load of `mqar`, their gap, and its peak."""
    from probes.recall_report import compare
    from probes.tasks.mqar import Mqar

    task = load_catalogue(config).make_task(name, _task_dials(sets))
    if not isinstance(task, Mqar):
        raise CatalogueError(f"--compare {sizes}: {name!r} is no mqar task; nearest is 'mqar'")
    try:
        small, large = (int(part) for part in sizes.split(","))
    except ValueError:
        raise CatalogueError(f"--compare {sizes}: expected two numbers of pairs, as in 16,64") from None
    try:
        found, peak = compare(small, large, later=task.stored - task.pairs)
    except ValueError as error:
        raise CatalogueError(str(error)) from None
    rows = [[str(row.load), number(row.small), number(row.large), number(row.gap), row.regime] for row in found]
    columns = ["pairs asked for", f"accuracy of {small}", f"accuracy of {large}", "gap", "load"]
    later = f", {task.stored - task.pairs} later pairs" if task.stored > task.pairs else ""
    show_table(table(columns, rows, right=columns[:4]), f"memories of the last {small} and {large} pairs{later}")
    print(f"the gap peaks at {peak.load} pairs: {peak.gap:.4g}")


def score(task: Task, sequences: int, seed: int) -> dict[str, Sums]:
    """Sums of every reference of the task on `sequences` test sequences of a data seed. Raises `BeatenBayes`."""
    from probes.scoring import EvaluationSet, refuse_beaten

    scores = EvaluationSet(task, seed, "test", sequences).score()
    refuse_beaten(task, scores)
    return scores


def read_axis(text: str) -> tuple[str, list[Any]]:
    """`task.overlap=0.1:1.0:10` (ten even steps, both ends included) or `task.overlap=[0.1, 0.5]`.

    Raises `CatalogueError`.
    """
    key, equals, values = text.partition("=")
    key = key.strip()
    usage = f"--sweep {text}: expected task.DIAL=START:STOP:COUNT or task.DIAL=[A, B, ...]"
    if not equals or not key.startswith("task."):
        raise CatalogueError(usage)
    parts = values.split(":")
    try:
        read = [load_value(part) for part in parts] if len(parts) == 3 else load_value(values)
    except YamlError:
        raise CatalogueError(usage) from None
    if len(parts) != 3:
        if not isinstance(read, list) or not read:
            raise CatalogueError(usage)
        return key, read
    if any(isinstance(part, bool) or not isinstance(part, int | float) for part in read):
        raise CatalogueError(usage)
    start, stop, count = read
    if not isinstance(count, int) or count < 2:
        raise CatalogueError(f"--sweep {text}: count {count} is no whole number of 2 or more")
    numbers = np.linspace(start, stop, count)
    if isinstance(start, int) and isinstance(stop, int) and np.array_equal(numbers, np.round(numbers)):
        return key, [int(value) for value in numbers]
    return key, [float(f"{value:.12g}") for value in numbers]


def _timescales(tasks: list[Task], seed: int) -> list[list[str]]:
    """Rows of a sweep over a two-timescale task: discrimination, identification and dwelling times, the verdict."""
    if not all(hasattr(task, "hmm") for task in tasks):
        return []
    from filters import diagnostics

    hmms: list[Any] = [vars(task)["hmm"] for task in tasks]
    measured = [diagnostics.measured_identification_time(hmm, seed=seed) for hmm in hmms]
    told = [
        diagnostics.separation(hmm, _width(task), identified=time, seed=seed)
        for hmm, task, time in zip(hmms, tasks, measured)
    ]
    rates = [diagnostics.switch_rate(hmm) for hmm in hmms]
    rows = {
        "discrimination, nats per token": [number(diagnostics.mean_discrimination(hmm)) for hmm in hmms],
        "identification time from information": [number(diagnostics.identification_time(hmm)) for hmm in hmms],
        "identification time measured": [number(time.mean) for time in measured],
        "dwelling time 1/eps": [number(1 / rate if rate else float("inf")) for rate in rates],
        "tells a window from a carried state": [one.verdict.partition(":")[0] for one in told],
    }
    errors = {"identification time measured": number(max(time.standard_error for time in measured))}
    return [[label, *values, errors.get(label, "")] for label, values in rows.items()]


def _width(task: Task) -> int:
    """The width of the window that a carried state is told from: the task's second, else its last, else 8."""
    windows = vars(task).get("settings", {}).get("windows") or [8]
    return int(windows[1] if len(windows) > 1 else windows[-1])


def _task_dials(sets: list[str]) -> dict[str, Any]:
    given = parse_sets(sets)
    for section, settings in given.items():
        if section != "task":
            key = next(iter(settings))
            raise CatalogueError(f"--set {section}.{key}: bayes trains nothing and takes dials of the task only")
    return given.get("task", {})


def _nats(sums: Sums) -> Estimate:
    from probes.scoring import ratio

    return ratio(sums.nll, sums.count)


def _label(reference: str, sums: Sums) -> str:
    return f"{reference} (bound)" if sums.correct is None else reference


def _title(sequences: int, seed: int) -> str:
    return f"{sequences} test sequences, seed {seed}; mean ± standard error over sequences"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    return str(value)
