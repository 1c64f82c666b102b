"""Induction: in a stream of independent uniform tokens, answer with what followed the current token's last occurrence.

Position `t` is scored where `x_t = x_p` for some `p < t`; with the last such `p` the answer is `x_{p+1}`. The gap
`g = t - p` has `P(g) = (1/A) (1 - 1/A)^(g-1)` for `g = 1, ..., t`. Tokens: all `A` of the vocabulary.

Exact answers of restricted readers: between `p` and `t` the token does not occur, so that an answer from out of sight
is level over the other `A - 1` tokens; but the window's first token may be the answer, if its own predecessor, just
out of sight, was `x_t`: this has probability `P(g = w) / P(w <= g <= t)`. `slots(d)` keeps the last `d` pairs of
neighbours. With every position scored, the other targets are the stream's next tokens, at `ln A` each.

Reference: Olsson et al. (2022), In-context Learning and Induction Heads (arXiv 2209.11895).
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from probes.task import Batch
from probes.tasks.draws import integers
from probes.tasks.occurrence import previous_occurrence
from probes.tasks.recall import Expectation, RecallSettings, RecallTask, octave
from probes.tasks.spread import NEVER, Spread, around, certain, choose, level


class InductionSettings(RecallSettings):
    """Dials of `induction`."""

    vocab_size: int = Field(16, ge=2)
    length: int = Field(64, ge=2)


class Induction(RecallTask):
    """See the module."""

    name = "induction"
    Dials = InductionSettings

    def setup(self, dials: InductionSettings) -> None:
        self.vocab_size, self.length = dials.vocab_size, dials.length
        self.log_miss = math.log1p(-1 / dials.vocab_size)

    def capacity(self) -> int:
        return self.vocab_size

    def slot_bits(self) -> float:
        return 2 * math.log2(self.vocab_size)

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        tokens = integers(generator, 0, self.vocab_size, batch_size, self.length + 1)
        read = tokens[:, :-1]
        previous = previous_occurrence(read)
        values = read.gather(1, (previous + 1).clamp(min=0))
        gap = torch.arange(self.length, device=tokens.device) - previous
        return self.finish(tokens, previous >= 0, values, {"gap": gap}, {"gap_octave": octave(gap.clamp(min=1))})

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[batch.latents["answers"]])

    def chance(self, batch: Batch) -> Spread:
        return level(int(batch.latents["answers"].sum()), 0, self.vocab_size, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        first = place - width + 1
        edge = batch.tokens[row, first.clamp(min=0)]
        log_edge, log_rest = self._suspicion(first, edge != batch.tokens[row, place])
        guess = self._others(batch, row, place, edge, log_edge, log_rest)
        return choose(batch.latents["gap"][row, place] < width, certain(batch.targets[row, place]), guess)

    def kept(self, batch: Batch, slots: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        rest = torch.full((len(row),), -math.log(max(1, self.vocab_size - 1)), dtype=torch.float64, device=row.device)
        guess = around(rest, 0, self.vocab_size, batch.tokens[row, place][:, None], NEVER)
        return choose(batch.latents["gap"][row, place] <= slots, certain(batch.targets[row, place]), guess)

    def _suspicion(self, hidden: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the window's first token and of each token that is neither it nor `x_t`.

        `hidden`: the number of positions out of sight, one of which holds `x_t`; `other`: whether the first token
        differs from `x_t` (it is `x_t` itself for a window of one).
        """
        count = hidden.clamp(min=1).double()
        after_edge = (1 / self.vocab_size) / -torch.expm1(count * self.log_miss)
        after_edge = after_edge.clamp(max=1.0)  # one place out of sight: its rounding may exceed certainty
        each = (1 - after_edge).clamp(min=0) / (self.vocab_size - 1)
        return torch.where(other, after_edge + each, after_edge).log(), each.log()

    def _others(
        self, batch: Batch, row: Tensor, place: Tensor, edge: Tensor, log_edge: Tensor, log_rest: Tensor
    ) -> Spread:
        current = batch.tokens[row, place]
        itself = torch.where(edge == current, -1, current)
        tokens = torch.stack([edge, itself], 1)
        return around(
            log_rest, 0, self.vocab_size, tokens, torch.stack([log_edge, torch.full_like(log_edge, NEVER)], 1)
        )

    def stream(self, batch: Batch) -> Spread:
        others = batch.scored & ~batch.latents["answers"]
        return level(int(others.sum()), 0, self.vocab_size, batch.tokens.device)

    def expectations(self) -> dict[str, Expectation]:
        """Ratios of expected sums over positions: the number of answers varies from sequence to sequence."""
        size = self.vocab_size
        place = torch.arange(self.length, dtype=torch.float64)
        scored = -torch.expm1(place * self.log_miss)
        result = {"bayes": Expectation(0.0, 1.0), "chance": Expectation(math.log(size), 1 / size)}
        ways = [(f"window_{width}", width - 1, width) for width in self.chosen.windows or []]
        ways += [(f"slots_{slots}", slots, 0) for slots in self.chosen.slots or []]
        for name, reach, width in ways:
            hidden = (place - reach).clamp(min=0)
            unseen = (reach * self.log_miss + 0 * place).exp() * -torch.expm1(hidden * self.log_miss)
            if width:
                log_edge, log_rest = self._suspicion(hidden, torch.full_like(hidden, width > 1).bool())
                chance_edge = log_edge.exp().clamp(max=1.0)
                loss = -chance_edge * log_edge - torch.special.xlogy(1 - chance_edge, log_rest.exp())
                right = torch.maximum(chance_edge, log_rest.exp())
            else:
                loss, right = torch.full_like(place, math.log(size - 1)), torch.full_like(place, 1 / (size - 1))
            total = scored.sum()
            result[name] = Expectation(
                float((unseen * loss).sum() / total), float((scored - unseen + unseen * right).sum() / total)
            )
        return result
