"""What several devices of one host are worth: as many trials for each, on the first alone and on all.

The time of the whole sweep, with the start of the processes, and that from the first losses heard of to the last; as
ratios to the first device alone. Written as `devices.json`.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from probes import environment, sweep
from probes.config import Suite
from probes.engine.devices import all_devices
from probes.files import whole_file
from probes.results import write_json
from probes.trial import Event

DIALS: dict[str, Any] = {
    "devices": None,
    "precision": None,
    "trials": 16,
    "architecture": "attention",
    "task": {"length": 512, "burn_in": 128, "windows": [8]},
    "arch": {"d_model": 64},
    "train": {"steps": 4000, "batch_size": 32, "evaluations": 4},
    "evaluate": {"validation_sequences": 256, "test_sequences": 1024, "readout_positions": 0},
}


def run(out: Path, **dials: Any) -> None:
    """Runs both sweeps. `trials` are those of each device; they differ in their learning rates."""
    chosen = {**DIALS, **dials}
    devices = chosen["devices"] or all_devices()
    if len(devices) < 2:
        raise ValueError(f"devices: {devices} is one device, at least two are compared")
    runs = []
    for some in (devices[:1], devices):
        runs.append(measure(out, some, chosen))
        print(f"{len(some)} devices, {runs[-1]['trials']} trials: {runs[-1]['whole_seconds']:.1f} s", flush=True)
    report = {
        "environment": environment.describe(devices[0], precision=chosen["precision"] or "default", kernels="auto"),
        "dials": {**chosen, "devices": devices},
        "runs": runs,
        **{kind: runs[1][f"{kind}_seconds"] / runs[0][f"{kind}_seconds"] for kind in ("whole", "training")},
    }
    with whole_file(out / "devices.json") as temporary:
        write_json(temporary, report)
    print(f"{len(devices)} x trials in {report['whole']:.3f} times the time, {report['training']:.3f} training")


def measure(out: Path, devices: list[str], dials: dict[str, Any]) -> dict[str, Any]:
    """One sweep: seconds, and the excess of each trial in nats, in the order of the learning rates."""
    name = f"on{len(devices)}"
    shutil.rmtree(out / name, ignore_errors=True)  # measured anew each time
    count = dials["trials"] * len(devices)
    suite = Suite(
        tasks=["two_timescale"],
        architectures=[dials["architecture"]],
        task=dials["task"],
        arch=dials["arch"],
        train=dials["train"],
        evaluate=dials["evaluate"],
        learning_rates=[1e-3 * 1.03**index for index in range(count)],
        smoke=True,
    )
    heard: list[float] = []
    started = time.perf_counter()

    def listen(event: Event) -> None:
        heard.append(time.perf_counter())

    table = sweep.run(
        suite,
        out=out,
        name=name,
        device=devices[0],
        devices=devices,
        precision=dials["precision"],
        listener=listen,
    )
    whole = time.perf_counter() - started
    table = table.sort_values("lr") if "lr" in table else table
    return {
        "devices": len(devices),
        "trials": len(table),
        "ok": int((table["status"] == "ok").sum()),
        "whole_seconds": whole,
        "training_seconds": heard[-1] - heard[0] if len(heard) > 1 else whole,
        "before_seconds": heard[0] - started if heard else whole,
        "engine": sorted(table["env.engine"].unique()),
        "excess": table["excess"].tolist(),
    }
