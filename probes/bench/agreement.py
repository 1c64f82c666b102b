"""Whether trials that train together reach what they reach alone, and what precision does to a score.

The same trials, some architectures and seeds of one task, are trained in four ways: all in one pack of graphs, those
named in `compiled` in a pack of compiled graphs, the first `alone` seeds one by one with the plain trainer, and all in
a pack in the other precision. Every way has the same data and initial weights, so what is left is rounding; it is
judged against the spread over seeds. `gap` is the training loss since the last evaluation but one less the test loss,
nats: about 0 where every batch is fresh. Written as `agreement.json` after each way, and printed.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probes import environment
from probes.catalogue import load_catalogue
from probes.config import Suite
from probes.engine.jobs import Engine
from probes.engine.programs import Compile
from probes.executor import Job
from probes.files import whole_file
from probes.results import write_json
from probes.sweep import expand
from probes.trial import PRECISIONS, Runner, Runtime

DIALS: dict[str, Any] = {
    "device": "cuda",
    "precision": "bf16",
    "other_precision": "float32",
    "task": "two_timescale",
    "settings": {"length": 128, "burn_in": 32, "windows": [8]},
    "architectures": ["attention", "sliding", "mamba2", "gdn", "serial_gdn", "amor_gdn", "oryx_tm"],
    "arch": {},
    "compiled": ["attention", "gdn"],
    "seeds": 4,
    "alone": 2,
    "lr": 3e-3,
    "train": {"steps": 400, "batch_size": 32, "warmup": 40, "evaluations": 4},
    "sequences": 512,
}


CHOICES = {"precision": PRECISIONS, "other_precision": PRECISIONS}


def run(out: Path, **dials: Any) -> None:
    """Trains all ways and reports after each, and after each seed alone."""
    chosen = {**DIALS, **dials}
    compiled = chosen["compiled"] or []
    if extra := [name for name in compiled if name not in chosen["architectures"]]:
        raise ValueError(f"compiled: {extra[0]!r} is none of the architectures {chosen['architectures']}")
    if chosen["alone"] > chosen["seeds"]:
        raise ValueError(f"alone: {chosen['alone']} of {chosen['seeds']} seeds; nearest is {chosen['seeds']}")
    everything = _jobs(chosen, range(chosen["seeds"]), chosen["architectures"])
    device = str(torch.device(chosen["device"]))
    found: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begun:.1f} s] {text}", flush=True)

    def train(way: str, jobs: list[Job], precision: str, compiling: Compile | None) -> None:
        runtime, folder = Runtime(device, precision), out / "trials" / way
        shutil.rmtree(folder, ignore_errors=True)  # measured anew each time
        started = time.perf_counter()
        rows = found.setdefault(way, {})
        for job, row in (
            _alone(jobs, folder, runtime) if compiling is None else _packed(jobs, folder, runtime, compiling)
        ):
            name = f"{job.labels.architecture} {job.trial.seeds.model_seed}"
            rows[name] = _kept(folder, row)
            say(f"{way} {name}: {row['status']}, {row['excess'] if 'excess' in row else row['error']}")
        seconds[way] = seconds.get(way, 0.0) + time.perf_counter() - started
        table = summary(found)
        report = {
            "environment": environment.describe(device, precision=chosen["precision"], kernels="auto"),
            "dials": chosen,
            "seconds": seconds,
            "trials": found,
            "summary": table,
        }
        with whole_file(out / "agreement.json") as temporary:
            write_json(temporary, report)
        for name, entries in table.items():
            if way in entries:
                say(f"{way} {name}: {entries[way]}")

    train("pack", everything, chosen["precision"], "off")
    if compiled:
        train("compiled", _jobs(chosen, range(chosen["seeds"]), compiled), chosen["precision"], "on")
    for seed in range(chosen["alone"]):
        train("alone", _jobs(chosen, range(seed, seed + 1), chosen["architectures"]), chosen["precision"], None)
    if chosen["other_precision"]:
        train(chosen["other_precision"], everything, chosen["other_precision"], "off")


def _jobs(dials: dict[str, Any], seeds: range, names: list[str]) -> list[Job]:
    count = {"validation_sequences": dials["sequences"], "test_sequences": dials["sequences"]}
    suite = Suite(
        tasks=[dials["task"]],
        architectures=names,
        task=dials["settings"],
        arch=dials["arch"],
        train=dials["train"],
        evaluate={**count, "readout_positions": 0},
        learning_rates=[dials["lr"]],
        seeds=list(seeds),
    )
    return [job for group in expand(suite, load_catalogue()) for job in (*group.search, *group.rest)]


def _packed(jobs: list[Job], out: Path, runtime: Runtime, compiling: Compile) -> Iterator[tuple[Job, dict[str, Any]]]:
    engine = Engine(out, runtime, compiling=compiling)
    engine.add(jobs)
    while not engine.idle:
        yield from engine.turn()


def _alone(jobs: list[Job], out: Path, runtime: Runtime) -> Iterator[tuple[Job, dict[str, Any]]]:
    for job in jobs:
        yield job, Runner(job.trial, job.labels, runtime, out, None).run()


def _kept(out: Path, row: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: row.get(name) for name in ("status", "error", "excess", "env.engine", "folder")}
    if row["status"] == "ok":
        with np.load(out / "trials" / row["folder"] / "curves.npz") as curves:
            kept["train_loss"] = curves["train_loss"].tolist()
        kept["gap"] = kept["train_loss"][-1] - row["nll"]
        kept["seconds"], kept["train_seconds"] = row["seconds"], row["train_seconds"]
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
