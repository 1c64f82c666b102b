"""The time of a training step on one device, alone and in packs, and where it goes.

For every architecture and shape: milliseconds a step of one trial, run eagerly by the plain trainer, as one graph, and
compiled under the graph; then per trial in packs; warm-up apart, memory a trial, the fraction of the time in which the
GPU had a kernel running, and the kernels that take longest. Written as `train.json`, `train.png` and `train.svg`.
`kernels` chooses backends as for a run, to time one beside another: `--set kernels={short_conv_silu: triton}`.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from architectures import build, resolve
from architectures.kernels import Kernels, canary
from architectures.kernels import check as check_kernels
from probes import environment
from probes.config import Training
from probes.engine.adam import Update, update
from probes.engine.feed import Feed
from probes.engine.pack import STREAMS, WINDOW, launch, spread
from probes.engine.programs import compiled, run_once
from probes.engine.step import Loss, StepTrainer, supervised_loss
from probes.files import whole_file
from probes.results import write_json
from probes.splits import split_generator
from probes.task import Task
from probes.tasks import create
from probes.training import Trainer
from probes.trial import PRECISIONS

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"task": "mqar", "settings": {"vocab_size": 256, "length": 64, "pairs": 8}, "batch": 64, "d_model": 64},
    "wide": {
        "task": "mqar",
        "settings": {"vocab_size": 8192, "length": 256, "pairs": 64},
        "batch": 256,
        "d_model": 128,
    },
    "long": {
        "task": "two_timescale",
        "settings": {"regimes": 4, "vocab": 16, "length": 512, "burn_in": 0},
        "batch": 64,
        "d_model": 128,
    },
    "comparison": {
        "task": "two_timescale",
        "settings": {"regimes": 4, "vocab": 12, "length": 512, "burn_in": 128},
        "batch": 16,
        "d_model": 64,
    },
    "tiny": {"task": "mqar", "settings": {"vocab_size": 32, "length": 16, "pairs": 2}, "batch": 4, "d_model": 16},
}
"""Shapes by name: B 64, T 64, V 256, d 64; B 256, T 256, V 8192, d 128 with 64 scored positions; B 64, T 512, V 16,
d 128 with every position scored; that of the suite `two_timescale_512`; and one for trying out."""

LAYERS = {
    "attention": "[attention]*2",
    "gdn": "[gdn]*2",
    "mamba2": "[mamba2]*2",
    "sliding": "[sliding]*2",
    "delta": "[delta]*2",
    "kda": "[kda]*2",
    "gla": "[gla]*2",
    "rglru": "[rglru]*2",
}
"""Two-layer models by name; a benchmark may also be given a layer pattern."""

PROFILED = 4
"""Steps of every member under the profiler, which takes long over many events."""

DIALS: dict[str, Any] = {
    "device": "cuda",
    "precision": "bf16",
    "kernels": None,
    "shapes": ["small", "wide", "long"],
    "architectures": ["attention", "gdn", "mamba2"],
    "packs": [1, 4, 16],
    "streams": [STREAMS],
    "graph": True,
    "compiled": True,
    "eager": True,
    "options": None,
    "steps": 96,
}


CHOICES = {"shapes": SHAPES, "precision": PRECISIONS}


def run(out: Path, **dials: Any) -> None:
    """Measures every architecture at every shape; the file is written anew after each."""
    chosen = {**DIALS, **dials}
    device = torch.device(chosen["device"])
    kernels = chosen["kernels"] = chosen["kernels"] or "auto"
    check_kernels(kernels)
    for architecture in chosen["architectures"]:
        spec_of(architecture)
    found: list[dict[str, Any]] = []
    for shape in chosen["shapes"]:
        for architecture in chosen["architectures"]:
            found.append(measure(architecture, shape, device, chosen))
            report = {
                "environment": environment.describe(
                    str(device), precision=chosen["precision"], kernels=text_of(kernels)
                ),
                "dials": chosen,
                "measurements": found,
            }
            with whole_file(out / "train.json") as temporary:
                write_json(temporary, report)
            print(json.dumps({k: v for k, v in found[-1].items() if k not in ("kernels", "canary")}), flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    draw(found, out)


def measure(architecture: str, shape: str, device: torch.device, dials: dict[str, Any]) -> dict[str, Any]:
    """All numbers of one architecture at one shape. Times are milliseconds a step of a trial, medians of blocks."""
    point = SHAPES[shape]
    task = create(point["task"], point["settings"])
    spec = spec_of(architecture, point["d_model"], task.vocab_size)
    autocast = PRECISIONS[dials["precision"]]
    blocks = max(2, round(dials["steps"] / WINDOW))
    train = Training(**{"steps": 100_000, "batch_size": point["batch"]})
    found: dict[str, Any] = {"architecture": architecture, "shape": shape}

    def model(seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return build(spec, kernels=dials["kernels"]).to(device)

    verdicts = check(model(), task, train, device, autocast, dials["kernels"])
    found["canary"] = [verdict.as_dict() for verdict in verdicts]
    if dials["eager"]:
        trainer = Trainer(model(), task, train, data_seed=0, device=device, autocast=autocast)
        trainer.advance(3)
        found["eager_ms"] = _timed(lambda: _eager(trainer, 4), 4, 3, device)
    started = time.perf_counter()
    feed = Feed(task, train, 0, device=device, slots=2 * WINDOW)
    found["feed_seconds"] = time.perf_counter() - started
    found["draw_ms"] = _draws(feed, device)
    kinds: list[tuple[str, tuple[Loss, Update]]] = []
    if dials["graph"]:
        kinds.append(("graph", (supervised_loss, update)))
    if dials["compiled"]:
        kinds.append(("compiled", compiled(dials["options"])))
    streams = [torch.cuda.Stream(device) for _ in range(max(dials["streams"]))] if device.type == "cuda" else []
    for kind, (loss, adam) in kinds:
        feed = Feed(task, train, 0, device=device, slots=2 * WINDOW)
        trainers: list[StepTrainer] = []
        for seed in range(max(dials["packs"])):
            before = _reserved(device)
            each = StepTrainer(
                model(seed),
                task,
                train,
                data_seed=0,
                device=device,
                autocast=autocast,
                loss=loss,
                adam=adam,
                window=WINDOW,
            )
            once(each.model, task, train, device, autocast)
            each.prepare(feed)
            trainers.append(each)
            if seed == 0:
                found[f"{kind}_warm_up_seconds"] = each.lane.warm_up_seconds
                found[f"{kind}_kernels_used"] = dict(getattr(each.model, "kernels_used", {}))
            found[f"{kind}_capture_seconds"] = each.lane.warm_up_seconds + each.lane.capture_seconds
            found[f"{kind}_memory_mb"] = (_reserved(device) - before) / 2**20
        step = 0
        for size, count in _places(dials):
            members = trainers[:size]
            for other in members:
                other.step = other.collected = step
                other.clock.fill_(step)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spread(members, streams[:count])
            work = _block(members, feed)
            work()
            name = f"{kind}_{size}" if len(dials["streams"]) == 1 else f"{kind}_{size}_on_{count}"
            found[f"{name}_ms"] = _timed(work, WINDOW * size, blocks, device)
            step = members[0].step
        found[f"{kind}_loss"] = float(trainers[0].losses[(step - 1) % WINDOW])
        if device.type == "cuda":
            busy, kernels = profile(_block(trainers, feed, PROFILED), PROFILED * len(trainers))
            found[f"{kind}_busy"] = busy
            found.setdefault("kernels", {})[kind] = kernels
        del trainers, feed
        gc.collect()
    return found


def spec_of(architecture: str, d_model: int = 64, vocab_size: int = 16) -> dict[str, Any]:
    """The spec of a name in `LAYERS`, or of a layer pattern. Raises `SpecError`."""
    return resolve({"layers": LAYERS.get(architecture, architecture), "d_model": d_model, "vocab_size": vocab_size})


def text_of(kernels: Kernels) -> str:
    """The choice of kernels as a record's environment has it."""
    return kernels if isinstance(kernels, str) else json.dumps(kernels, sort_keys=True)


