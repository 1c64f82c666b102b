"""One stream of training batches in device memory, drawn once and read by every trial that shares it.

A feed draws the batches of `TrainingStream`, in its order, into a ring of slots; readers pick a slot by a number on
the device. The supervised positions are brought to a fixed count `n`: their flat indices in row-major order and their
targets, filled up with index 0 and `IGNORED`. Where nearly all positions are supervised, targets stay where they are.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probes.config import Training
from probes.controls import make_control
from probes.engine.lane import Lane
from probes.splits import TrainingStream, split_generator
from probes.task import IGNORED, Batch, Task
from probes.training import training_targets

SAMPLE = 128
"""Sequences from which the number of supervised positions is estimated."""

EVERYWHERE = 15 / 16
"""Fraction of supervised positions from which logits are computed at all: less than to gather them and scatter their
gradient."""


class Supervised(NamedTuple):
    """`tokens (B, T)`, `at (n,)` the supervised positions counted row by row, `target (n,)`, and the control tensors
    `(B, T)` by name, None where there are none. `at` is None where the targets are those of all `B T` positions."""

    tokens: Tensor
    at: Tensor | None
    target: Tensor
    control: dict[str, Tensor] | None


class Refused(RuntimeError):
    """What a pack was given to train on is not what it should have been; the trial is run again without it."""


def room(task: Task, train: Training) -> int:
    """Supervised positions that a batch has room for: exact where all sequences have as many, else mean + 8 sd."""
    batch = task.sample(split_generator(0, "train", "room"), SAMPLE)
    counts = (training_targets(batch, train.supervision) != IGNORED).sum(1).double()
    if bool((counts == counts[0]).all()):
        return int(counts[0]) * train.batch_size
    size = train.batch_size
    wide = size * counts.mean().item() + 8 * math.sqrt(size) * counts.std().item() + 16
    return min(size * batch.tokens.shape[1], math.ceil(wide))


def compact(targets: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices and targets `(b, n)` of the supervised positions in each of `b` batches `targets (b, B, T)`, counted row
    by row, and how many there are, `(b,)`."""
    flat = targets.flatten(1)
    mask = flat != IGNORED
    rank = mask.cumsum(1) - 1
    place = torch.where(mask & (rank < n), rank, n)
    index = torch.zeros(len(flat), n + 1, dtype=torch.int64, device=flat.device)
    index.scatter_(1, place, torch.arange(flat.shape[1], device=flat.device).expand_as(flat))
    target = torch.full((len(flat), n + 1), IGNORED, dtype=torch.int64, device=flat.device).scatter_(1, place, flat)
    return torch.where(target[:, :n] == IGNORED, 0, index[:, :n]), target[:, :n], mask.sum(1)


