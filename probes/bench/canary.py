"""Every kernel against its definition in float64 on this machine: errors of outputs and gradients by length.

Two layers of every kind that has kernels are run at each length and precision, and the kernels they would use are
judged on the numbers that pass through (`architectures.kernels.canary`); `kernels` chooses others, as for a run.
Written as `canary.json`, and printed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from architectures import build
from architectures.kernels import Kernels, canary
from architectures.kernels import check as check_kernels
from probes import environment
from probes.bench.train import LAYERS, spec_of, text_of
from probes.files import whole_file
from probes.results import write_json
from probes.trial import PRECISIONS

DIALS: dict[str, Any] = {
    "device": "cuda",
    "kernels": None,
    "precisions": ["bf16", "float32"],
    "lengths": [63, 64, 100, 512],
    "widths": [64, 128],
    "batch": 64,
    "architectures": list(LAYERS),
}


CHOICES = {"precisions": PRECISIONS}


def run(out: Path, **dials: Any) -> None:
    """Judges and writes after every architecture."""
    chosen = {**DIALS, **dials}
    device, kernels = torch.device(chosen["device"]), chosen["kernels"] or "auto"
    check_kernels(kernels)
    for architecture in chosen["architectures"]:
        spec_of(architecture)
    verdicts: dict[str, dict[str, Any]] = {}
    for precision in chosen["precisions"]:
        for architecture in chosen["architectures"]:
            for width in chosen["widths"]:
                for length in chosen["lengths"]:
                    canary.forget()
                    started = time.perf_counter()
                    found = judge(architecture, width, length, chosen["batch"], precision, device, kernels)
                    seconds = time.perf_counter() - started
                    new = [verdict for verdict in found if verdict.line() not in verdicts]
                    verdicts.update({verdict.line(): verdict.as_dict() for verdict in new})
                    for verdict in new:
                        print(verdict.line(), flush=True)
                    print(f"{architecture} {precision} d {width} T {length}: {seconds:.1f} s", flush=True)
            described = environment.describe(str(device), precision="all", kernels=text_of(kernels))
            with whole_file(out / "canary.json") as temporary:
                write_json(temporary, {"environment": described, "verdicts": list(verdicts.values())})


def judge(
    architecture: str,
    width: int,
    length: int,
    batch: int,
    precision: str,
    device: torch.device,
    chosen: Kernels = "auto",
) -> list[canary.Verdict]:
    """The verdicts on one layer stack at one shape."""
    spec = spec_of(architecture, width)
    autocast = PRECISIONS[precision]
    torch.manual_seed(0)
    model = build(spec, kernels=chosen).to(device)
    tokens = torch.randint(16, (batch, length), device=device)

    def run() -> None:
        with torch.no_grad(), torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            model(tokens)

    return canary.settle(run, chosen)
