"""A suite as trials: the learning rates of a grid on the first seed, the best of them on the other seeds.

Finished trials are kept by identity, so that an interrupted sweep goes on where it stopped; an unfinished one goes
on from its last checkpoint. Trials recorded under another environment (device, precision, threads, versions, commit)
are refused unless `mix` is set.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from probes import environment
from probes.catalogue import Catalogue, CatalogueError, load_catalogue
from probes.config import Evaluation, Seeds, Suite, Training, Trial
from probes.controls import with_defaults
from probes.controls_check import Checker, refuse_useless
from probes.device_names import check_device
from probes.executor import Job, run_jobs
from probes.messages import no_folder
from probes.results import frame, read_row, write_table
from probes.settings import by_section, merged, nest
from probes.trial import Labels, Listener, Runtime, folder_name, make_trial

GPU_THREADS = 4
"""CPU threads of a process that has a GPU."""


class SweepError(ValueError):
    """A sweep that cannot run here; one line that says why."""


@dataclass
class Group:
    """The trials of one (task, architecture, grid point): one per learning rate on the first seed, then the rest."""

    labels: Labels
    search: list[Job]
    seeds: list[int]
    rest: list[Job] = field(default_factory=list)
    chosen: float | None = None

    def choose(self, rows: Mapping[str, dict[str, Any]]) -> float | None:
        """The learning rate with the lowest finite validation excess on the first seed; None where all failed."""
        return best_rate(rows[job.trial.identity()] for job in self.search)


def best_rate(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """The learning rate of the row with the lowest finite validation excess; None where there is none."""
    scores = {row["lr"]: _validation(row) for row in rows}
    best = min(scores, key=lambda lr: scores[lr])
    return best if math.isfinite(scores[best]) else None


def _validation(row: Mapping[str, Any]) -> float:
    value = row.get("validation_excess")
    return math.inf if row["status"] != "ok" or value is None or math.isnan(value) else float(value)


def expand(suite: Suite, catalogue: Catalogue, sets: Mapping[str, Mapping[str, Any]] | None = None) -> list[Group]:
    """The suite's groups, with the trials of the learning-rate search. `sets` are laid over the suite's own.

    Raises `CatalogueError`, `TaskError` or `ControlError`.
    """
    if conflict := suite.contradiction():
        raise CatalogueError(conflict[1], conflict[0])
    sets = by_section(sets)
    if "model_seed" in sets["seeds"] and len(suite.seeds) > 1:
        listed = ", ".join(map(str, suite.seeds))
        raise CatalogueError(f"seeds.model_seed = {sets['seeds']['model_seed']}: the suite's seeds ({listed}) set it")
    groups, variants = [], []
    axes = [[(key, value) for value in values] for key, values in suite.grid.items()]
    for point in itertools.product(*axes):
        dials = _dials(suite, dict(point), sets)
        _refuse_beyond_end(_dials(suite, dict(point), {})["train"], sets["train"])
        label = " ".join(f"{key}={json.dumps(value)}" for key, value in point)
        rates = [dials["train"].pop("lr")] if "lr" in dials["train"] else suite.learning_rates
        for task_name in suite.tasks:
            task = catalogue.make_task(task_name, dials["task"])
            kind = catalogue.task_entry(task_name)["kind"]
            target = None
            for name in suite.architectures:
                spec = catalogue.make_spec(name, dials["arch"], vocab_size=task.vocab_size, head=task.head)
                labels = Labels(task_name, name, label)
                if suite.match is not None:
                    from architectures.accounting.match import matched

                    target = target or spec
                    found = matched(spec, target, suite.match, task.length)
                    spec, labels = found.spec, replace(labels, matched=suite.match, residual=found.residual)
                recipe, scoring = with_defaults(spec, dials["train"], dials["evaluate"])
                evaluate = Evaluation(**scoring)
                variants.append(Checker(task, spec).check(Training(**recipe), evaluate))

                def job(
                    lr: float,
                    seed: int,
                    spec=spec,
                    labels=labels,
                    task=task,
                    kind=kind,
                    recipe=recipe,
                    evaluate=evaluate,
                    given=dials["seeds"],
                ):
                    seeds = Seeds(**{"data_seed": seed, "model_seed": seed, **given})
                    train = Training(**{**recipe, "lr": lr})
                    return Job(make_trial(kind, task, spec, train, evaluate, seeds), labels)

                first, *others = suite.seeds
                group = Group(labels, [job(lr, first) for lr in rates], others)
                group.rest = [job(lr, seed) for lr in rates for seed in others]
                groups.append(group)
    refuse_useless(variants)
    return groups


def _refuse_beyond_end(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """CatalogueError for a warm-up or evaluations beyond the end of training; a suite that is shortened from outside
    keeps its own, which end with it."""
    given_too = [key for key in ("warmup", "evaluations") if key in given]
    found = Training(**own).beyond_end() or Training(**{**own, **given}).beyond_end(given_too)
    if found:
        raise CatalogueError(found[1], ("train", found[0]))


def _dials(suite: Suite, point: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    own = {"task": suite.task, "arch": suite.arch, "train": suite.train, "evaluate": suite.evaluate, "seeds": {}}
    at_point = nest(point, "grid ")
    return {
        section: merged(merged(values, at_point.get(section, {})), sets.get(section, {}))
        for section, values in own.items()
    }


def run(
    suite: str | Suite,
    *,
    out: Path | str = "runs",
    name: str | None = None,
    device: str = "cpu",
    precision: str | None = None,
    kernels: str = "auto",
    workers: int | None = None,
    config: Path | None = None,
    sets: Mapping[str, Mapping[str, Any]] | None = None,
    mix: bool = False,
    listener: Listener | None = None,
    devices: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Runs a suite into `out/NAME` and returns its table, one row a trial (schema in `probes.results`).

    On a CUDA device the engine (`probes.engine`) trains packs of trials at once; `devices` (`cuda:0`, `cuda:1`, ...)
    spreads them over several, one process each, and takes the place of `device`.

    Raises `CatalogueError` for a device that is not here, `SweepError` where the folder is in use, or holds trials of
    another environment and `mix` is not set.
    """
    if devices is not None and not devices:
        raise CatalogueError("devices is empty; leave it out for `device`, or name some as 'cuda:0'")
    devices = list(devices or [device])
    for each in devices:
        check_device(each, "device ")
    catalogue = load_catalogue(config)
    if isinstance(suite, str):
        name, suite = name or suite, catalogue.suite(suite)
    if name and (wrong := no_folder(name)):
        raise CatalogueError(f"name = {wrong}")
    groups = expand(suite, catalogue, sets)
    device = devices[0]
    folder = Path(out) / (name or "suite")
    runtime = Runtime.on(device, precision, kernels)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        rows = _run_groups(groups, folder, runtime, devices, workers, mix, listener)
        table = _table(groups, rows)
        write_table(table, folder / "results.parquet")
    return table


