"""How fast sequences are drawn: every task's generator, and `mqar` beside a loop over sequences in Python."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probes.catalogue import load_catalogue
from probes.cli_common import number, show_table, table
from probes.files import whole_file
from probes.tasks import create

DIALS: dict[str, Any] = {
    "length": 256,
    "pairs": 16,
    "vocab_size": 8192,
    "sequences": 100_000,
    "batch_size": 512,
    "loop_sequences": 2000,
    "device": "cpu",
    "threads": None,
    "all_tasks": True,
}
"""`loop_sequences`: how many the loop draws, for its rate; `threads`: of torch, None for as they are."""


def run(
    out: Path,
    *,
    length: int = 256,
    pairs: int = 16,
    vocab_size: int = 8192,
    sequences: int = 100_000,
    batch_size: int = 512,
    loop_sequences: int = 2000,
    device: str = "cpu",
    threads: int | None = None,
    all_tasks: bool = True,
) -> dict[str, Any]:
    """Times `sequences` of `mqar` against the loop, then a few batches of each task; writes `bench_data.json`.

    Times are wall-clock, microseconds a sequence. No more than a batch is held at a time. Returns what it wrote:
    `mqar_us`, `loop_us`, `speedup`, `tasks` (name to microseconds), and the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        dials = {"vocab_size": vocab_size, "length": length, "pairs": pairs, "gap_power": 0.01}
        task = create("mqar", dials)
        generator = torch.Generator(device=device).manual_seed(0)
        task.sample(generator, batch_size)
        mqar = _timed(partial(task.sample, generator, batch_size), -(-sequences // batch_size), device) / batch_size
        started = time.perf_counter()
        loop(loop_sequences, length, pairs, vocab_size)
        baseline = (time.perf_counter() - started) / loop_sequences
        tasks = {}
        catalogue = load_catalogue()
        for name in catalogue.tasks if all_tasks else ():
            other = catalogue.make_task(name)
            other.sample(generator, batch_size)
            tasks[name] = 1e6 * _timed(partial(other.sample, generator, batch_size), 3, device) / batch_size
    finally:
        used = torch.get_num_threads()
        torch.set_num_threads(before)
    found: dict[str, Any] = {
        "mqar_us": 1e6 * mqar,
        "loop_us": 1e6 * baseline,
        "speedup": baseline / mqar,
        "dials": {**dials, "sequences": sequences, "batch_size": batch_size, "loop_sequences": loop_sequences},
        "tasks": tasks,
        "machine": {"device": device, "threads": used, "processor": platform.machine(), "torch": torch.__version__},
    }
    rows = [["mqar, a loop over sequences", number(found["loop_us"]), ""]]
    rows.append([f"mqar, {sequences} sequences", number(found["mqar_us"]), f"{found['speedup']:.0f} times as fast"])
    rows += [[name, number(value), ""] for name, value in tasks.items()]
    show_table(table(["task", "microseconds a sequence", ""], rows, right=["microseconds a sequence"]))
    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / "bench_data.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")
    return found


def _timed(draw: Callable[[], Any], times: int, device: str) -> float:
    """Seconds a call."""
    started = time.perf_counter()
    for _ in range(times):
        draw()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def loop(
    sequences: int, length: int, pairs: int, vocab_size: int, gap_power: float = 0.01, seed: int = 0
) -> np.ndarray:
    """The peer: `mqar` drawn one sequence at a time with `numpy.random.choice`, as the field's generators do.

    Keys and values without replacement from halves of the vocabulary, queries in slots drawn in proportion to
    `g^(a - 1)`, random filler. Returns `(sequences, 2, length)`: tokens, and targets (-100 where unscored).
    """
    generator = np.random.default_rng(seed)
    slots = (length - 2 * pairs) // 2
    weight = np.arange(1, slots + 1) ** (gap_power - 1)
    weight /= weight.sum()
    low, high = np.arange(1, vocab_size // 2), np.arange(vocab_size // 2, vocab_size)
    result = np.empty((sequences, 2, length), dtype=np.int64)
    for number_ in range(sequences):
        keys = generator.choice(low, pairs, replace=False)
        values = generator.choice(high, pairs, replace=False)
        tokens = generator.integers(vocab_size, size=length)
        targets = np.full(length, -100)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        place = 2 * pairs + 2 * generator.choice(slots, pairs, replace=False, p=weight)
        tokens[place], targets[place] = keys, values
        result[number_] = tokens, targets
    return result