class Feed:
    """Batches `start`, `start + 1`, ... of a training stream. `slots`: how many are kept at a time; `ahead` as there.

    Batches and control tensors are drawn by ordinary launches on the feed's own stream, never inside a graph, so that
    the generators' states are known on the host before and after each draw. `state`, `control_state`: those before
    batch `start`.
    """

    def __init__(
        self,
        task: Task,
        train: Training,
        data_seed: int,
        *,
        device: torch.device,
        slots: int,
        start: int = 0,
        state: dict[str, Tensor] | None = None,
        control_state: Tensor | None = None,
        ahead: int | None = None,
    ) -> None:
        self.task, self.train, self.device, self.slots, self.start = task, train, device, slots, start
        own = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # not one of the graphs'
        self.lane = Lane(self._draw, device, capture=False, stream=own)
        self.stream = TrainingStream(
            task, data_seed, train.batch_size, examples=train.examples, device=device, ahead=ahead
        )
        self.control_generator = split_generator(data_seed, "train", "control", device)
        self.size = room(task, train)
        self.shape = (train.batch_size, task.length)
        self.everywhere = self.size >= EVERYWHERE * math.prod(self.shape)
        self.parts = [math.prod(self.shape)] * 2 if self.everywhere else [math.prod(self.shape), self.size, self.size]
        """Numbers in a slot: tokens, indices unless the targets are everywhere, targets."""
        self.ring = torch.zeros(slots, sum(self.parts), dtype=torch.int64, device=device)
        self.control: dict[str, Tensor] = {}
        self.largest = torch.zeros((), dtype=torch.int64, device=device)
        self.drawn = start
        self.readers = 0
        self.begun = False
        """Whether its readers have trained; they stay at the same step, so nobody joins then."""
        self._until = start
        self._states: OrderedDict[int, tuple[dict[str, Tensor], Tensor]] = OrderedDict()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        with self.lane.here():
            if state is not None:
                self.stream.restore(state)
            if control_state is not None:
                self.control_generator.set_state(control_state.cpu())
            self._states[start] = (self.stream.state(), self.control_generator.get_state())
            if train.control:
                # Once for the shapes, with the generators put back: the graphs that read need to know where.
                for name, value in self._controls(self.stream.next()).items():
                    self.control[name] = torch.zeros(slots, *value.shape, dtype=value.dtype, device=device)
                self._put_back(start)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _put_back(self, step: int) -> None:
        stream, control = self._states[step]
        self.stream.restore(stream)
        self.control_generator.set_state(control)

    def _controls(self, batch: Batch) -> dict[str, Tensor]:
        return make_control(self.train.control, batch, self.task, self.control_generator) or {}

    def _draw(self) -> None:
        slot = (self.drawn - self.start) % self.slots
        batch = self.stream.take(min(self._until - self.drawn, self.slots - slot))
        count, size = len(batch) // self.train.batch_size, self.train.batch_size
        targets = training_targets(batch, self.train.supervision)
        rows = [batch.tokens.view(count, -1)]
        if self.everywhere:
            rows.append(targets.view(count, -1))
        else:
            *given, found = compact(targets.view(count, size, -1), self.size)
            rows += given
            torch.maximum(self.largest, found.max(), out=self.largest)
        self.ring[slot : slot + count].copy_(torch.cat(rows, dim=1))
        for each in range(count):
            if self.train.control:
                for name, value in self._controls(batch.rows(each * size, (each + 1) * size)).items():
                    self.control[name][slot + each].copy_(value)
            self.drawn += 1
            self._states[self.drawn] = (self.stream.state(count - 1 - each), self.control_generator.get_state())
        while len(self._states) > 2 * self.slots + 1:
            self._states.popitem(last=False)

    def draw(self, until: int) -> None:
        """Launches the draws of all batches before `until`; the caller sees to it that nobody reads their slots."""
        self._until = until
        while self.drawn < until:
            self.lane.run()

    def slot_of(self, step: Tensor) -> Tensor:
        """Where the batch of a step lies."""
        return (step - self.start) % self.slots

    def read(self, slot: Tensor) -> Supervised:
        """The batch in the slot whose number is in `slot (1,)` on the device."""
        row = self.ring.index_select(0, slot)[0]
        tokens, *index, target = row.split(self.parts)
        control = {name: value.index_select(0, slot)[0] for name, value in self.control.items()}
        return Supervised(tokens.view(self.shape), index[0] if index else None, target, control or None)

    def state(self, step: int) -> dict[str, Any]:
        """The states before batch `step`: `stream` and `control` as in `Trainer.state`. KeyError where long past."""
        stream, control = self._states[step]
        return {"stream": stream, "control": control}

    def again(self, step: int) -> Tensor:
        """The tokens of batch `step`, drawn again from the generator's state; the feed goes on as before."""
        with self.lane.here():
            self._put_back(step)
            tokens = self.stream.next().tokens
            self._put_back(self.drawn)
        self.lane.wait()
        return tokens

    def check(self) -> None:
        """Raises `Refused` if a batch did not fit; waits for the device."""
        self.lane.wait()
        if int(self.largest) > self.size:
            raise Refused(f"{int(self.largest)} supervised positions in a batch, room for {self.size}")
