"""Multi-query associative recall: key-value pairs, then each key once more, to be answered with its value.

Layout, `N = pairs`, `s = distractors`, `b = blanks`, slots of two tokens:

    k_1 v_1 ... k_N v_N | k'_1 v'_1 ... k'_s v'_s | blank * b | slot slot ... slot (+ one filler if a token is left)

A slot is `(key, filler)`, the key's target being its value, or `(filler, filler)`. Keys and values are drawn without
replacement; the `N` queries take slots `g = 1, 2, ...` without replacement in proportion to `g^(a - 1)`, and are
matched with the keys at random. Tokens: 0 blank, then filler, then keys, then values.

Exact answers of restricted readers (`M` values in the vocabulary):

- Bayes, and any reader that holds the pair: the value.
- `window(w)`: with the pair's key out of sight, one of the `h` queried pairs whose keys are out of sight was asked
  for, all alike. If the window's first token is the value of such a pair, that value has probability `1/h`; the rest
  is level over the values that are not in the window.
- `slots(d)`: the last `d` pairs, distractors included; for other keys level over the `M - d` values not kept.

Reference: Arora et al. (2023), Zoology (arXiv 2312.04927), appendix E and figure 2; see docs/tasks.md for deviations.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from probes.task import Batch
from probes.tasks.draws import distinct, integers, shuffled, weighted_distinct
from probes.tasks.recall import Expectation, Load, RecallSettings, RecallTask, octave
from probes.tasks.settings import refuse, refuse_many
from probes.tasks.spread import NEVER, Spread, around, certain, choose, level
from probes.tasks.successive import inclusion, next_inclusion


class MqarSettings(RecallSettings):
    """Dials of `mqar`."""

    vocab_size: int = Field(256, ge=4)
    length: int = Field(64, ge=4)
    pairs: int = Field(8, ge=1)
    """Pairs that are queried, `N`."""
    gap_power: float = Field(1.0, gt=0)
    """`a`: 1 spreads the queries evenly, smaller values bring them closer to the pairs (zoology: 0.01)."""
    distractors: int = Field(0, ge=0)
    """Pairs between the queried ones and the queries, never asked for."""
    blanks: int = Field(0, ge=0)
    """Neutral tokens between the pairs and the queries."""
    filler: int | None = Field(None, ge=0)
    """Tokens that filler is drawn from; 0: blanks; None: an eighth of the vocabulary."""


class Mqar(RecallTask):
    """See the module."""

    name = "mqar"
    Dials = MqarSettings

    def setup(self, dials: MqarSettings) -> None:
        self.vocab_size, self.length = dials.vocab_size, dials.length
        self.pairs, self.stored = dials.pairs, dials.pairs + dials.distractors
        self.filler = max(1, dials.vocab_size // 8) if dials.filler is None else dials.filler
        room = dials.vocab_size - 1 - self.filler
        if room < 2:
            refuse(self.name, "filler", self.filler, "no tokens are left for keys and values", dials.vocab_size - 3)
        self.first_key = 1 + self.filler
        self.first_value = self.first_key + room // 2
        self.keys, self.values = room // 2, room - room // 2
        if self.stored > self.keys:
            key = "pairs" if dials.pairs > self.keys else "distractors"
            fits = self.keys if key == "pairs" else self.keys - dials.pairs
            refuse(self.name, key, getattr(dials, key), f"more pairs than the {self.keys} keys", fits)
        self.start = 2 * self.stored + dials.blanks
        self.slot_count = max(0, (dials.length - self.start) // 2)
        if self.slot_count < dials.pairs:
            others = {"distractors": dials.distractors, "blanks": dials.blanks}
            reason = ", ".join(["with their queries", *(f"{key} = {value}" for key, value in others.items() if value)])
            fits = (dials.length - 2 * dials.distractors - dials.blanks) // 4
            need = self.start + 2 * dials.pairs
            refuse_many(self.name, "pairs", dials.pairs, reason, fits, dials.length, need)
        gap = torch.arange(1, self.slot_count + 1, dtype=torch.float64)
        self.log_weights = (dials.gap_power - 1) * gap.log()

    def resolved(self) -> dict[str, Any]:
        return {"filler": self.filler}

    def capacity(self) -> int:
        return self.stored

    def derived(self) -> dict[str, Any]:
        return {"keys": self.keys, "values": self.values, "separation": self.start}

    def load(self) -> Load:
        log_count = math.lgamma(self.values + 1) - math.lgamma(self.values - self.pairs + 1)
        return Load(self.pairs, self.values, log_count)

    def slot_bits(self) -> float:
        return math.log2(self.keys) + math.log2(self.values)

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        keys = distinct(generator, self.keys, self.stored, batch_size) + self.first_key
        values = distinct(generator, self.values, self.stored, batch_size) + self.first_value
        # in ascending order, so that the match with the keys, which are in random order, is uniform
        slots = weighted_distinct(generator, self.log_weights, self.pairs, batch_size).sort(-1).values
        asked = shuffled(generator, self.pairs, batch_size)
        places = self.start + 2 * slots

        tokens = keys.new_zeros(batch_size, self.length + 1)
        tokens[:, 0 : 2 * self.stored : 2] = keys
        tokens[:, 1 : 2 * self.stored : 2] = values
        if self.filler:
            rest = self.length + 1 - self.start
            tokens[:, self.start :] = integers(generator, 1, 1 + self.filler, batch_size, rest)
        tokens.scatter_(1, places, keys.gather(1, asked))
        answers = torch.zeros(batch_size, self.length, dtype=torch.bool, device=tokens.device)
        answers.scatter_(1, places, True)
        blank = tokens.new_full((batch_size, self.length), -1)
        pair = blank.scatter(1, places, asked)
        gap = blank.scatter(1, places, octave(places - (2 * asked + 1)))
        values = blank.scatter_(1, places, values.gather(1, asked))
        return self.finish(tokens, answers, values, {"pair": pair}, {"gap_octave": gap, "pair": pair})

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[batch.latents["answers"]])

    def chance(self, batch: Batch) -> Spread:
        return level(int(batch.latents["answers"].sum()), self.first_value, self.vocab_size, batch.tokens.device)

    def windowed(self, batch: Batch, width: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        pair = batch.latents["pair"][row, place]
        first = (place - width + 1).clamp(min=0)
        hidden_keys = ((first + 1) // 2).clamp(max=self.stored)
        in_sight = torch.arange(self.stored, device=row.device) >= (first // 2)[:, None]
        log_p, rest = self._suspicion(first, hidden_keys.clamp(max=self.pairs), in_sight.sum(1))
        values = batch.tokens[row, 1 : 2 * self.stored : 2]
        half = torch.arange(self.stored, device=row.device) == (first // 2)[:, None]
        guess = self._level(rest, torch.where(in_sight, values, -1), torch.where(half, log_p[:, None], NEVER))
        return choose(pair >= hidden_keys, certain(batch.targets[row, place]), guess)

    def kept(self, batch: Batch, slots: int) -> Spread:
        row, place = batch.latents["answers"].nonzero(as_tuple=True)
        kept = torch.arange(self.stored, device=row.device) >= self.stored - slots
        values = torch.where(kept, batch.tokens[row, 1 : 2 * self.stored : 2], -1)
        rest = torch.full((len(row),), -math.log(max(1, self.values - int(kept.sum()))), dtype=torch.float64)
        guess = self._level(rest.to(row.device), values, NEVER)
        return choose(
            batch.latents["pair"][row, place] >= self.stored - slots, certain(batch.targets[row, place]), guess
        )

    def _level(self, rest: Tensor, tokens: Tensor, log_p: Tensor | float) -> Spread:
        return around(rest, self.first_value, self.vocab_size, tokens, log_p)

    def _suspicion(self, first: Tensor, hidden: Tensor, in_sight: Tensor) -> tuple[Tensor, Tensor]:
        """For a key out of sight: log-probability of a value cut off from its key, and of each value out of sight.

        `first`: the window's first position; `hidden`: the queried pairs whose keys are out of sight; `in_sight`: the
        values in the window.
        """
        cut_off = (first % 2 == 1) & (first < 2 * self.pairs)
        suspicion = torch.where(cut_off, 1 / hidden.clamp(min=1).double(), 0.0)
        others = (self.values - in_sight).clamp(min=1)
        return suspicion.log(), torch.log1p(-suspicion) - others.double().log()

    def expectations(self) -> dict[str, Expectation]:
        """Means over the query's slot, whose law is the slots' inclusion probability, and over the pair asked for."""
        weight = inclusion(self.log_weights, self.pairs) / self.pairs
        place = self.start + 2 * torch.arange(self.slot_count)
        result = {"bayes": Expectation(0.0, 1.0), "chance": Expectation(math.log(self.values), 1 / self.values)}
        for width in self.chosen.windows or []:
            first = (place - width + 1).clamp(min=0)
            hidden = ((first + 1) // 2).clamp(max=self.pairs)
            log_half, log_rest = self._suspicion(first, hidden, self.stored - (first // 2).clamp(max=self.stored))
            half = log_half.exp()
            surprise = -torch.special.xlogy(half, half) - torch.where(half < 1, (1 - half) * log_rest, 0.0)
            unseen = hidden / self.pairs
            loss = (weight * unseen * surprise).sum()
            right = (weight * (1 - unseen + unseen * torch.maximum(half, log_rest.exp()))).sum()
            result[f"window_{width}"] = Expectation(float(loss), float(right))
        for slots in self.chosen.slots or []:
            held = abstaining_accuracy(slots, self.pairs, self.stored - self.pairs)
            others = max(1, self.values - min(slots, self.stored))
            result[f"slots_{slots}"] = Expectation((1 - held) * math.log(others), held + (1 - held) / others)
        return result

    def stream(self, batch: Batch) -> Spread:
        tokens = torch.cat([batch.tokens, batch.latents["last"]], 1)
        row, place = (batch.scored & ~batch.latents["answers"]).nonzero(as_tuple=True)
        coming = place + 1
        index = torch.arange(self.stored, device=row.device)
        in_pairs, is_key = coming < 2 * self.stored, coming % 2 == 0
        so_far = torch.where(index < (coming // 2)[:, None], 1, 0).bool()
        seen_keys = torch.where(so_far, tokens[row, 0 : 2 * self.stored : 2], -1)
        seen_values = torch.where(so_far, tokens[row, 1 : 2 * self.stored : 2], -1)
        left_keys, left_values = self.keys - so_far.sum(1), self.values - so_far.sum(1)
        key = around(-left_keys.clamp(min=1).double().log(), self.first_key, self.first_value, seen_keys, NEVER)
        value = self._level(-left_values.clamp(min=1).double().log(), seen_values, NEVER)

        noise = certain(torch.zeros_like(row))
        if self.filler:
            noise = level(len(row), 1, 1 + self.filler, row.device)
        noise = choose(coming >= self.start, noise, certain(torch.zeros_like(row)))
        slot = (coming - self.start) // 2
        opens = (coming >= self.start) & ((coming - self.start) % 2 == 0) & (slot < self.slot_count)
        slot = slot.clamp(0, self.slot_count - 1)
        taken = batch.latents["answers"][:, self.start : self.start + 2 * self.slot_count : 2]
        chance = next_inclusion(self.log_weights, self.pairs, taken)[row, slot]
        asked_at = torch.full((len(batch), self.stored), self.length, device=row.device)
        at = batch.latents["answers"].nonzero(as_tuple=True)
        asked_at[at[0], batch.latents["pair"][at]] = at[1]
        open_keys = (asked_at[row] > place[:, None]) & (index < self.pairs)
        left = open_keys.sum(1)
        each = (chance.log() - left.double().log())[:, None]
        candidates = torch.where(open_keys, tokens[row, 0 : 2 * self.stored : 2], -1)
        quiet = torch.log1p(-chance)
        if self.filler:
            question = around(quiet - math.log(self.filler), 1, 1 + self.filler, candidates, each)
        else:
            blank = torch.cat([torch.zeros_like(row)[:, None], candidates], 1)
            question = around(quiet, 0, 0, blank, torch.cat([quiet[:, None], each.expand_as(candidates)], 1))
        pairs = choose(is_key, key, value)
        return choose(in_pairs, pairs, choose(opens, question, noise))


def abstaining_accuracy(slots: int, pairs: int, later: int) -> float:
    """Accuracy of a memory of the last `slots` pairs that abstains on the others: `clip((d - s) / N, 0, 1)`."""
    return min(1.0, max(0.0, (slots - later) / pairs))
