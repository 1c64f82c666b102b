"""Streams of sequences: one generator per split, and evaluation sets that are the same on every machine.

A split's generator is seeded with the first eight bytes of SHA-256 over `(data_seed, split, part)`, so that no two
splits share a stream. Evaluation sequences are drawn on the CPU in blocks of `BLOCK`, whatever the batch size they
are scored in, and moved afterwards.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import torch

from probes.task import Batch, Task

Split = Literal["train", "validation", "test"]
BLOCK = 256


def split_seed(data_seed: int, split: str, part: str = "") -> int:
    """A 63-bit seed for one stream of a split."""
    digest = hashlib.sha256(f"{data_seed}/{split}/{part}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def split_generator(data_seed: int, split: str, part: str = "", device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one stream, on `device`."""
    return torch.Generator(device=device).manual_seed(split_seed(data_seed, split, part))


def evaluation_blocks(task: Task, data_seed: int, split: Split, sequences: int) -> list[Batch]:
    """`sequences` sequences of an evaluation split in blocks of at most `BLOCK`, on the CPU.

    Every block is drawn whole and the last one cut, so that a larger split begins with the smaller one.
    """
    generator = split_generator(data_seed, split)
    blocks = []
    for start in range(0, sequences, BLOCK):
        block = task.sample(generator, BLOCK)
        blocks.append(block if start + BLOCK <= sequences else block.rows(0, sequences - start))
    return blocks


def digest(blocks: list[Batch]) -> str:
    """SHA-256 over tokens and targets of all blocks, 64 hex digits. Scores are paired only where digests agree."""
    total = hashlib.sha256()
    for block in blocks:
        for tensor in (block.tokens, block.targets):
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


AHEAD, AT_MOST = 32, 2048
"""Batches, and sequences, that a fresh stream draws at once on a GPU."""


class TrainingStream:
    """Batches for training: fresh for ever, or drawn without end from a finite set in shuffled passes.

    A finite set of `examples` sequences is drawn once from the training stream; each pass over it has its own
    permutation, and a batch may span two passes. Fresh batches are drawn `ahead` at a time, as one draw of as many
    sequences, since a GPU takes as long over one batch as over many: one on a CPU, on a GPU up to `AHEAD` batches of
    `AT_MOST` sequences in all. The state (`state`, `restore`) lets an interrupted run go on with the batch it would
    have drawn.
    """

    def __init__(
        self,
        task: Task,
        data_seed: int,
        batch_size: int,
        *,
        examples: int | None = None,
        device: torch.device | str = "cpu",
        ahead: int | None = None,
    ) -> None:
        self.task, self.batch_size, self.device = task, batch_size, device
        self.generator = split_generator(data_seed, "train", device=device)
        self.pool: Batch | None = None
        if ahead is None:
            ahead = 1 if torch.device(device).type == "cpu" else max(1, min(AHEAD, AT_MOST // batch_size))
        self.ahead = 1 if examples is not None else ahead
        self.block: Batch | None = None
        self.taken = 0
        """Batches of `block` that are gone."""
        self.before = torch.empty(0)
        """The generator's state before `block` was drawn."""
        if examples is not None:
            pool = split_generator(data_seed, "train", "examples")
            blocks = [task.sample(pool, BLOCK) for _ in range(0, examples, BLOCK)]
            self.pool = Batch.concatenate(blocks).rows(0, examples).to(device)
            self.order = torch.empty(0, dtype=torch.int64, device=device)

    def next(self) -> Batch:
        """The next batch of `batch_size` sequences."""
        if self.ahead > 1:
            return self.take(1)
        if self.pool is None:
            return self.task.sample(self.generator, self.batch_size)
        while len(self.order) < self.batch_size:
            fresh = torch.randperm(len(self.pool), generator=self.generator, device=self.device)
            self.order = torch.cat([self.order, fresh])
        index, self.order = self.order[: self.batch_size], self.order[self.batch_size :]
        return self.pool.select(index)

    def take(self, most: int) -> Batch:
        """The next batches in one, as many as have been drawn together, at least one and no more than `most`."""
        if self.ahead == 1:
            return self.next()
        if self.block is None or self.taken == self.ahead:
            self._draw()
        assert self.block is not None
        count = min(most, self.ahead - self.taken)
        start = self.taken * self.batch_size
        self.taken += count
        return self.block.rows(start, start + count * self.batch_size)

    def _draw(self) -> None:
        self.before, self.taken = self.generator.get_state(), 0
        self.block = self.task.sample(self.generator, self.ahead * self.batch_size)

    def state(self, ago: int = 0) -> dict[str, torch.Tensor]:
        """What `restore` needs to go on from here, or from `ago` batches ago, where they came from one `take`."""
        if self.ahead > 1:
            taken = self.taken - ago
            if self.block is None or taken == self.ahead:
                return {"generator": self.generator.get_state(), "taken": torch.tensor(0)}
            return {"generator": self.before, "taken": torch.tensor(taken)}
        state = {"generator": self.generator.get_state()}
        return state if self.pool is None else {**state, "order": self.order}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Goes on from where `state` was taken."""
        self.generator.set_state(state["generator"].cpu())
        self.block, taken = None, int(state.get("taken", 0))
        if taken:
            self._draw()
            self.taken = taken
        if self.pool is not None:
            self.order = state["order"].to(self.device)
