"""Fuzzy recall: as in-context recall, but keys and values are words of one to several tokens.

    word(key) word(value) word(key) word(value) ...

A key's length is uniform on `1, ..., K_max` (always `K_max` without `vary_keys`), a value's on `1, ..., V_max`; its
tokens are distinct, uniform on the key (or value) tokens. A map drawn anew for each sequence gives a key its value.
The tokens of a value are scored where an earlier pair had the same key; the text is cut at the length.

Exact answers: the position is known to be scored, so the key word is complete and its value known, and Bayes is at 0.
`window_w` is here the reader of whole pairs: it answers where its window holds the current key and an earlier whole
pair with the same one, and otherwise predicts as if the key were new. A half-visible pair is not used, so this is no
bound on what a window can do. `slots(d)`: likewise from the last `d` pairs.

With every position scored, Bayes does not know where a word ends: after `j` of up to `J` tokens it does so with
probability `1 / (J - j + 1)`, unless the value is known; the other tokens of a word are level over those not yet used
in it.

Reference: Poli et al. (2024), MAD (arXiv 2403.17844), fuzzy recall; see docs/tasks.md for deviations.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from probes.task import Batch, Task
from probes.tasks.draws import distinct, integers
from probes.tasks.occurrence import first_occurrence, previous_occurrence
from probes.tasks.recall import RecallSettings, RecallTask, octave
from probes.tasks.settings import refuse
from probes.tasks.spread import NEVER, Spread, certain, choose, level


class FuzzyRecallSettings(RecallSettings):
    """Dials of `fuzzy_recall`."""

    vocab_size: int = Field(15, ge=2)
    """Half of the tokens are for keys, the others for values."""
    length: int = Field(128, ge=2)
    key_motif: int = Field(3, ge=1)
    """Longest key word, `K_max`."""
    value_motif: int = Field(3, ge=1)
    """Longest value word, `V_max`."""
    vary_keys: bool = True
    """Whether keys differ in length; MAD trains with this and tests without."""


class FuzzyRecall(RecallTask):
    """See the module."""

    name = "fuzzy_recall"
    Dials = FuzzyRecallSettings

    def setup(self, dials: FuzzyRecallSettings) -> None:
        self.vocab_size, self.length = dials.vocab_size, dials.length
        self.keys = dials.vocab_size // 2
        self.values = dials.vocab_size - self.keys
        self.key_motif, self.value_motif, self.vary_keys = dials.key_motif, dials.value_motif, dials.vary_keys
        if self.key_motif > self.keys:
            refuse(self.name, "key_motif", self.key_motif, f"a key has distinct tokens, of {self.keys}", self.keys)
        if self.value_motif > self.values:
            fits = self.values
            refuse(self.name, "value_motif", self.value_motif, f"a value has distinct tokens, of {fits}", fits)
        if self.length < self.key_motif + self.value_motif:
            need = self.key_motif + self.value_motif
            refuse(self.name, "length", self.length, "too short for one pair", need)

    def capacity(self) -> int:
        return max(1, round(self.length / self._mean_pair()))

    def _mean_pair(self) -> float:
        key = (1 + self.key_motif) / 2 if self.vary_keys else self.key_motif
        return key + (1 + self.value_motif) / 2

    def derived(self) -> dict[str, Any]:
        return {"keys": self.keys, "values": self.values, "mean_pair_tokens": self._mean_pair()}

    def slot_bits(self) -> float:
        key = math.log2(self.keys) * ((1 + self.key_motif) / 2 if self.vary_keys else self.key_motif)
        return key + math.log2(self.values) * (1 + self.value_motif) / 2

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        shortest = 2 if self.vary_keys else self.key_motif + 1
        count = self.length // shortest + 1
        key_size = integers(generator, 1 if self.vary_keys else self.key_motif, self.key_motif + 1, batch_size, count)
        value_size = integers(generator, 1, self.value_motif + 1, batch_size, count)
        key = distinct(generator, self.keys, self.key_motif, batch_size * count).view(batch_size, count, -1)
        value = distinct(generator, self.values, self.value_motif, batch_size * count).view(batch_size, count, -1)
        index = torch.arange(self.key_motif, device=key.device)
        codes = torch.where(index < key_size[..., None], key + 1, 0)
        codes = (codes * (self.keys + 1) ** index).sum(2)
        first, previous = first_occurrence(codes), previous_occurrence(codes)
        value_size = value_size.gather(1, first)
        value = value.gather(1, first[..., None].expand_as(value)) + self.keys

        # the pair and the place in it of each of the T + 1 tokens
        end = (key_size + value_size).cumsum(1)
        begin = end - key_size - value_size
        at = torch.arange(self.length + 1, device=key.device).repeat(batch_size, 1)
        pair = torch.searchsorted(end, at, right=True)
        inside, own_key = at - begin.gather(1, pair), key_size.gather(1, pair)
        in_word = inside.clamp(max=self.key_motif - 1)
        written = (inside - own_key).clamp(0, self.value_motif - 1)
        key_token = key.flatten(1).gather(1, pair * self.key_motif + in_word)
        value_token = value.flatten(1).gather(1, pair * self.value_motif + written)
        tokens = torch.where(inside < own_key, key_token, value_token)

        earlier = previous.gather(1, pair)
        answers = ((inside >= own_key) & (earlier >= 0))[:, 1:]
        earlier_begin = torch.where(earlier >= 0, begin.gather(1, earlier.clamp(min=0)), -1)
        latents = {"pair": pair, "inside": inside, "own_key": own_key, "earlier": earlier}
        latents |= {"begin": at - inside, "earlier_begin": earlier_begin, "codes": codes, "answer_words": value[..., 0]}
        gap = (at - earlier_begin)[:, :-1]
        slices = {"gap_octave": octave(gap.clamp(min=1)), "digit": (inside - own_key)[:, 1:]}
        return self.finish(tokens, answers, tokens[:, 1:], latents, slices)

    def evaluations(self) -> dict[str, Task]:
        """As for every task; with keys of several lengths also `longest_keys`, which is how MAD tests."""
        if not self.vary_keys:
            return super().evaluations()
        longest = FuzzyRecall(**{**self.settings, "vary_keys": False, "extrapolate": []})
        return {"longest_keys": longest, **super().evaluations()}

    def bayes(self, batch: Batch) -> Spread:
        answers = batch.latents["answers"]
        return self._next(batch, answers, torch.ones_like(batch.targets[answers]).bool(), batch.targets[answers])

    def chance(self, batch: Batch) -> Spread:
        return level(int(batch.latents["answers"].sum()), self.keys, self.vocab_size, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        answers = batch.latents["answers"]
        first = torch.arange(self.length, device=answers.device) - width + 1
        held = (batch.latents["begin"][:, 1:] >= first) & (batch.latents["earlier_begin"][:, 1:] >= first)
        return self._next(batch, answers, held[answers], batch.targets[answers])

    def window(self, width: int) -> None:
        """None: the whole-pair reader is not the best that a window can do."""
        return None

    def kept(self, batch: Batch, slots: int) -> Spread:
        answers = batch.latents["answers"]
        held = (batch.latents["pair"] - batch.latents["earlier"])[:, 1:] <= slots
        return self._next(batch, answers, held[answers], batch.targets[answers])

    def stream(self, batch: Batch) -> Spread:
        others = batch.scored & ~batch.latents["answers"]
        row, place = others.nonzero(as_tuple=True)
        inside, own_key = batch.latents["inside"][row, place], batch.latents["own_key"][row, place]
        # does the part of the key read so far make a key that was seen before?
        index = torch.arange(self.key_motif, device=row.device)
        word = batch.tokens[row[:, None], (place[:, None] - inside[:, None] + index).clamp(0, self.length - 1)]
        code = (torch.where(index <= inside[:, None], word + 1, 0) * (self.keys + 1) ** index).sum(1)
        codes = batch.latents["codes"][row]
        before = torch.arange(codes.shape[1], device=row.device) < batch.latents["pair"][row, place][:, None]
        same = (codes == code[:, None]) & before
        known = batch.latents["answer_words"][row].gather(1, same.long().argmax(1)[:, None])[:, 0]
        in_key = inside < own_key
        seen = torch.where(in_key, same.any(1), batch.latents["earlier"][row, place] >= 0)
        return self._next(batch, others, seen, torch.where(in_key, known, -1))

    def _next(self, batch: Batch, where: Tensor, seen: Tensor, known: Tensor) -> Spread:
        """Distributions of the token after the positions `where`, `(n)` rows.

        `seen`: whether the current pair's value is known; `known`: its next token if so, -1 where it has ended. Where
        only answers are scored, the next token is known to belong to a value.
        """
        row, place = where.nonzero(as_tuple=True)
        inside, own_key = batch.latents["inside"][row, place], batch.latents["own_key"][row, place]
        in_key = inside < own_key
        read = torch.where(in_key, inside, inside - own_key) + 1
        size = torch.where(in_key, self.keys, self.values)
        longest = torch.where(in_key, self.key_motif, self.value_motif)
        stop = 1 / (longest - read + 1).double()
        if not self.vary_keys:
            stop = torch.where(in_key, (read == longest).double(), stop)
        if self.chosen.supervise == "scored":
            stop = in_key.double()
        on = torch.log1p(-stop) - (size - read).clamp(min=1).double().log()
        key_level = torch.where(in_key, on, (stop / self.keys).log())
        value_level = torch.where(in_key, torch.where(seen, NEVER, (stop / self.values).log()), on)
        back = torch.arange(max(self.key_motif, self.value_motif), device=row.device)
        used = torch.where(back < read[:, None], batch.tokens[row[:, None], (place[:, None] - back).clamp(min=0)], -1)
        listed = torch.cat([used, torch.where(in_key & seen, known, -1)[:, None]], 1)
        log_p = torch.cat(
            [torch.full(used.shape, NEVER, dtype=torch.float64, device=row.device), stop.log()[:, None]], 1
        )
        edges = torch.tensor([0, self.keys, self.vocab_size], device=row.device).expand(len(row), 3)
        mixed = Spread(edges[:, :2], edges[:, 1:], torch.stack([key_level, value_level], 1), listed, log_p)
        told = choose(known >= 0, certain(known), level(len(row), 0, self.keys, row.device))
        return choose(~in_key & seen, told, mixed)
