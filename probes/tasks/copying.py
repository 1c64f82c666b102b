"""Copying: a string, then a separator, then the string again, token by token.

    x_1 ... x_n | blank * b | separator | x_1 ... x_{n-1}

The separator has target `x_1`, each repeated `x_i` has target `x_{i+1}`. Symbols are independent and uniform on `A`
tokens. Tokens: 0 separator, 1 blank, then the symbols.

Exact answers of restricted readers: a window sees `x_i` where it is to be repeated iff `w >= n + b + 1`, the same for
all `i`, and is at `ln A` otherwise; `slots(d)` keeps the last `d` symbols; the n-gram copier `ngram(g)` knows the whole
string but not its place in it, and spreads evenly over the successors of all places in the string whose last `g`
tokens are those just read (the start of the string counting as the separator).

Reference: Jelassi et al. (2024), Repeat After Me (arXiv 2402.01032).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field

from probes.task import Batch
from probes.tasks.draws import integers
from probes.tasks.recall import AnswerRule, Expectation, Load, Positive, RecallSettings, RecallTask
from probes.tasks.spread import NEVER, Spread, around, certain, choose, level

SEPARATOR, BLANK, FIRST = 0, 1, 2


class CopySettings(RecallSettings):
    """Dials of `copy`."""

    vocab_size: int = Field(18, ge=3)
    string: int = Field(16, ge=1)
    """Symbols to copy, `n`; the length is `2 n + b`."""
    blanks: int = Field(0, ge=0)
    """Neutral tokens between the string and the separator, `b`."""
    ngrams: list[Positive] = Field([1, 2])
    """Contexts of the n-gram copiers."""


class Copy(RecallTask):
    """See the module."""

    name = "copy"
    Dials = CopySettings

    def setup(self, dials: CopySettings) -> None:
        self.vocab_size, self.string, self.blanks = dials.vocab_size, dials.string, dials.blanks
        self.symbols = dials.vocab_size - FIRST
        self.start = dials.string + dials.blanks
        self.length = self.start + dials.string

    def capacity(self) -> int:
        return self.string

    def load(self) -> Load:
        return Load(self.string, self.symbols, self.string * math.log(self.symbols))

    def stretched(self, factor: int) -> dict[str, Any]:
        return {**self.settings, "string": factor * self.string}

    def derived(self) -> dict[str, Any]:
        return {"symbols": self.symbols, "separation": self.start + 1}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        string = integers(generator, FIRST, self.vocab_size, batch_size, self.string)
        tokens = string.new_full((batch_size, self.length + 1), BLANK)
        tokens[:, : self.string] = string
        tokens[:, self.start] = SEPARATOR
        tokens[:, self.start + 1 :] = string
        place = torch.arange(self.length, device=tokens.device).expand(batch_size, -1)
        return self.finish(tokens, place >= self.start, tokens[:, 1:], {}, {"position": place - self.start})

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[:, self.start :].flatten())

    def chance(self, batch: Batch) -> Spread:
        return level(len(batch) * self.string, FIRST, self.vocab_size, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        return self.bayes(batch) if width > self.start else self.chance(batch)

    def kept(self, batch: Batch, slots: int) -> Spread:
        index = torch.arange(self.string, device=batch.tokens.device).repeat(len(batch))
        return choose(index >= self.string - slots, self.bayes(batch), self.chance(batch))

    def ngram(self, batch: Batch, size: int) -> Spread:
        """Even over the successors, in the string, of the last `size` tokens read."""
        string = batch.tokens[:, : self.string]
        match = torch.ones(len(batch), self.string, self.string, dtype=torch.bool, device=string.device)
        for back in range(1, min(size, self.string) + 1):
            same = torch.zeros_like(match)
            same[:, back:, back:] = string[:, : self.string - back, None] == string[:, None, : self.string - back]
            # places nearer to the start than `back` are told apart by the separator
            index = torch.arange(back, device=string.device)
            same[:, index, index] = True
            match &= same
        weight = torch.zeros(len(batch), self.string, self.vocab_size, dtype=torch.float64, device=string.device)
        weight.scatter_add_(2, string[:, None, :].expand_as(match), match.double())
        log_p = (weight / weight.sum(2, keepdim=True)).log().flatten(0, 1)
        every = torch.arange(self.vocab_size, device=string.device).expand(len(log_p), -1)
        return around(log_p.new_full((len(log_p),), NEVER), 0, 0, every, log_p)

    def further_rules(self) -> Mapping[str, AnswerRule]:
        def rule(size: int) -> AnswerRule:
            return lambda batch: self.ngram(batch, size)

        return {f"ngram_{size}": rule(size) for size in self.chosen.ngrams}  # type: ignore[attr-defined]

    def stream(self, batch: Batch) -> Spread:
        coming = (batch.scored & ~batch.latents["answers"]).nonzero(as_tuple=True)[1] + 1
        symbol = level(len(coming), FIRST, self.vocab_size, coming.device)
        return choose(coming < self.string, symbol, certain(torch.where(coming == self.start, SEPARATOR, BLANK)))

    def expectations(self) -> dict[str, Expectation]:
        ignorant = Expectation(math.log(self.symbols), 1 / self.symbols)
        result = {"bayes": Expectation(0.0, 1.0), "chance": ignorant}
        for width in self.chosen.windows or []:
            result[f"window_{width}"] = result["bayes"] if width > self.start else ignorant
        for slots in self.chosen.slots or []:
            held = min(1.0, slots / self.string)
            result[f"slots_{slots}"] = Expectation(
                (1 - held) * ignorant.log_loss, held + (1 - held) * ignorant.accuracy
            )
        return result
