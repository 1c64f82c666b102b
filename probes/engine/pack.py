"""A pack: trials that train at once on one device, in step with their evaluations.

Members launch their steps in turn, each on its own stream, so that the device always has work of many. The host waits
only every `WINDOW` steps, where losses are copied out, and at evaluations. A member that fails or turns non-finite
leaves; nobody else notices.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from probes.engine.adam import Update, update
from probes.engine.feed import Feed, Refused
from probes.engine.fill import LIMIT
from probes.engine.step import Loss, StepTrainer, supervised_loss
from probes.executor import Job
from probes.training import evaluation_steps
from probes.trial import FAILURES, Runner

WINDOW = 32
"""Steps between two looks at the losses."""
STREAMS = 16
"""Streams that the graphs of a pack are replayed on. Fewer would leave the device idle between small kernels, more only
put each other's data out of its cache; see docs/gpu.md."""


@dataclass
class Member:
    """A trial in the pack."""

    job: Job
    runner: Runner
    model: nn.Module
    trainer: StepTrainer
    feed: Feed
    points: list[int] = field(default_factory=list)
    """Numbers of steps after which it is evaluated, those behind it left out."""
    memory: int = 0
    """Bytes of device memory that its admission took."""


Finished = tuple[Job, dict[str, Any]]


class Pack:
    """Members on one device. `capture`: whether steps become CUDA graphs, where the device has them."""

    def __init__(self, device: torch.device, *, capture: bool = True) -> None:
        self.device, self.capture = device, capture and device.type == "cuda"
        self.members: list[Member] = []
        self.streams = [torch.cuda.Stream(device) for _ in range(LIMIT)] if device.type == "cuda" else []
        """All different; a member captures on one that no other member captured on."""
        self.feeds: dict[tuple[Any, ...], Feed] = {}
        self.finished: list[Finished] = []
        self.refused: list[tuple[Job, str]] = []
        """Those that must be run again without a pack, and why."""

    def admit(
        self, job: Job, runner: Runner, model: nn.Module, loss: Loss = supervised_loss, adam: Update = update
    ) -> Member:
        """Takes a built model in, from its last checkpoint where there is one.

        Raises whatever its first steps raise; the pack is then as before.
        """
        before = self._reserved()
        trial = job.trial
        trainer = StepTrainer(
            model,
            runner.task,
            trial.train,
            data_seed=trial.seeds.data_seed,
            device=self.device,
            autocast=runner.autocast,
            loss=loss,
            adam=adam,
            window=WINDOW,
            capture=self.capture,
            stream=self._stream(),
        )
        runner.resume(trainer)
        feed = self._feed(runner, trainer)
        try:
            trainer.prepare(feed)
        except BaseException:
            self._leave(feed)
            raise
        points = [step for step in evaluation_steps(trial.train) if step > trainer.step]
        member = Member(job, runner, model, trainer, feed, points, max(0, self._reserved() - before))
        runner.engine = "graph" if trainer.lane.graph is not None else "steps"
        # A graph keeps its kernels, whatever the canary refuses later; scoring does not.
        runner.kernels_used = dict(getattr(model, "kernels_used", {}))
        runner.seconds += trainer.lane.warm_up_seconds + trainer.lane.capture_seconds
        self.members.append(member)
        return member

    def _stream(self) -> torch.cuda.Stream | None:
        taken = {member.trainer.lane.stream for member in self.members}
        return next((stream for stream in self.streams if stream not in taken), None)

    def _reserved(self) -> int:
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0

    def _feed(self, runner: Runner, trainer: StepTrainer) -> Feed:
        trial = runner.trial
        train = trial.train
        recipe = (train.batch_size, train.examples, train.supervision, train.control)
        key = (json.dumps([trial.task, recipe], sort_keys=True), trial.seeds.data_seed, trainer.step)
        feed = self.feeds.get(key)
        if feed is None or feed.begun:
            feed = Feed(
                runner.task,
                train,
                trial.seeds.data_seed,
                device=self.device,
                slots=2 * WINDOW,
                start=trainer.step,
                state=trainer.stream_state,
                control_state=trainer.control_state,
            )
            self.feeds[key] = feed
        feed.readers += 1
        return feed

    def _leave(self, feed: Feed) -> None:
        feed.readers -= 1
        if not feed.readers:
            self.feeds = {key: other for key, other in self.feeds.items() if other is not feed}

    def advance(self) -> list[Finished]:
        """Trains all members to the nearest evaluation of one of them, and evaluates. Returns who has finished."""
        self.finished = []
        for member in [member for member in self.members if not member.points]:
            self._retire(member, None)
        if not self.members:
            return self.finished
        steps = min(member.points[0] - member.trainer.step for member in self.members)
        while steps and self.members:
            count = min(steps, WINDOW)
            self._block(count)
            steps -= count
        for member in list(self.members):
            if member.points[0] == member.trainer.step:
                self._evaluate(member)
        return self.finished

    def _block(self, count: int) -> None:
        started = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        spread([member.trainer for member in self.members], self.streams[:STREAMS])
        launch([(member.trainer, member.feed) for member in self.members], count)
        sharing = len(self.members)
        failed = [(member, self._collect(member)) for member in self.members]
        share = (time.perf_counter() - started) / sharing
        for member, error in failed:
            member.runner.train_seconds += share
            member.runner.seconds += share
            if error is None:
                member.runner.tell(member.trainer.step)
            else:
                self._retire(member, error)

    def _collect(self, member: Member) -> Exception | None:
        try:
            member.trainer.collect()
        except FAILURES as error:
            return error
        return None

    def _evaluate(self, member: Member) -> None:
        started = time.perf_counter()
        runner, trainer = member.runner, member.trainer
        try:
            member.feed.check()
            trainer.check()
            runner.evaluate(member.model, trainer, trainer.progress())
        except Refused as error:
            self.remove(member)
            shutil.rmtree(runner.partial, ignore_errors=True)
            self.refused.append((member.job, str(error)))
            return
        except FAILURES as error:
            self._retire(member, error)
            return
        finally:
            member.model.train()
            runner.seconds += time.perf_counter() - started
        runner.keep(trainer)
        member.points.pop(0)
        if not member.points:
            self._retire(member, None)

    def remove(self, member: Member) -> None:
        """A member leaves with its graph, and nothing is written down."""
        self.members.remove(member)
        self._leave(member.feed)
        member.trainer.close()

    def _retire(self, member: Member, error: Exception | None) -> None:
        """A member leaves with its graph, then is tested and written down."""
        self.remove(member)
        self.finished.append((member.job, member.runner.conclude(member.model, error)))


