"""The whole catalogue at one small scale: parameters, decoding state, FLOPs, and a training step beside attention's.

Every round times one forward and backward pass of each architecture, so that a change in the machine's load meets all
of them; the smallest time over the rounds counts. On a CPU that is the processor's time, which other processes do not
lengthen as they do the clock's. What cannot be built here is left out and named.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from architectures import SpecError, build
from architectures.accounting import row
from probes.catalogue import load_catalogue
from probes.cli_common import console, show_table, table
from probes.environment import describe
from probes.files import whole_file

DIALS: dict[str, Any] = {
    "vocab": 16,
    "length": 256,
    "batch": 16,
    "rounds": 5,
    "threads": 1,
    "device": "cpu",
    "kernels": "auto",
    "only": "",
}
"""`only`: names of architectures separated by commas; all of them if empty."""
LENGTHS = (1024, 65536)


def run(out: Path, **dials: Any) -> list[dict[str, Any]]:
    """Measures, prints the table and writes `architectures.json` into `out`."""
    settings = {**DIALS, **dials}
    before = torch.get_num_threads()
    torch.set_num_threads(settings["threads"])
    try:
        rows = measure(settings)
    finally:
        torch.set_num_threads(before)
    with whole_file(out / "architectures.json") as path:
        where = describe(settings["device"], precision="float32", kernels=settings["kernels"])
        path.write_text(json.dumps({"dials": settings, "environment": where, "rows": rows}, indent=1) + "\n")
    show(rows, settings)
    return rows


def measure(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One row an architecture, `attention` first among them."""
    catalogue = load_catalogue()
    chosen = [name.strip() for name in settings["only"].split(",") if name.strip()] or list(catalogue.architectures)
    names = ["attention", *(name for name in chosen if name != "attention")]
    device = torch.device(settings["device"])
    shape = (settings["batch"], settings["length"])
    tokens = torch.randint(settings["vocab"], shape, generator=torch.Generator().manual_seed(0)).to(device)
    rows, models = [], {}
    for name in names:
        spec = catalogue.make_spec(name, vocab_size=settings["vocab"])
        torch.manual_seed(0)
        try:
            models[name] = build(spec, kernels=settings["kernels"]).to(device)
        except SpecError as error:
            console.print(f"{name} is left out: {error}")
            continue
        rows.append({**row(name, spec, lengths=LENGTHS, flops_length=settings["length"]), "step_seconds": float("inf")})
    for timed in range(settings["rounds"] + 1):
        for record in rows:
            seconds = step(models[record["model"]], tokens)
            if timed:
                record["step_seconds"] = min(record["step_seconds"], seconds)
    for record in rows:
        record["steps_of_attention"] = record["step_seconds"] / rows[0]["step_seconds"]
    return rows


def step(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    """Seconds of one forward and backward pass."""
    clock = time.perf_counter if tokens.is_cuda else time.process_time
    model.zero_grad(set_to_none=True)
    _wait(tokens)
    start = clock()
    output = model(tokens[:, :-1])
    logits = output.logits if hasattr(output, "logits") else output
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    _wait(tokens)
    return clock() - start


def _wait(tokens: torch.Tensor) -> None:
    if tokens.is_cuda:
        torch.cuda.synchronize(tokens.device)


def show(rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Prints the table."""
    cells = [
        [
            record["model"],
            _count(record["parameters"]),
            *(_kilobytes(record[f"state_bytes_{length}"]) for length in LENGTHS),
            _count(record["forward_flops"]),
            f"{1e3 * record['step_seconds']:.1f}",
            f"{record['steps_of_attention']:.2f}",
        ]
        for record in rows
    ]
    states = [f"state {length // 1024}K (kB)" for length in LENGTHS]
    columns = ["architecture", "parameters", *states, "FLOPs a token", "step (ms)", "x attention"]
    title = "{batch} sequences of {length} tokens, {threads} thread(s), {device}, kernels {kernels}".format(**settings)
    show_table(table(columns, cells, right=columns[1:]), title)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _kilobytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e3:,.1f}"
