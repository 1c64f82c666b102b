"""Selective copying: `n` data tokens scattered over `C` places of noise, to be written out in order.

    context of C places | go | blank * n            answers at the blanks (MAD), or
    context of C places | go | x_1 ... x_{n-1}      answers from `go` on, with `teacher_forced`

The places of the data are a uniform `n`-subset, the data independent and uniform on `A` tokens. Noise is the blank, or
drawn from `noise` tokens of its own. Tokens: 0 go, 1 blank, then noise, then data.

Exact answers of restricted readers: places are ordered, so a reader that sees the last `m` data tokens knows which
they are; a window answers `x_i` iff its place is in sight, and so does `slots(d)` with the last `d` tokens. The `i`-th
place lies in the last `c` places of the context with probability `P(Hypergeometric(C, n, c) >= n - i + 1)`.

Reference: Gu and Dao (2023), Mamba (arXiv 2312.00752), section 4.1.1; Poli et al. (2024), MAD (arXiv 2403.17844).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field

from probes.task import Batch
from probes.tasks.draws import distinct, integers
from probes.tasks.recall import Expectation, Load, RecallSettings, RecallTask
from probes.tasks.settings import refuse, refuse_many
from probes.tasks.spread import Spread, certain, choose, level, two_ranges

GO, BLANK = 0, 1


class SelectiveCopySettings(RecallSettings):
    """Dials of `selective_copy`."""

    vocab_size: int = Field(16, ge=3)
    length: int = Field(64, ge=3)
    string: int = Field(8, ge=1)
    """Data tokens, `n`."""
    noise: int = Field(0, ge=0)
    """Noise tokens; 0: the blank is the noise."""
    teacher_forced: bool = False
    """Whether the right tokens are read back while the answer is written."""


class SelectiveCopy(RecallTask):
    """See the module."""

    name = "selective_copy"
    Dials = SelectiveCopySettings

    def setup(self, dials: SelectiveCopySettings) -> None:
        self.vocab_size, self.length, self.string = dials.vocab_size, dials.length, dials.string
        self.first_data = 2 + dials.noise
        self.symbols = dials.vocab_size - self.first_data
        if self.symbols < 1:
            refuse(self.name, "noise", dials.noise, "no tokens are left for data", dials.vocab_size - 3)
        self.first_answer = dials.length - dials.string
        self.context = self.first_answer if dials.teacher_forced else self.first_answer - 1
        if self.context < dials.string:
            extra = 0 if dials.teacher_forced else 1
            fits, need = (dials.length - extra) // 2, 2 * dials.string + extra
            refuse_many(self.name, "string", dials.string, "data tokens twice", fits, dials.length, need)
        self.noise = (2, self.first_data) if dials.noise else (BLANK, BLANK + 1)

    def capacity(self) -> int:
        return self.string

    def load(self) -> Load:
        return Load(self.string, self.symbols, self.string * math.log(self.symbols))

    def derived(self) -> dict[str, Any]:
        return {"symbols": self.symbols, "context": self.context}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        place = distinct(generator, self.context, self.string, batch_size).sort(-1).values
        data = integers(generator, self.first_data, self.vocab_size, batch_size, self.string)
        tokens = data.new_full((batch_size, self.length + 1), BLANK)
        tokens[:, : self.context] = integers(generator, *self.noise, batch_size, self.context)
        tokens.scatter_(1, place, data)
        tokens[:, self.context] = GO
        if self.chosen.teacher_forced:  # type: ignore[attr-defined]
            tokens[:, self.context + 1 :] = data
        values = torch.zeros_like(tokens[:, 1:])
        values[:, self.first_answer :] = data
        at = torch.arange(self.length, device=tokens.device).expand(batch_size, -1)
        return self.finish(
            tokens, at >= self.first_answer, values, {"place": place}, {"position": at - self.first_answer}
        )

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[:, self.first_answer :].flatten())

    def chance(self, batch: Batch) -> Spread:
        return level(len(batch) * self.string, self.first_data, self.vocab_size, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        first = torch.arange(self.first_answer, self.length, device=batch.tokens.device) - width + 1
        return choose((batch.latents["place"] >= first).flatten(), self.bayes(batch), self.chance(batch))

    def kept(self, batch: Batch, slots: int) -> Spread:
        index = torch.arange(self.string, device=batch.tokens.device).repeat(len(batch))
        return choose(index >= self.string - slots, self.bayes(batch), self.chance(batch))

    def stream(self, batch: Batch) -> Spread:
        row, place = (batch.scored & ~batch.latents["answers"]).nonzero(as_tuple=True)
        coming = place + 1
        seen = (batch.latents["place"][row] < coming[:, None]).sum(1)
        left = (self.context - coming).clamp(min=1)
        data = ((self.string - seen) / left.double()).clamp(0, 1)
        ranges = (self.noise, (self.first_data, self.vocab_size))
        mixed = two_ranges(torch.log1p(-data), ranges[0], data.log(), ranges[1])
        return choose(coming < self.context, mixed, certain(torch.where(coming == self.context, GO, BLANK)))

    def expectations(self) -> dict[str, Expectation]:
        ignorant = Expectation(math.log(self.symbols), 1 / self.symbols)
        result = {"bayes": Expectation(0.0, 1.0), "chance": ignorant}
        held = {f"slots_{slots}": min(1.0, slots / self.string) for slots in self.chosen.slots or []}
        for width in self.chosen.windows or []:
            seen = []
            for index in range(self.string):
                in_sight = self.context - max(0, self.first_answer + index - width + 1)
                seen.append(
                    at_least(self.string - index, self.context, self.string, min(self.context, max(0, in_sight)))
                )
            held[f"window_{width}"] = sum(seen) / self.string
        for name, share in held.items():
            loss = (1 - share) * ignorant.log_loss
            result[name] = Expectation(loss, share + (1 - share) * ignorant.accuracy)
        return result


def at_least(count: int, population: int, marked: int, drawn: int) -> float:
    """`P(X >= count)` for the number `X` of marked items among `drawn` of `population` without replacement."""
    ways = sum(
        math.comb(marked, number) * math.comb(population - marked, drawn - number)
        for number in range(count, min(marked, drawn) + 1)
        if drawn - number <= population - marked
    )
    return ways / math.comb(population, drawn)
