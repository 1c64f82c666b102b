"""`fastslow run` and `sweep`: trials with their progress, then their table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import typer

from probes.catalogue import MODEL_PREFIXES, CatalogueError, load_catalogue, parse_sets
from probes.cli_common import console
from probes.cli_progress import Bar
from probes.cli_report import print_rows
from probes.config import Training
from probes.device_names import check_device
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


def check_models(specs: Iterable[Mapping[str, Any]], kernels: str, device: str) -> None:
    """Builds once each model that has parts from outside, so that what cannot be built is said before anything runs.

    Raises `SpecError`, also for kernels that no operation has, or that cannot run on the device.
    """
    import torch

    from architectures import build
    from architectures.kernels import check

    check(kernels, torch.device(device).type)
    with torch.random.fork_rng():
        for text in dict.fromkeys(json.dumps(spec, sort_keys=True) for spec in specs):
            if any(f'"{prefix}' in text for prefix in MODEL_PREFIXES):
                build(json.loads(text), kernels=kernels)


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
    catalogue = load_catalogue(config)
    made = catalogue.make_task(task, given.get("task"))
    spec = catalogue.make_spec(architecture, given.get("arch"), vocab_size=made.vocab_size, head=made.head)
    check_models([spec], runtime["kernels"], runtime["device"])
    with Bar(console, trials=1, finished=0, steps=Training(**given.get("train", {})).steps) as bar:
        result = run(
            task, architecture, out=out, seed=seed, config=config, sets=given, mix=mix, listener=bar, **runtime
        )
    rows = pd.DataFrame([result.row])
    print_rows(rows)
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
    from probes.controls_check import ControlError
    from probes.results import read_row
    from probes.sweep import expand, run
    from probes.task import TaskError
    from probes.trial import folder_name

    given = parse_sets(sets)
    catalogue = load_catalogue(config)
    try:
        groups = expand(catalogue.suite(suite), catalogue, given)
    except (CatalogueError, ControlError, TaskError) as error:
        raise CatalogueError(catalogue.blame(suite, error)) from None
    trials = sum(len(group.search) + len(group.seeds) for group in groups)
    jobs = [job for group in groups for job in [*group.search, *group.rest]]
    device = runtime.get("devices", [runtime["device"]])[0]
    check_models((job.trial.architecture for job in jobs), runtime["kernels"], device)
    folders = {out / suite / "trials" / folder_name(job.trial, job.labels) for job in jobs}
    recorded = [read_row(folder) for folder in sorted(folders) if (folder / "result.json").exists()]
    finished = sum(row["status"] != "failed" for row in recorded)
    if finished:
        console.print(f"{finished} of {trials} trials found finished in {out / suite}", soft_wrap=True)
    with Bar(console, trials=trials, finished=finished, steps=jobs[0].trial.train.steps) as bar:
        rows = run(suite, out=out, workers=workers, config=config, sets=given, mix=mix, listener=bar, **runtime)
    print_rows(rows)
    console.print(str(out / suite / "results.parquet"), soft_wrap=True)
    _exit_on_failure(rows)


def _exit_on_failure(rows: pd.DataFrame) -> None:
    if ((rows["status"] != "ok") | (rows["error"] != "")).any():
        raise typer.Exit(1)
