"""The same as the command line, from Python: `probes.run` and `probes.load`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from probes.catalogue import CatalogueError, load_catalogue
from probes.config import Evaluation, Seeds, Training, Trial
from probes.controls import with_defaults
from probes.controls_check import Checker, refuse_useless
from probes.device_names import check_device
from probes.executor import Job
from probes.results import frame, read_row, read_table, single_runs
from probes.settings import by_section, merged
from probes.sweep import locked, refuse_other_environment
from probes.trial import Labels, Listener, Result, Runner, Runtime, folder_name, make_trial, read


@dataclass(frozen=True)
class Sweep:
    """A recorded sweep: its folder and its table (schema in `probes.results`)."""

    folder: Path
    table: pd.DataFrame

    def results(self) -> list[Result]:
        """The trials of the table, in its order, with their curves and models."""
        return [read(self.folder / "trials" / name) for name in self.table["folder"]]


def run(
    task: str,
    architecture: str,
    *,
    out: Path | str = "runs",
    seed: int = 0,
    device: str = "cpu",
    precision: str | None = None,
    kernels: str = "auto",
    config: Path | None = None,
    sets: Mapping[str, Mapping[str, Any]] | None = None,
    mix: bool = False,
    listener: Listener | None = None,
) -> Result:
    """Trains one architecture on one task and returns the scored trial, written below `out/trials`.

    `task` and `architecture` are names of the catalogue or plug-ins; `sets` maps a section (`task`, `arch`, `train`,
    `evaluate`, `seeds`) to dials, nested as in a spec. `seed` is both the data's and the model's, unless `sets` says
    otherwise. A trial that `out` already holds is returned as recorded.

    Raises `CatalogueError` (also for a device that is not here), `TaskError`, `ControlError`, `SweepError`
    (recorded under another environment and `mix` not set).
    """
    check_device(device, "device ")
    catalogue = load_catalogue(config)
    dials = by_section(sets)
    made = catalogue.make_task(task, dials["task"])
    spec = catalogue.make_spec(architecture, dials["arch"], vocab_size=made.vocab_size, head=made.head)
    seeds = Seeds(**merged({"data_seed": seed, "model_seed": seed}, dials["seeds"]))
    kind = catalogue.task_entry(task)["kind"]
    if beyond := Training(**dials["train"]).beyond_end():
        raise CatalogueError(beyond[1])
    train, evaluate = with_defaults(spec, dials["train"], dials["evaluate"])
    trial = make_trial(kind, made, spec, Training(**train), Evaluation(**evaluate), seeds)
    refuse_useless([Checker(made, spec).check(trial.train, trial.evaluate)])
    labels = Labels(task, architecture)
    runtime = Runtime.on(device, precision, kernels)
    folder = Path(out)
    (folder / ".partial").mkdir(parents=True, exist_ok=True)
    with locked(folder / ".partial", trial.identity() + ".lock"):
        done = folder / "trials" / folder_name(trial, labels)
        row = read_row(done) if (done / "result.json").exists() else None
        if row is not None and row["status"] != "failed":
            if not mix:
                refuse_other_environment(row, runtime.describe())
        else:
            _run(trial, labels, runtime, folder, listener)
    return read(done)


def _run(trial: Trial, labels: Labels, runtime: Runtime, folder: Path, listener: Listener | None) -> None:
    if runtime.device == "cpu":
        Runner(trial, labels, runtime, folder, listener).run()
        return
    import torch

    from probes.engine import jobs as engine

    engine.run_jobs([Job(trial, labels)], folder, runtime, threads=torch.get_num_threads(), listener=listener)


def load(folder: Path | str) -> Result | Sweep:
    """A recorded trial, a recorded sweep, or the single runs of an `--out` folder, by their folder.

    Raises FileNotFoundError where the folder is neither.
    """
    folder = Path(folder)
    if (folder / "trial.json").exists():
        return read(folder)
    if (folder / "results.parquet").exists():
        return Sweep(folder, read_table(folder))
    rows = single_runs(folder)
    if rows:
        return Sweep(folder, frame(rows))
    raise FileNotFoundError(f"{folder}: neither a trial (trial.json), a sweep (results.parquet) nor runs (trials/)")
