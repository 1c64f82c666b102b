"""Several devices of one host: one process each, jobs dealt out by expected time, results as from one device.

Every process fills its own packs. A job that becomes due later goes to the device with the least left to do.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probes.engine.programs import Compile
from probes.executor import EVENT_INTERVAL, Job, Then, WorkerDied, _end_with
from probes.interrupts import unheard_by_children
from probes.trial import Event, Listener, Runtime

ROUNDING = 1 + 1e-9
"""Sums of equal jobs are equal."""


class Dealer:
    """Whom a job goes to: of `workers`, the one whose jobs not yet finished are expected to take least.

    One that has evaluation data of the job's task and seed already is preferred while it stays within an even share of
    all the work there is, to half a job.
    """

    def __init__(self, workers: int) -> None:
        self.left = [0.0] * workers
        self._owner: dict[str, tuple[int, float]] = {}
        self._homes: dict[str, list[int]] = {}

    def deal(self, jobs: Sequence[tuple[Job, float]]) -> list[list[Job]]:
        """Jobs with their expected seconds, longest first among those with the same data, to each worker its own."""
        dealt: list[list[Job]] = [[] for _ in self.left]
        share = (sum(self.left) + sum(seconds for _, seconds in jobs)) / len(self.left)
        together: dict[str, list[tuple[Job, float]]] = {}
        for job, seconds in sorted(jobs, key=lambda pair: -pair[1]):
            data = json.dumps([job.trial.task, job.trial.seeds.data_seed], sort_keys=True)
            together.setdefault(data, []).append((job, seconds))
        for data, those in together.items():
            homes = self._homes.setdefault(data, [])
            for job, seconds in those:
                room = [index for index in homes if self.left[index] + seconds / 2 <= share * ROUNDING]
                worker = min(room or range(len(self.left)), key=lambda index: self.left[index])
                if worker not in homes:
                    homes.append(worker)
                self.left[worker] += seconds
                self._owner[job.trial.identity()] = (worker, seconds)
                dealt[worker].append(job)
        return dealt

    def done(self, job: Job) -> None:
        """Takes a finished job off its worker's account."""
        worker, seconds = self._owner.pop(job.trial.identity())
        self.left[worker] -= seconds


def all_devices() -> list[str]:
    """Every CUDA device of this host, `cuda:0` first."""
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def run_jobs(
    jobs: list[Job],
    out: Path,
    runtime: Runtime,
    devices: Sequence[str],
    *,
    threads: int,
    listener: Listener | None = None,
    then: Then | None = None,
    compiling: Compile = "auto",
) -> None:
    """Runs `jobs`, and those that `then` adds, on `devices`, with `threads` CPU threads each.

    Raises `WorkerDied` if a process ended without an answer.
    """
    if not jobs:
        return
    from probes.engine import jobs as here

    if len(devices) == 1:
        alone = replace(runtime, device=devices[0])
        here.run_jobs(jobs, out, alone, threads=threads, listener=listener, then=then, compiling=compiling)
        return
    context = mp.get_context("spawn")
    outbox: Any = context.Queue()
    inboxes: list[Any] = [context.Queue() for _ in devices]
    processes = [
        context.Process(
            target=_serve, args=(device, out, runtime, threads, compiling, inbox, outbox, os.getpid()), daemon=True
        )
        for device, inbox in zip(devices, inboxes, strict=True)
    ]
    with unheard_by_children():
        for process in processes:
            process.start()
    dealer = Dealer(len(devices))
    pending: dict[str, Job] = {}

    def give(due: list[Job]) -> None:
        pending.update({job.trial.identity(): job for job in due})
        dealt = dealer.deal([(job, here.expected_seconds(job.trial)) for job in due])
        for inbox, own in zip(inboxes, dealt, strict=True):
            if own:
                inbox.put(own)

    try:
        give(jobs)
        while pending:
            kind, *message = _hear(outbox, processes)
            if kind == "event" and listener is not None:
                listener(message[0])
            elif kind == "done":
                job = pending.pop(message[0])
                dealer.done(job)
                give(then(job, message[1]) if then is not None else [])
            elif kind == "error":
                raise WorkerDied(f"the process of {message[0]} failed: {message[1]}")
        for inbox in inboxes:
            inbox.put(None)
        for process in processes:
            process.join(timeout=30)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()


def _hear(outbox: Any, processes: list[Any]) -> Any:
    while True:
        try:
            return outbox.get(timeout=1.0)
        except queue.Empty:
            if not all(process.is_alive() for process in processes):
                raise WorkerDied("a worker process was killed; the same command goes on where it stopped") from None


def _serve(
    device: str, out: Path, runtime: Runtime, threads: int, compiling: Compile, inbox: Any, outbox: Any, parent: int
) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    last: dict[str, float] = {}

    def tell(event: Event) -> None:
        now = time.monotonic()
        if now - last.get(event.trial, 0.0) >= EVENT_INTERVAL or event.step == event.steps:
            last[event.trial] = now
            outbox.put(("event", event))

    try:
        import torch

        from probes.engine.jobs import Engine

        torch.set_num_threads(threads)
        if torch.device(device).type == "cuda":
            torch.cuda.set_device(device)
        engine = Engine(out, replace(runtime, device=device), tell, compiling=compiling)
        while True:
            try:
                while True:
                    jobs = inbox.get(block=engine.idle)
                    if jobs is None:
                        return
                    engine.add(jobs)
            except queue.Empty:
                pass
            for job, row in engine.turn():
                outbox.put(("done", job.trial.identity(), row))
    except Exception as error:
        traceback.print_exc()
        outbox.put(("error", device, f"{type(error).__name__}: {error}"))
