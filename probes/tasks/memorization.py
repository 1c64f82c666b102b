"""Memorization: a fixed map from keys to values, the same in all sequences and splits, to be held in the weights.

    k insert k insert ...       at each `insert` the target is the value of the key before it

Keys are independent and uniform on `K = (V - 1) // 2` tokens; the map takes them to distinct values and is drawn once,
from `table_seed`. Tokens: keys, values, insert (the last one). Bayes knows the map; a reader that does not see the
key (a window of 1) is at `ln K`, level over the values in use. There is nothing to hold in a state.

Reference: Poli et al. (2024), MAD (arXiv 2403.17844), memorization.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field

from probes.task import Batch
from probes.tasks.draws import distinct, integers, on_device
from probes.tasks.recall import Expectation, RecallSettings, RecallTask
from probes.tasks.settings import refuse
from probes.tasks.spread import NEVER, Spread, around, certain


class MemorizationSettings(RecallSettings):
    """Dials of `memorization`."""

    vocab_size: int = Field(256, ge=3)
    length: int = Field(32, ge=2)
    table_seed: int = Field(0, ge=0)
    """Seed of the map."""
    windows: list[int] | None = Field([1])


class Memorization(RecallTask):
    """See the module."""

    name = "memorization"
    Dials = MemorizationSettings

    def setup(self, dials: MemorizationSettings) -> None:
        self.vocab_size, self.length = dials.vocab_size, dials.length
        if dials.length % 2:
            refuse(self.name, "length", dials.length, "pairs take two tokens each", dials.length + 1)
        self.insert = dials.vocab_size - 1
        self.keys = self.insert // 2
        generator = torch.Generator().manual_seed(dials.table_seed)
        self.table = distinct(generator, self.insert - self.keys, self.keys, 1)[0] + self.keys

    def capacity(self) -> int:
        return self.keys

    def derived(self) -> dict[str, Any]:
        return {"keys": self.keys, "table_bits": math.log2(math.perm(self.insert - self.keys, self.keys))}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        keys = integers(generator, 0, self.keys, batch_size, self.length // 2 + 1)
        stream = torch.stack([keys, torch.full_like(keys, self.insert)], 2).flatten(1)[:, : self.length + 1]
        values = on_device(self.table, keys.device)[keys[:, :-1]].repeat_interleave(2, 1)
        answers = (torch.arange(self.length, device=keys.device) % 2 == 1).expand(batch_size, -1)
        return self.finish(stream, answers, values, {}, {})

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[batch.latents["answers"]])

    def chance(self, batch: Batch) -> Spread:
        used = self.table.to(batch.tokens.device).expand(int(batch.latents["answers"].sum()), -1)
        return around(torch.full_like(used[:, 0], NEVER, dtype=torch.float64), 0, 0, used, -math.log(self.keys))

    def windowed(self, batch: Batch, width: int) -> Spread:
        return self.bayes(batch) if width > 1 else self.chance(batch)

    def stream(self, batch: Batch) -> Spread:
        return certain(torch.full_like(batch.tokens[batch.scored & ~batch.latents["answers"]], self.insert))

    def expectations(self) -> dict[str, Expectation]:
        ignorant = Expectation(math.log(self.keys), 1 / self.keys)
        result = {"bayes": Expectation(0.0, 1.0), "chance": ignorant}
        for width in self.chosen.windows or []:
            result[f"window_{width}"] = result["bayes"] if width > 1 else ignorant
        return result