def spread(trainers: Sequence[StepTrainer], streams: Sequence[torch.cuda.Stream]) -> None:
    """Has the graphs of `trainers` replayed on `streams` in turn. All that they have launched is done."""
    for index, trainer in enumerate(trainers):
        trainer.lane.shared = streams[index % len(streams)] if streams else None


def launch(members: Sequence[tuple[StepTrainer, Feed]], count: int) -> None:
    """Launches `count` steps of every member, at most `WINDOW`, without waiting for them.

    Members of one feed are at the same step, and all steps launched before are done.
    """
    readers: dict[int, tuple[Feed, list[StepTrainer]]] = {}
    for trainer, feed in members:
        readers.setdefault(id(feed), (feed, []))[1].append(trainer)
    ends = []
    for feed, trainers in readers.values():
        start, feed.begun = trainers[0].step, True
        feed.draw(start + count)
        drawn = feed.lane.mark()
        for trainer in trainers:
            trainer.lane.after(drawn)
        ends.append((feed, min(start + count + WINDOW, start + feed.slots, feed.train.steps)))
    for offset in range(count):
        for trainer, _ in members:
            trainer.advance()
        if offset == 0:
            # The next block's batches, while this one trains: their slots are those of the block before.
            for feed, end in ends:
                feed.draw(end)
