"""In-context recall: pairs `k v k v ...` whose keys come again; a key that was seen before is answered with its value.

Each pair is noise with probability `f` (two tokens of a noise vocabulary), else a key, independent and uniform on `K`
tokens, and the value that a map, drawn anew for each sequence with independent uniform values, gives it. A key is
scored where an earlier pair had it. Tokens: keys, values, noise.

Exact answers of a window: a key with an earlier pair in sight is read. Otherwise the window's first token may be a
value cut off from its key. With `H` pairs out of sight or cut, `rho = (1 - f)/K` and `q = 1/K`, and given that the key
`x` was seen before, the cut key is `x` with weight `q`, and any other key with weight `q (1 - (1 - rho)^(H-1))`. The
value `v` at the edge multiplies the weight of a key in sight by `[its value is v]`, of any other by `1/V`.

Reference: Poli et al. (2024), MAD (arXiv 2403.17844), in-context and noisy recall.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field

from probes.task import Batch
from probes.tasks.draws import integers, uniforms
from probes.tasks.occurrence import first_occurrence, previous_occurrence
from probes.tasks.recall import RecallSettings, RecallTask, octave
from probes.tasks.settings import refuse
from probes.tasks.spread import Spread, around, certain, choose, level, two_ranges


class InContextRecallSettings(RecallSettings):
    """Dials of `in_context_recall`."""

    vocab_size: int = Field(16, ge=2)
    """Tokens in all; half of those that are not noise are keys."""
    length: int = Field(128, ge=2)
    noise: float = Field(0.0, ge=0, lt=1)
    """Probability `f` that a pair is noise."""
    noise_tokens: int = Field(0, ge=0)


class InContextRecall(RecallTask):
    """See the module."""

    name = "in_context_recall"
    Dials = InContextRecallSettings

    def setup(self, dials: InContextRecallSettings) -> None:
        self.vocab_size, self.length, self.noise = dials.vocab_size, dials.length, dials.noise
        if dials.length % 2:
            refuse(self.name, "length", dials.length, "pairs take two tokens each", dials.length + 1)
        self.first_noise = dials.vocab_size - dials.noise_tokens
        if self.first_noise < 2:
            refuse(self.name, "noise_tokens", dials.noise_tokens, "no keys and values are left", dials.vocab_size - 2)
        if dials.noise and not dials.noise_tokens:
            refuse(self.name, "noise_tokens", 0, f"noise = {dials.noise} needs tokens of its own", 1)
        self.keys = self.first_noise // 2
        self.values = self.first_noise - self.keys

    def capacity(self) -> int:
        return self.keys

    def derived(self) -> dict[str, Any]:
        return {"keys": self.keys, "values": self.values}

    def slot_bits(self) -> float:
        return math.log2(self.keys) + math.log2(self.values)

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        count = self.length // 2
        book = integers(generator, self.keys, self.first_noise, batch_size, self.keys)
        keys = integers(generator, 0, self.keys, batch_size, count)
        quiet = uniforms(generator, batch_size, count) >= self.noise
        following = integers(generator, 0, self.keys, batch_size, 1)
        pairs = torch.stack([keys, book.gather(1, keys)], 2)
        if self.noise:
            hiss = integers(generator, self.first_noise, self.vocab_size, batch_size, count, 2)
            pairs = torch.where(quiet[..., None], pairs, hiss)
        codes = torch.where(quiet, keys, self.keys + torch.arange(count, device=keys.device))
        previous = previous_occurrence(codes)
        new = (first_occurrence(codes) == torch.arange(count, device=keys.device)) & quiet
        live = new.long().cumsum(1)

        def spread(value: torch.Tensor) -> torch.Tensor:
            return value.repeat_interleave(2, 1)

        first = torch.arange(self.length, device=keys.device) % 2 == 0
        tokens = torch.cat([pairs.flatten(1), following], 1)
        answers = spread((previous >= 0) & quiet) & first
        gap = torch.arange(self.length, device=keys.device) - 2 * spread(previous) - 1
        slices = {"gap_octave": octave(gap.clamp(min=1)), "live_keys": spread(live)}
        return self.finish(tokens, answers, tokens[:, 1:], {"previous": spread(previous)}, slices)

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[batch.latents["answers"]])

    def chance(self, batch: Batch) -> Spread:
        return level(int(batch.latents["answers"].sum()), self.keys, self.first_noise, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        first = (place - width + 1).clamp(min=0)
        hidden = (first + 1) // 2
        edge = batch.tokens[row, first]
        cut = (first % 2 == 1) & (edge < self.first_noise) & (edge >= self.keys)
        q, rho = 1 / self.keys, (1 - self.noise) / self.keys
        weight = torch.full_like(place, q, dtype=torch.float64)
        other = q * (1 - (1 - rho) ** (hidden - 1).clamp(min=0).double())

        keys, values = batch.tokens[:, 0::2], batch.tokens[:, 1::2]
        table = torch.full((len(row), self.keys + 1), -1, device=row.device)
        index = torch.arange(keys.shape[1], device=row.device)
        in_sight = (2 * index >= first[:, None]) & (2 * index < place[:, None]) & (keys[row] < self.keys)
        table.scatter_(1, torch.where(in_sight, keys[row], self.keys), values[row])
        known = table[:, : self.keys]
        fits = (known == edge[:, None]).sum(1).double()
        unseen = (known < 0).sum(1).double() - 1
        against = other * (fits + unseen / self.values)
        suspicion = torch.where(cut, weight / self.values / (weight / self.values + against), 0.0)
        rest = torch.log1p(-suspicion) - torch.tensor(float(self.values)).double().log()
        listed = torch.where(cut, edge, -1)[:, None]
        log_edge = (suspicion + (1 - suspicion) / self.values).log()[:, None]
        guess = around(rest, self.keys, self.first_noise, listed, log_edge)
        seen = batch.latents["previous"][row, place] >= hidden
        return choose(seen, certain(batch.targets[row, place]), guess)

    def kept(self, batch: Batch, slots: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        held = place // 2 - batch.latents["previous"][row, place] <= slots
        return choose(held, certain(batch.targets[row, place]), self.chance(batch))

    def stream(self, batch: Batch) -> Spread:
        row, place = (batch.scored & ~batch.latents["answers"]).nonzero(as_tuple=True)
        device = row.device
        value = level(len(row), self.keys, self.first_noise, device)
        following, hiss = level(len(row), 0, self.keys, device), value
        if self.noise:
            share = torch.full((len(row),), self.noise, dtype=torch.float64, device=device)
            ranges = (0, self.keys), (self.first_noise, self.vocab_size)
            following = two_ranges(torch.log1p(-share), ranges[0], share.log(), ranges[1])
            hiss = level(len(row), self.first_noise, self.vocab_size, device)
        second = choose(batch.tokens[row, place] < self.keys, value, hiss)
        return choose(place % 2 == 1, following, second)
