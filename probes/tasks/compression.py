"""Compression: a string of independent uniform tokens, then a mark whose features alone must give the string back.

    x_1 ... x_{T-1} mark        target of position `i` is `x_i`, told from the features at the last position

The task declares a head of its own, `{"kind": "position_mlp", "hidden": h}`: the last position's features and a code of
position `i` go through an MLP to the logits of `x_i`. Tokens: symbols, then the mark. With every position scored the
mark is a target too, at no cost.

Exact answers of restricted readers: from the last position a window of `w` sees `x_i` iff `i > T - w`, `slots(d)` keeps
the last `d` symbols; otherwise `ln A`. A state of `S` bits is bound by the string's `(T - 1) log2 A`.

Reference: Poli et al. (2024), MAD (arXiv 2403.17844), compression.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from probes.task import Batch
from probes.tasks.draws import integers
from probes.tasks.recall import Expectation, Load, RecallSettings, RecallTask
from probes.tasks.spread import Spread, certain, choose, level


class CompressionSettings(RecallSettings):
    """Dials of `compression`."""

    vocab_size: int = Field(16, ge=2)
    length: int = Field(32, ge=2)
    head_hidden: int = Field(128, ge=1)
    """Width of the head's MLP; it changes the model, not the data."""


class Compression(RecallTask):
    """See the module."""

    name = "compression"
    Dials = CompressionSettings

    def setup(self, dials: CompressionSettings) -> None:
        self.vocab_size, self.length = dials.vocab_size, dials.length
        self.mark = self.symbols = dials.vocab_size - 1
        self.string = dials.length - 1
        self.head = {"kind": "position_mlp", "hidden": dials.head_hidden}

    def capacity(self) -> int:
        return self.string

    def load(self) -> Load:
        return Load(self.string, self.symbols, self.string * math.log(self.symbols))

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        tokens = integers(generator, 0, self.symbols, batch_size, self.length)
        tokens[:, -1] = self.mark
        place = torch.arange(self.length, device=tokens.device).expand(batch_size, -1)
        # the "next" token of a position is here the position's own
        stream = torch.cat([tokens[:, :1], tokens], 1)
        batch = self.finish(stream, place < self.string, tokens, {}, {"position": place})
        return Batch(tokens, batch.targets, {"answers": batch.latents["answers"]}, batch.slices)

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[:, : self.string].flatten())

    def chance(self, batch: Batch) -> Spread:
        return level(len(batch) * self.string, 0, self.symbols, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        return self.kept(batch, width - 1)

    def kept(self, batch: Batch, slots: int) -> Spread:
        index = torch.arange(self.string, device=batch.tokens.device).repeat(len(batch))
        return choose(index >= self.string - slots, self.bayes(batch), self.chance(batch))

    def stream(self, batch: Batch) -> Spread:
        return certain(torch.full_like(batch.tokens[batch.scored & ~batch.latents["answers"]], self.mark))

    def expectations(self) -> dict[str, Expectation]:
        ignorant = Expectation(math.log(self.symbols), 1 / self.symbols)
        result = {"bayes": Expectation(0.0, 1.0), "chance": ignorant}
        held = {f"window_{width}": (width - 1) / self.string for width in self.chosen.windows or []}
        held |= {f"slots_{slots}": slots / self.string for slots in self.chosen.slots or []}
        for name, share in held.items():
            share = min(1.0, share)
            loss = (1 - share) * ignorant.log_loss
            result[name] = Expectation(loss, share + (1 - share) * ignorant.accuracy)
        return result
