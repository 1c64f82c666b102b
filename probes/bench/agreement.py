"""Whether trials that train together reach what they reach alone, and what precision does to a score.

The same trials, some architectures and seeds of one task, are trained in four ways: all in one pack of graphs, those
named in `compiled` in a pack of compiled graphs, all in a pack in the other precision, and the first `alone` seeds one
by one with the plain trainer. Every way has the same data and initial weights, so what is left is rounding; it is
judged against the spread over seeds. `gap` is the training loss since the last evaluation but one less the test loss,
nats: about 0 where every batch is fresh. Written as `agreement.json` after each way, and printed.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from architectures import resolve
from probes import environment
from probes.config import Evaluation, Seeds, Training
from probes.engine.jobs import Engine
from probes.engine.programs import Compile
from probes.executor import Job
from probes.files import whole_file
from probes.results import write_json
from probes.tasks import create
from probes.trial import Labels, Runner, Runtime, make_trial

DIALS: dict[str, Any] = {
    "device": "cuda",
    "precision": "bf16",
    "other_precision": "float32",
    "task": "two_timescale",
    "settings": {"length": 128, "burn_in": 32, "windows": [8]},
    "architectures": {
        "attention": {"layers": "attention, attention"},
        "sliding": {"layers": "sliding, sliding"},
        "mamba2": {"layers": "mamba2, mamba2"},
        "gdn": {"layers": "gdn, gdn"},
        "amor_gdn": {"kind": "amor", "layers": "gdn, gdn"},
        "oryx": {"kind": "oryx", "layers": 2},
    },
    "compiled": ["attention", "gdn"],
    "d_model": 64,
    "seeds": 4,
    "alone": 2,
    "train": {"steps": 400, "batch_size": 32, "warmup": 40, "lr": 3e-3, "evaluations": 8},
    "sequences": 1024,
}

CONTROL: dict[str, dict[str, Any]] = {"oryx": {"mode": {"schedule": "random_chunks", "chunk": 16}}}
"""Control tensors that a kind of architecture is trained with."""


def run(out: Path, **dials: Any) -> None:
    """Trains all ways and reports after each."""
    chosen = {**DIALS, **dials}
    found: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}

    def train(way: str, jobs: list[Job], precision: str, compiling: Compile | None) -> None:
        runtime = Runtime(str(torch.device(chosen["device"])), precision)
        folder = out / "trials" / way
        shutil.rmtree(folder, ignore_errors=True)  # measured anew each time
        started = time.perf_counter()
        rows = _alone(jobs, folder, runtime) if compiling is None else _packed(jobs, folder, runtime, compiling)
        seconds[way] = time.perf_counter() - started
        found[way] = rows
        report = {
            "environment": environment.describe(runtime.device, precision=chosen["precision"], kernels="auto"),
            "dials": chosen,
            "seconds": seconds,
            "trials": found,
            "summary": summary(found),
        }
        with whole_file(out / "agreement.json") as temporary:
            write_json(temporary, report)
        for name, row in summary(found).items():
            if way in row:
                print(f"{way} {name}: {row[way]}", flush=True)
        print(f"{way}: {seconds[way]:.1f} s", flush=True)

    everything = _jobs(chosen, range(chosen["seeds"]), list(chosen["architectures"]))
    train("pack", everything, chosen["precision"], "off")
    train("alone", _jobs(chosen, range(chosen["alone"]), list(chosen["architectures"])), chosen["precision"], None)
    if chosen["compiled"]:
        jobs = _jobs(chosen, range(chosen["seeds"]), chosen["compiled"])
        train("compiled", jobs, chosen["precision"], "on")
    if chosen["other_precision"]:
        train(chosen["other_precision"], everything, chosen["other_precision"], "off")


def _jobs(dials: dict[str, Any], seeds: range, names: list[str]) -> list[Job]:
    task = create(dials["task"], dials["settings"])
    count = {"validation_sequences": dials["sequences"], "test_sequences": dials["sequences"]}
    evaluate = Evaluation(**{**count, "readout_positions": 0})
    jobs = []
    for name in names:
        given = dials["architectures"][name]
        spec = resolve({"d_model": dials["d_model"], **given, "vocab_size": task.vocab_size})
        train = Training(**{"control": CONTROL.get(given.get("kind", ""), {}), **dials["train"]})
        for seed in seeds:
            trial = make_trial(dials["task"], task, spec, train, evaluate, Seeds(data_seed=seed, model_seed=seed))
            jobs.append(Job(trial, Labels(dials["task"], name)))
    return jobs


def _packed(jobs: list[Job], out: Path, runtime: Runtime, compiling: Compile) -> dict[str, Any]:
    rows: dict[str, Any] = {}

    def then(job: Job, row: dict[str, Any]) -> list[Job]:
        rows[_name(job)] = _kept(out, row)
        return []

    engine = Engine(out, runtime, compiling=compiling)
    engine.add(jobs)
    engine.run(then)
    return rows


def _alone(jobs: list[Job], out: Path, runtime: Runtime) -> dict[str, Any]:
    return {_name(job): _kept(out, Runner(job.trial, job.labels, runtime, out, None).run()) for job in jobs}


def _name(job: Job) -> str:
    return f"{job.labels.architecture} {job.trial.seeds.model_seed}"


def _kept(out: Path, row: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: row.get(name) for name in ("status", "error", "excess", "env.engine", "folder")}
    if row["status"] == "ok":
        with np.load(out / "trials" / row["folder"] / "curves.npz") as curves:
            kept["train_loss"] = curves["train_loss"].tolist()
        kept["gap"] = kept["train_loss"][-1] - row["nll"]
    return kept


def summary(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By architecture and way: excess of each seed in nats, their standard deviation, the engine, the largest gap,
    and the mean difference from the pack over the same seeds in units of the pack's spread over seeds (`in_sd`) and as
    the largest relative difference of the first training losses (`first_losses`)."""
    architectures = dict.fromkeys(name.rsplit(" ", 1)[0] for name in found["pack"])
    table: dict[str, dict[str, Any]] = {}
    for architecture in architectures:
        table[architecture] = {}
        base = _of(found["pack"], architecture)
        excesses = [row["excess"] for row in base.values()]
        sd = statistics.stdev(excesses) if len(excesses) > 1 else float("nan")
        for way, trials in found.items():
            rows = _of(trials, architecture)
            if not rows:
                continue
            entry: dict[str, Any] = {
                "excess": [round(row["excess"], 5) for row in rows.values()],
                "engine": sorted({row["env.engine"] for row in rows.values()}),
                "status": sorted({row["status"] for row in rows.values()}),
                "gap": max((row.get("gap", float("nan")) for row in rows.values()), key=abs),
            }
            both = [(row, base[name]) for name, row in rows.items() if row["status"] == base[name]["status"] == "ok"]
            if way == "pack":
                entry["sd"] = sd
            elif both:
                shift = statistics.fmean(one["excess"] - other["excess"] for one, other in both)
                entry["in_sd"] = shift / sd if sd else float("nan")
                firsts = [(one["train_loss"][0], other["train_loss"][0]) for one, other in both]
                entry["first_losses"] = max(abs(one - other) / other for one, other in firsts)
            table[architecture][way] = entry
    return table


def _of(rows: dict[str, Any], architecture: str) -> dict[str, Any]:
    return {name: row for name, row in rows.items() if name.rsplit(" ", 1)[0] == architecture}
