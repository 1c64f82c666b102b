"""One stream of training batches in device memory, drawn once and read by every trial that shares it.

A feed draws the batches of `TrainingStream`, in its order, into a ring of slots; readers pick a slot by a number on
the device. The supervised positions are brought to a fixed count `n`: their flat indices in row-major order and their
targets, filled up with index 0 and `IGNORED`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probes.config import Training
from probes.engine.lane import Lane
from probes.splits import TrainingStream, split_generator
from probes.task import IGNORED, Batch, Task
from probes.training import training_targets

SAMPLE = 128
"""Sequences from which the number of supervised positions is estimated."""


class Supervised(NamedTuple):
    """`tokens (B, T)`, `at (n,)` the supervised positions counted row by row, `target (n,)`; `batch` whole
    where control schedules need it."""

    tokens: Tensor
    at: Tensor
    target: Tensor
    batch: Batch | None


class Overflow(RuntimeError):
    """A batch had more supervised positions than were made room for."""


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
    """Indices and targets `(n,)` of the supervised positions of `targets (B, T)`, and how many there are, `()`."""
    flat = targets.flatten()
    mask = flat != IGNORED
    rank = mask.cumsum(0) - 1
    place = torch.where(mask & (rank < n), rank, n)
    index = torch.zeros(n + 1, dtype=torch.int64, device=flat.device)
    index.scatter_(0, place, torch.arange(len(flat), device=flat.device))
    target = torch.full((n + 1,), IGNORED, dtype=torch.int64, device=flat.device).scatter_(0, place, flat)
    return torch.where(target[:n] == IGNORED, 0, index[:n]), target[:n], mask.sum()


class Feed:
    """Batches `start`, `start + 1`, ... of a training stream. `slots`: how many are kept at a time."""

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
        whole: bool = False,
        capture: bool = True,
    ) -> None:
        self.task, self.train, self.device, self.slots, self.start, self.whole = (
            task,
            train,
            device,
            slots,
            start,
            whole,
        )
        self.stream = TrainingStream(task, data_seed, train.batch_size, examples=train.examples, device=device)
        if state is not None:
            self.stream.restore(state)
        self.size = room(task, train)
        self.shape = (train.batch_size, task.length)
        width = math.prod(self.shape) + 2 * self.size
        self.ring = torch.zeros(slots, width, dtype=torch.int64, device=device)
        self.parts: dict[str, Tensor] = {}
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.largest = torch.zeros((), dtype=torch.int64, device=device)
        self.drawn = start
        self.readers = 0
        self._states: OrderedDict[int, dict[str, Tensor]] = OrderedDict({start: self.stream.state()})
        self.lane = Lane(
            self._draw, device, generators=[self.stream.generator], capture=capture and self.stream.pool is None
        )
        if whole:
            with torch.random.fork_rng(devices=[]):
                example = task.sample(split_generator(0, "train", "room", device), train.batch_size)
            self.parts = {
                name: torch.zeros(slots, *value.shape, dtype=value.dtype, device=device)
                for name, value in _named(example).items()
            }
        self.reason = ""
        try:
            self.lane.capture(self._save)
        except RuntimeError as error:
            # Its draws are launched one by one then, which costs the host a little and changes nothing.
            self.reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"

    def _save(self) -> Any:
        slot, largest = self.slot.clone(), self.largest.clone()

        def restore() -> None:
            self.slot.copy_(slot)
            self.largest.copy_(largest)

        return restore

    def _draw(self) -> None:
        batch = self.stream.next()
        index, target, count = compact(training_targets(batch, self.train.supervision), self.size)
        row = torch.cat([batch.tokens.flatten(), index, target])
        self.ring.index_copy_(0, self.slot, row[None])
        for name, value in _named(batch).items() if self.whole else ():
            self.parts[name].index_copy_(0, self.slot, value[None])
        self.largest.copy_(torch.maximum(self.largest, count))
        self.slot.copy_((self.slot + 1) % self.slots)

    def draw(self, until: int) -> None:
        """Launches the draws of all batches before `until`; the caller sees to it that nobody reads their slots."""
        while self.drawn < until:
            self.lane.run()
            self.drawn += 1
            self._states[self.drawn] = self.stream.state()
            while len(self._states) > 2 * self.slots + 1:
                self._states.popitem(last=False)

    def slot_of(self, step: Tensor) -> Tensor:
        """Where the batch of a step lies."""
        return (step - self.start) % self.slots

    def read(self, slot: Tensor) -> Supervised:
        """The batch in the slot whose number is in `slot (1,)` on the device."""
        tokens, index, target = self.ring.index_select(0, slot)[0].split([math.prod(self.shape), self.size, self.size])
        tokens = tokens.view(self.shape)
        batch = None
        if self.whole:
            parts = {name: value.index_select(0, slot)[0] for name, value in self.parts.items()}
            batch = _unnamed(tokens, parts)
        return Supervised(tokens, index, target, batch)

    def state(self, step: int) -> dict[str, Tensor]:
        """The stream's state before batch `step`, as `TrainingStream.state` gives it. KeyError where long past."""
        return self._states[step]

    def check(self) -> None:
        """Raises `Overflow` if a batch did not fit; waits for the device."""
        if int(self.largest) > self.size:
            raise Overflow(f"{int(self.largest)} supervised positions in a batch, room for {self.size}")


def _named(batch: Batch) -> dict[str, Tensor]:
    found = {"targets": batch.targets}
    found.update({f"latents.{name}": value for name, value in batch.latents.items()})
    found.update({f"slices.{name}": value for name, value in batch.slices.items()})
    return found


def _unnamed(tokens: Tensor, parts: dict[str, Tensor]) -> Batch:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: value for name, value in parts.items() if name.startswith(prefix)}

    return Batch(tokens, parts["targets"], under("latents."), under("slices."))