def _places(dials: dict[str, Any]) -> list[tuple[int, int]]:
    """Sizes of packs and numbers of streams to be timed, the pack's size the outer one; more streams than members are
    the same as as many."""
    found = [(size, min(count, size)) for size in sorted(dials["packs"]) for count in dials["streams"]]
    return list(dict.fromkeys(found))


def check(
    model: nn.Module,
    task: Task,
    train: Training,
    device: torch.device,
    autocast: torch.dtype | None,
    chosen: Kernels = "auto",
) -> list[canary.Verdict]:
    """The canary at a shape."""
    return canary.settle(lambda: once(model, task, train, device, autocast), chosen)


def once(model: nn.Module, task: Task, train: Training, device: torch.device, autocast: torch.dtype | None) -> None:
    """One forward pass, so that kernels are chosen."""
    batch = task.sample(split_generator(0, "train", "canary", device), train.batch_size)
    run_once(model, batch, autocast)


def _eager(trainer: Trainer, steps: int) -> None:
    trainer.advance(trainer.step + steps)


def _block(members: Sequence[StepTrainer], feed: Feed, steps: int = WINDOW) -> Callable[[], None]:
    def work() -> None:
        launch([(trainer, feed) for trainer in members], steps)
        for trainer in members:
            trainer.collect()

    return work


