"""A sweep's jobs on one device: packs filled as long as there is room, the rest waiting, what cannot be captured run
eagerly when the pack is done."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from architectures import SpecError, accounting, kernels
from probes.config import Trial
from probes.engine.fill import LIMIT, Room, device_room
from probes.engine.pack import Finished, Pack
from probes.engine.programs import Compile, Programs
from probes.engine.step import supervised_loss
from probes.executor import Job, Then
from probes.files import whole_file
from probes.results import write_json
from probes.tasks import create
from probes.trial import FAILURES, Listener, Runner, Runtime

LAUNCH = 1e-4
"""Seconds of a small step in a full pack on an H200; `RATE`: FLOPs a second that larger ones reach. Only ratios of
expected times are used."""
RATE = 5e13


def expected_seconds(trial: Trial) -> float:
    """A rough time of a trial in a full pack, by which jobs are dealt out."""
    length = create(trial.task["kind"], trial.task["settings"]).length
    try:
        flops = accounting.forward_flops(trial.architecture, length)
    except SpecError:
        flops = math.nan
    tokens = trial.train.batch_size * length
    step = LAUNCH + (0.0 if math.isnan(flops) else 3 * flops * tokens / RATE)
    return trial.train.steps * step


def arranged(jobs: Iterable[Job]) -> list[Job]:
    """Jobs with those together that read the same stream, in order of first appearance."""
    places: dict[str, int] = {}
    count = itertools.count()

    def place(job: Job) -> int:
        trial = job.trial
        key = json.dumps([trial.task, trial.seeds.data_seed, trial.train.batch_size], sort_keys=True)
        if key not in places:
            places[key] = next(count)
        return places[key]

    return sorted(jobs, key=place)


class Engine:
    """Runs jobs on one device. `room` and `capture` are set by tests.

    `engine-DEVICE.json` in `out` says of every trial admitted, in order, how long it took to build it and to judge its
    kernels (`canary_seconds`, nearly all in the first trial of a program), to compile and tune (`warm_up_seconds`) and
    to capture, and the memory that it holds.
    """

    def __init__(
        self,
        out: Path,
        runtime: Runtime,
        listener: Listener | None = None,
        *,
        compiling: Compile = "auto",
        limit: int = LIMIT,
        room: Room | None = None,
        capture: bool = True,
    ) -> None:
        self.out, self.runtime, self.listener = out, runtime, listener
        self.device = torch.device(runtime.device)
        self.pack = Pack(self.device, capture=capture)
        self.room = room or device_room(self.device, limit)
        self.programs = Programs(self.device, out, compiling)
        self.waiting: deque[Job] = deque()
        self.alone: deque[tuple[Job, str]] = deque()
        self.log: list[dict[str, Any]] = []

    def add(self, jobs: Iterable[Job]) -> None:
        """Puts jobs into the queue."""
        arranged_jobs = arranged(jobs)
        for job in arranged_jobs:
            self.programs.expect(job.trial, self.runtime.precision)
        self.waiting.extend(arranged_jobs)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.waiting or self.pack.members or self.alone)

    def run(self, then: Callable[[Job, dict[str, Any]], list[Job]] | None = None) -> None:
        """Runs all jobs, and those that `then` adds."""
        while not self.idle:
            for job, row in self.turn():
                self.add(then(job, row) if then is not None else [])

    def turn(self) -> list[Finished]:
        """Admits who fits, and trains up to the next evaluation; returns what has finished."""
        finished = []
        while self.waiting and self.room.has([member.memory for member in self.pack.members]):
            finished += self._admit(self.waiting.popleft())
        if self.pack.members:
            done = self.pack.advance()
            self.alone.extend(self.pack.refused)
            self.pack.refused.clear()
            if done:
                self.room.full = False
            return finished + done
        if not self.waiting and self.alone:
            job, reason = self.alone.popleft()
            runner = self._runner(job)
            runner.engine = f"eager: {reason}"
            unsound = self.programs.unsound(job.trial, self.runtime.precision)
            with kernels.torch_forms() if unsound else nullcontext():
                return [*finished, (job, runner.run())]
        return finished

    def _runner(self, job: Job) -> Runner:
        return Runner(job.trial, job.labels, self.runtime, self.out, self.listener)

    def _admit(self, job: Job) -> list[Finished]:
        runner = self._runner(job)
        model = None
        if reason := self.programs.unsound(job.trial, self.runtime.precision):
            self.alone.append((job, f"forms in torch: {reason}"))
            return []
        try:
            started = time.perf_counter()
            model = runner.build()
            self.programs.check(runner, model)
            before = time.perf_counter() - started
            loss, adam = self.programs.functions(runner)
            member = self.pack.admit(job, runner, model, loss, adam)
            verdict = self.programs.judge(runner, member.trainer)
            if verdict is not None and not verdict.accepted:
                self.pack.remove(member)
                self.alone.append((job, f"forms in torch: {verdict.line()}"))
                return []
        except torch.OutOfMemoryError as error:
            del model
            torch.cuda.empty_cache()
            if not self.pack.members:
                return [(job, runner.conclude(None, error))]
            self.room.full = True
            self.waiting.appendleft(job)
            return []
        except FAILURES as error:
            if model is None or self.device.type != "cuda":
                return [(job, runner.conclude(model, error))]
            self.alone.append((job, f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"))
            return []
        if loss is not supervised_loss:
            runner.engine += ", compiled"
        lane = member.trainer.lane
        self.log.append(
            {
                "folder": runner.name,
                "canary_seconds": before,
                "warm_up_seconds": lane.warm_up_seconds,
                "capture_seconds": lane.capture_seconds,
                "memory_bytes": member.memory,
                "engine": runner.engine,
            }
        )
        name = str(self.device).replace(":", "")
        with whole_file(self.out / f"engine-{name}.json", durable=False) as temporary:
            write_json(temporary, {"admitted": self.log})
        return []


def run_jobs(
    jobs: list[Job],
    out: Path,
    runtime: Runtime,
    *,
    threads: int,
    listener: Listener | None = None,
    then: Then | None = None,
    compiling: Compile = "auto",
) -> None:
    """Runs `jobs`, and those that `then` adds, on the runtime's one device, with `threads` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = Engine(out, runtime, listener, compiling=compiling)
        engine.add(jobs)
        engine.run(then)
    finally:
        torch.set_num_threads(before)
