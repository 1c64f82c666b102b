"""`fastslow run`, `sweep` and `report`: trials with their progress, and the table of what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import typer

from probes.catalogue import CatalogueError, load_catalogue, parse_sets
from probes.cli_common import check_device, console, number, show_table, table
from probes.cli_gate import print_gates
from probes.cli_progress import Bar
from probes.config import Training
from probes.messages import nearest

if TYPE_CHECKING:
    from probes.trial import Result


def runtime_options(device: str, precision: str | None, kernels: str) -> dict[str, Any]:
    """Device, precision and kernels as `probes.run` takes them. Raises `CatalogueError` for what this machine lacks."""
    from probes.trial import PRECISIONS

    check_device(device)
    if precision is not None and precision not in PRECISIONS:
        raise CatalogueError(f"--precision {precision}: unknown{nearest(precision, PRECISIONS)}")
    return {"device": device, "precision": precision, "kernels": kernels}


def run_trial(
    task: str,
    architecture: str,
    sets: list[str],
    *,
    seed: int,
    out: Path,
    config: Path | None,
    mix: bool,
    runtime: Mapping[str, Any],
) -> Result:
    """Runs one trial, prints its scores and returns it. Exits with 1 where it failed."""
    from probes.api import run

    given = parse_sets(sets)
    with Bar(console, trials=1, finished=0, steps=Training(**given.get("train", {})).steps) as bar:
        result = run(
            task, architecture, out=out, seed=seed, config=config, sets=given, mix=mix, listener=bar, **runtime
        )
    rows = pd.DataFrame([result.row])
    print_rows(rows)
    print_readouts(result.row)
    console.print(str(result.folder), soft_wrap=True)
    _exit_on_failure(rows)
    return result


def run_sweep(
    suite: str,
    sets: list[str],
    *,
    out: Path,
    workers: int | None,
    config: Path | None,
    mix: bool,
    runtime: Mapping[str, Any],
) -> None:
    """Runs or goes on with a suite and prints its table. Exits with 1 where a trial failed."""
    from probes.sweep import expand, run
    from probes.trial import folder_name

    given = parse_sets(sets)
    catalogue = load_catalogue(config)
    groups = expand(catalogue.suite(suite), catalogue, given)
    trials = sum(len(group.search) + len(group.seeds) for group in groups)
    jobs = [job for group in groups for job in [*group.search, *group.rest]]
    folders = {out / suite / "trials" / folder_name(job.trial, job.labels) for job in jobs}
    finished = sum((folder / "result.json").exists() for folder in folders)
    if finished:
        console.print(f"{finished} of {trials} trials found finished in {out / suite}", soft_wrap=True)
    with Bar(console, trials=trials, finished=finished, steps=jobs[0].trial.train.steps) as bar:
        rows = run(suite, out=out, workers=workers, config=config, sets=given, mix=mix, listener=bar, **runtime)
    print_rows(rows)
    console.print(str(out / suite / "results.parquet"), soft_wrap=True)
    _exit_on_failure(rows)


def print_report(folder: Path) -> None:
    """Prints the table of a recorded sweep, or the scores of a recorded trial, from its folder.

    Raises `CatalogueError` where the folder is neither.
    """
    from probes.results import read_row, read_table

    if (folder / "results.parquet").is_file():
        print_rows(read_table(folder))
    elif (folder / "result.json").is_file():
        print_rows(pd.DataFrame([read_row(folder)]))
    else:
        recorded = [path.parent for place in (folder, folder.parent) for path in place.glob("*/results.parquet")]
        raise CatalogueError(f"{folder}: no recorded sweep (results.parquet) or trial here{nearest(folder, recorded)}")


COLUMNS = ("architecture", "seed", "lr", "nats over bayes", "sampled", "accuracy", "behaves like", "parameters")


def print_rows(rows: pd.DataFrame) -> None:
    """By task and grid point: the chosen trials, one line each, then the references on the same sequences."""
    for (task, point), part in rows.groupby(["task", "point"], sort=False, dropna=False):
        chosen = part["chosen"].fillna(False).astype(bool) if "chosen" in part else part["status"] == ""
        shown = part[chosen | (part["status"] != "ok")] if chosen.any() else part
        lines = [_line(row) for _, row in shown.iterrows()]
        title = f"{task} {point}".strip()
        right = ("seed", "lr", "nats over bayes", "sampled", "accuracy", "parameters")
        show_table(table(COLUMNS, lines, right=right), title)
        notes = _notes(shown)
        if notes:
            console.print(*notes, sep="\n", end="\n\n")
        _print_references(shown)
        print_gates(shown)


def _line(row: pd.Series) -> list[str]:
    start = [str(row["architecture"]), str(row["model_seed"]), f"{row['lr']:g}"]
    if row["status"] != "ok":
        return [*start, str(row["status"]), *"–––", "–"]
    return [
        *start,
        number(row["excess"], row["excess_se"]),
        number(row["excess_sampled"], row["excess_sampled_se"]),
        number(row["accuracy"], row["accuracy_se"]),
        str(row["behaves_like"]),
        "–" if pd.isna(row["parameters"]) else f"{int(row['parameters']):,}",
    ]


def _notes(rows: pd.DataFrame) -> list[str]:
    """What a reader must know of a row: failures, leaks, a learning rate at the grid's edge, too short a training."""
    notes = []
    for _, row in rows.iterrows():
        name = f"{row['architecture']}, seed {row['model_seed']}, lr {row['lr']:g}"
        if row["status"] != "ok":
            notes.append(f"{name}: {row['status']}: {row['error']}")
            continue
        if not pd.isna(row["agreement"]) and abs(row["agreement"]) > 4 * row["agreement_se"]:
            gap = number(row["agreement"], row["agreement_se"])
            notes.append(f"{name}: the sampled excess differs from the mean KL by {gap}: has it seen its targets?")
        margin = row.get("reference.receptive_field.margin")
        if margin is not None and margin < -2 * row["reference.receptive_field.margin_se"]:
            gap = number(-margin, row["reference.receptive_field.margin_se"])
            notes.append(f"{name}: better by {gap} than any predictor of its receptive field: does it see beyond it?")
        if row.get("lr_at_edge") is True:
            notes.append(f"{name}: the chosen learning rate is an end of the grid")
        if row.get("still_improving") is True:
            notes.append(f"{name}: still improving at its end; more steps would lower its excess")
    return notes


