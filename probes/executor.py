"""Runs trials in worker processes; each worker keeps its tasks and evaluation sets for the trials that follow."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.config import Trial
from probes.interrupts import held, unheard_by_children
from probes.trial import Event, Labels, Listener, Runner, Runtime

EVENT_INTERVAL = 0.2
"""Seconds between two events of one trial that leave a worker."""

INTERRUPT_INTERVAL = 0.2
"""Seconds until an interrupt is heard, at most."""


@dataclass(frozen=True)
class Job:
    """A trial and what it is called."""

    trial: Trial
    labels: Labels


Then = Callable[[Job, dict[str, Any]], list[Job]]
"""Hears of a finished job with its row, and returns the jobs that have become due."""


class WorkerDied(RuntimeError):
    """A worker process ended without an answer (killed, or out of memory); its trial goes on from its checkpoint."""


def run_jobs(
    jobs: list[Job],
    out: Path,
    runtime: Runtime,
    *,
    workers: int,
    threads: int,
    listener: Listener | None = None,
    then: Then | None = None,
) -> None:
    """Runs `jobs`, and those that `then` adds, `workers` at a time with `threads` threads each.

    Every trial writes its own folder below `out/trials`. Raises `WorkerDied`.
    """
    if not jobs:
        return
    if workers == 1:
        _run_here(list(jobs), out, runtime, threads, listener, then)
        return
    context = mp.get_context("spawn")
    events = context.Queue()
    with (
        held() as check_interrupt,
        _listening(events, listener),
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(threads, events, os.getpid())
        ) as pool,
    ):
        pending: dict[Future[dict[str, Any]], Job] = {}

        def submit(due: list[Job]) -> None:
            with unheard_by_children():
                pending.update({pool.submit(_work, job, out, runtime): job for job in due})

        try:
            submit(jobs)
            while pending:
                done, _ = wait(pending, timeout=INTERRUPT_INTERVAL, return_when=FIRST_COMPLETED)
                check_interrupt()
                for future in done:
                    job, row = pending.pop(future), future.result()
                    if then is not None:
                        submit(then(job, row))
        except BrokenProcessPool:
            check_interrupt()  # SIGTERM to all processes ends the workers too
            raise WorkerDied("a worker process was killed; the same command goes on where it stopped") from None
        except BaseException:
            # the pool finds its workers gone and ends the futures; in Python 3.11 it fails on cancelled ones
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise


def _run_here(
    jobs: list[Job], out: Path, runtime: Runtime, threads: int, listener: Listener | None, then: Then | None
) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        while jobs:
            job = jobs.pop(0)
            row = Runner(job.trial, job.labels, runtime, out, listener).run()
            jobs.extend(then(job, row) if then is not None else [])
    finally:
        torch.set_num_threads(before)


@contextmanager
def _listening(events: Any, listener: Listener | None) -> Iterator[None]:
    """Within this block a thread of its own gives the workers' events to the listener."""
    stop = threading.Event()
    thread = threading.Thread(target=_hear, args=(events, listener, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=2)


def _hear(events: Any, listener: Listener | None, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            event = events.get(timeout=0.1)
        except queue.Empty:
            continue
        except (EOFError, OSError):
            return
        if listener is not None:
            listener(event)


_events: Any = None


def _start_worker(threads: int, events: Any, parent: int) -> None:
    global _events
    import torch

    torch.set_num_threads(threads)
    _events = events
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, so that a killed sweep leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(job: Job, out: Path, runtime: Runtime) -> dict[str, Any]:
    last = 0.0

    def tell(event: Event) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVENT_INTERVAL or event.step == event.steps:
            last = now
            _events.put(event)

    return Runner(job.trial, job.labels, runtime, out, tell).run()