def _run_groups(
    groups: list[Group],
    folder: Path,
    runtime: Runtime,
    devices: list[str],
    workers: int | None,
    mix: bool,
    listener: Listener | None,
) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    jobs = {job.trial.identity(): job for group in groups for job in [*group.search, *group.rest]}
    for identity, job in jobs.items():
        found = folder / "trials" / folder_name(job.trial, job.labels)
        if (found / "result.json").exists():
            row = read_row(found)
            if row["status"] != "failed":
                rows[identity] = row
    for group in groups:
        wanted = [job for job in group.search if job.trial.identity() not in rows]
        if not wanted:
            _keep_chosen(group, rows)
    waiting = {id(group): sum(job.trial.identity() not in rows for job in group.search) for group in groups}
    owner = {job.trial.identity(): group for group in groups for job in group.search}

    def first() -> Iterator[Job]:
        for group in groups:
            yield from (job for job in [*group.search, *_due(group)] if job.trial.identity() not in rows)

    def then(job: Job, row: dict[str, Any]) -> list[Job]:
        identity = job.trial.identity()
        rows[identity] = row
        group = owner.get(identity)
        if group is None:
            return []
        waiting[id(group)] -= 1
        if waiting[id(group)]:
            return []
        _keep_chosen(group, rows)
        return [other for other in _due(group) if other.trial.identity() not in rows]

    workers, threads = _share(workers, len(jobs), runtime)
    _refuse_other_environments(rows, runtime, threads, mix)
    if runtime.device == "cpu":
        run_jobs(list(first()), folder, runtime, workers=workers, threads=threads, listener=listener, then=then)
    else:
        from probes.engine import devices as engine

        engine.run_jobs(list(first()), folder, runtime, devices, threads=threads, listener=listener, then=then)
    return rows


def _share(workers: int | None, jobs: int, runtime: Runtime) -> tuple[int, int]:
    """Processes, and threads of each. On a CPU every core has a process of one thread, whatever `workers` is, so that
    the numbers do not depend on it; a GPU's process has as many threads on any host."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if runtime.device != "cpu":
        return 1, min(cores, GPU_THREADS)
    workers = max(1, cores if workers is None else workers)
    return min(workers, max(1, jobs)), 1


def _keep_chosen(group: Group, rows: Mapping[str, dict[str, Any]]) -> None:
    group.chosen = group.choose(rows)


def _due(group: Group) -> list[Job]:
    return [] if group.chosen is None else [job for job in group.rest if job.trial.train.lr == group.chosen]


def _refuse_other_environments(rows: Mapping[str, dict[str, Any]], runtime: Runtime, threads: int, mix: bool) -> None:
    if mix:
        return
    here = {**runtime.describe(), "threads": threads}
    for row in rows.values():
        refuse_other_environment(row, here)


def refuse_other_environment(row: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises `SweepError` where a recorded row's environment is not the one described by `here`."""
    recorded = {name: row.get(f"env.{name}") for name in environment.COMPARED}
    found = environment.difference(recorded, dict(here))
    if found is not None:
        raise SweepError(
            f"{row['folder']} was recorded under another environment ({found}); choose another --out, or --mix"
        )


def _table(groups: list[Group], rows: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """One row a trial that ran, in the order of the suite, with what the search chose."""
    listed = []
    for group in groups:
        rates = [job.trial.train.lr for job in group.search]
        for job in [*group.search, *_due(group)]:
            row = rows.get(job.trial.identity())
            if row is None:
                continue
            chosen = job.trial.train.lr == group.chosen
            edge = chosen and len(rates) > 1 and job.trial.train.lr in (min(rates), max(rates))
            listed.append({**row, "chosen": chosen, "lr_at_edge": edge})
    return frame(listed)


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Holds one name in the folder, by default the folder itself. SweepError where another process has it."""
    path = folder / f".{name}"
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(handle.fileno())):
                raise BlockingIOError  # released and taken away between opening and locking
        except OSError:
            raise SweepError(f"another process is writing into {folder}; wait for it or choose another --out") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


__all__ = ["Group", "SweepError", "Trial", "expand", "locked", "run"]