def print_readouts(row: Mapping[str, Any]) -> None:
    """How much of each exact belief a linear probe of each layer explains; nothing where none was probed."""
    probed: dict[str, list[tuple[int, float]]] = {}
    for column, value in row.items():
        if column.startswith("readout.") and column.endswith(".explained"):
            _, belief, layer, _ = column.split(".")
            probed.setdefault(belief, []).append((int(layer.removeprefix("layer_")), value))
    for belief, layers in probed.items():
        layers.sort()
        lines = [[str(layer), number(row[f"readout.{belief}.layer_{layer}.kl"]), number(v)] for layer, v in layers]
        lines[0][0], lines[-1][0] = "embedding", "final norm"
        columns = ("layer", "nats from the posterior", "explained")
        show_table(table(columns, lines, right=columns[1:]), f"linear probes for the {belief}")


def _print_references(rows: pd.DataFrame) -> None:
    """The task's references, best first. That of an architecture's own receptive field is in the parquet file."""
    ok = rows[rows["status"] == "ok"]
    if ok.empty:
        return
    row = ok.iloc[0]
    lines = []
    for column in rows.columns:
        name = column.removeprefix("reference.").removesuffix(".excess")
        if column != f"reference.{name}.excess" or name == "receptive_field" or pd.isna(row[column]):
            continue
        label = f"{name} (bound)" if row[f"reference.{name}.is_bound"] else name
        excess = number(row[column], row[f"{column}_se"]) if name != "bayes" else "0"
        lines.append((row[column], [label, excess, number(row[f"reference.{name}.accuracy"])]))
    lines.sort(key=lambda line: line[0])
    columns = ("reference", "nats over bayes", "accuracy")
    show_table(table(columns, [line for _, line in lines], right=columns[1:]))


def _exit_on_failure(rows: pd.DataFrame) -> None:
    if (rows["status"] != "ok").any():
        raise typer.Exit(1)
