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
    "batch_size": 256,
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
    batch_size: int = 256,
    loop_sequences: int = 2000,
    device: str = "cpu",
    threads: int | None = None,
    all_tasks: bool = True,
) -> dict[str, Any]:
    """Times `sequences` of `mqar` against the loop, then a few batches of each task; writes `bench_data.json`.

    Microseconds a sequence: wall-clock, and processor time of all threads, which other work on the machine disturbs
    less. No more than a batch is held at a time. Returns what it wrote: `mqar_us`, `loop_us`, their `cpu` forms,
    `speedup` and `cpu_speedup`, `tasks` (name to wall-clock microseconds), and the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        dials = {"vocab_size": vocab_size, "length": length, "pairs": pairs, "gap_power": 0.01, "filler": 0}
        task = create("mqar", dials)
        generator = torch.Generator(device=device).manual_seed(0)
        task.sample(generator, batch_size)
        batches = -(-sequences // batch_size)
        mqar = _timed(partial(task.sample, generator, batch_size), batches, device, batches * batch_size)
        peer = _timed(partial(loop, loop_sequences, length, pairs, vocab_size), 1, "cpu", loop_sequences)
        tasks = {}
        catalogue = load_catalogue()
        for name in catalogue.tasks if all_tasks else ():
            other = catalogue.make_task(name)
            other.sample(generator, batch_size)
            tasks[name] = _timed(partial(other.sample, generator, batch_size), 3, device, 3 * batch_size)[0]
    finally:
        used = torch.get_num_threads()
        torch.set_num_threads(before)
    found: dict[str, Any] = {
        "mqar_us": mqar[0],
        "mqar_cpu_us": mqar[1],
        "loop_us": peer[0],
        "loop_cpu_us": peer[1],
        "speedup": peer[0] / mqar[0],
        "cpu_speedup": peer[1] / mqar[1],
        "dials": {**dials, "sequences": sequences, "batch_size": batch_size, "loop_sequences": loop_sequences},
        "tasks": tasks,
        "machine": {"device": device, "threads": used, "processor": platform.machine(), "torch": torch.__version__},
    }
    rows = [["mqar, a loop over sequences", number(peer[0]), number(peer[1]), ""]]
    times = f"{found['speedup']:.0f} ({found['cpu_speedup']:.0f}) times as fast"
    rows.append([f"mqar, {sequences} sequences", number(mqar[0]), number(mqar[1]), times])
    rows += [[name, number(value), "", ""] for name, value in tasks.items()]
    columns = ["task", "us a sequence", "us of processor", ""]
    show_table(table(columns, rows, right=columns[1:3]))
    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / "bench_data.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")
    return found


def _timed(draw: Callable[[], Any], times: int, device: str, sequences: int) -> tuple[float, float]:
    """Microseconds a sequence of `times` calls that draw `sequences` together: wall-clock, processor."""
    started, busy = time.perf_counter(), time.process_time()
    for _ in range(times):
        draw()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - started) / sequences, 1e6 * (time.process_time() - busy) / sequences


def loop(
    sequences: int, length: int, pairs: int, vocab_size: int, gap_power: float = 0.01, seed: int = 0
) -> np.ndarray:
    """The peer: `mqar` drawn one sequence at a time with `numpy.random.choice`, as zoology's generator draws it.

    Keys and values without replacement from halves of the vocabulary, queries in slots drawn in proportion to
    `g^(a - 1)`. Returns `(sequences, 2, length)`: tokens, and targets (-100 where unscored).
    """
    generator = np.random.RandomState(seed)
    slots = (length - 2 * pairs) // 2
    weight = np.arange(1, slots + 1) ** (gap_power - 1)
    weight /= weight.sum()
    low, high = np.arange(1, vocab_size // 2), np.arange(vocab_size // 2, vocab_size)
    result = np.empty((sequences, 2, length), dtype=np.int64)
    for number_ in range(sequences):
        keys = generator.choice(low, pairs, replace=False)
        values = generator.choice(high, pairs, replace=False)
        tokens = np.zeros(length, dtype=np.int64)
        targets = np.full(length, -100)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        place = 2 * pairs + 2 * generator.choice(slots, pairs, replace=False, p=weight)
        tokens[place], targets[place] = keys, values
        result[number_] = tokens, targets
    return result