def _draws(feed: Feed, device: torch.device) -> float:
    feed.draw(WINDOW)
    return _timed(lambda: feed.draw(feed.drawn + WINDOW), WINDOW, 2, device)


def _timed(work: Callable[[], None], steps: int, blocks: int, device: torch.device) -> float:
    times = []
    for _ in range(blocks):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - started) / steps * 1e3)
    return statistics.median(times)


def profile(work: Callable[[], None], steps: int, top: int = 25) -> tuple[float, list[dict[str, Any]]]:
    """The fraction of the time in which a kernel ran, and the kernels: launches and microseconds a step of a trial."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize()
    spans = []
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        spans.append((event.time_range.start, event.time_range.end))
        total[event.name][0] += 1
        total[event.name][1] += event.time_range.end - event.time_range.start
    if not spans:
        return float("nan"), []
    busy, reached = 0.0, spans[0][0]
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    listed = sorted(total.items(), key=lambda item: -item[1][1])
    count = sum(number for number, _ in total.values())
    kernels = [{"name": "all", "launches": count / steps, "us": sum(us for _, us in total.values()) / steps}]
    kernels += [{"name": name[:90], "launches": n / steps, "us": us / steps} for name, (n, us) in listed[:top]]
    return busy / whole, kernels


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def draw(found: list[dict[str, Any]], out: Path) -> None:
    """Milliseconds a step of a trial on a logarithmic axis, one panel a shape, one group of bars an architecture."""
    from figures.style import new, style

    shapes = list(dict.fromkeys(each["shape"] for each in found))
    kinds = [key for key in found[0] if key.endswith("_ms") and key != "draw_ms"]
    with style():
        figure = new(width=2.4 * len(shapes) + 1.0, height=2.8)
        axes = figure.subplots(1, len(shapes), squeeze=False)[0]
        for axis, shape in zip(axes, shapes, strict=True):
            rows = [each for each in found if each["shape"] == shape]
            for place, kind in enumerate(kinds):
                at = [index + (place - len(kinds) / 2) * 0.8 / len(kinds) for index in range(len(rows))]
                values = [row.get(kind, float("nan")) for row in rows]
                axis.bar(at, values, width=0.8 / len(kinds), label=kind.removesuffix("_ms").replace("_", ", pack of "))
            axis.set_yscale("log")
            axis.set_title(shape)
            axis.set_xticks(range(len(rows)), [row["architecture"] for row in rows])
        axes[0].set_ylabel("ms a step of a trial")
        axes[-1].legend()
        for ending in ("png", "svg"):
            figure.savefig(out / f"train.{ending}")
