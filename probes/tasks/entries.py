"""Entries in a book, one of which is looked up: what `phonebook` and `needle` share.

The context is `offset` filler tokens and `C` cells of `e` tokens; `K` cells hold entries, the others filler. An entry
is an optional marker, a key of `k` tokens and a value of `m` tokens; the query follows the context:

    ... | marker? key value | filler * e | ... || query key v_1 ... v_{m-1}

The query key's last token has target `v_1`, each `v_j` read back has target `v_{j+1}`. Keys are distinct, uniform on
the `A^k` words over `A` key tokens; value tokens are independent and uniform on `D` tokens; each entry is as likely to
be asked for as any other.

Exact answers of a window: an entry with its whole key in sight is read. Otherwise the window's first cell may hold the
end of an entry whose key is cut. With `h` entries wholly out of sight and `f` whole keys in sight, none of them the
query's, the cut entry was asked for with odds

    [its visible key tokens agree with the query's] [its visible digits agree with those read back] D^{-r}
        :  h D^{-j} (A^c - n - a) / (A^k - f - 1)

where `c` of its key tokens are out of sight, `n` whole keys in sight end as it does, `a` is 1 if the query's does, `j`
digits have been read back, and `r` of them fall on digits of the cut entry that are out of sight.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from probes.task import Batch
from probes.tasks.draws import distinct, integers
from probes.tasks.entry_means import expected_window
from probes.tasks.recall import Expectation, RecallSettings, RecallTask, octave
from probes.tasks.settings import refuse, refuse_many
from probes.tasks.spread import NEVER, Spread, around, certain, choose, level

LARGEST_KEY_SPACE = 2**40


class EntriesTask(RecallTask):
    """Base of the two tasks. Tokens: 0 query, then the marker if there is one, filler, key tokens, value tokens."""

    entries: int
    key_length: int
    value_length: int
    marker: bool
    filler: int
    key_tokens: int
    value_tokens: int
    depth: float | None
    repeated: bool

    def arrange(self, settings: RecallSettings, context: int) -> None:
        """Sets the layout from the attributes above and the length of the context."""
        self.first_filler = 1 + int(self.marker)
        self.first_key = self.first_filler + self.filler
        self.first_value = self.first_key + self.key_tokens
        self.vocab_size = self.first_value + self.value_tokens
        self.words = self.key_tokens**self.key_length
        if self.words > LARGEST_KEY_SPACE:
            fits = int(LARGEST_KEY_SPACE ** (1 / self.key_length))
            refuse(self.name, "key_tokens", self.key_tokens, f"more than {LARGEST_KEY_SPACE} keys", fits)
        if self.entries > self.words:
            refuse(self.name, self.entries_dial, self.entries, f"more entries than the {self.words} keys", self.words)
        self.entry = int(self.marker) + self.key_length + self.value_length
        self.query = context
        self.length = context + self.key_length + self.value_length
        self.cells = context // self.entry
        self.offset = context - self.cells * self.entry
        if self.cells < self.entries:
            need = self.entries * self.entry + self.key_length + self.value_length
            reason = f"{self.entry} tokens each, and the query"
            refuse_many(self.name, self.entries_dial, self.entries, reason, self.cells, self.length, need)

    entries_dial = "entries"

    def capacity(self) -> int:
        return self.entries

    def slot_bits(self) -> float:
        return math.log2(self.words) + self.value_length * math.log2(self.value_tokens)

    def derived(self) -> dict[str, Any]:
        return {"cells": self.cells, "entry_tokens": self.entry, "keys": self.words}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        count, device = self.entries, generator.device
        cell = self._cells(generator, batch_size)
        words = distinct(generator, self.words, count, batch_size)
        power = self.key_tokens ** torch.arange(self.key_length - 1, -1, -1, device=device)
        keys = words[:, :, None] // power % self.key_tokens + self.first_key
        shape = (batch_size, count, self.value_length)
        values = integers(generator, self.first_value, self.vocab_size, *shape)
        entry = torch.cat([keys, values], 2)
        if self.marker:
            entry = torch.cat([torch.ones_like(entry[:, :, :1]), entry], 2)

        tokens = self._haystack(generator, batch_size)
        start = self.offset + cell * self.entry
        place = start[:, :, None] + torch.arange(self.entry, device=device)
        tokens.scatter_(1, place.flatten(1), entry.flatten(1))
        tokens[:, self.query] = 0
        tokens[:, self.query + 1 :] = entry[:, 0, int(self.marker) :]
        at = torch.arange(self.length, device=device).expand(batch_size, -1)
        answers = at >= self.query + self.key_length
        source = start[:, :1] + int(self.marker) + self.key_length - 1 + at - (self.query + self.key_length)
        slices = {
            "depth_decile": (10 * start[:, :1] // self.query).expand_as(at),
            "gap_octave": octave((at - source).clamp(min=1)),
            "digit": at - (self.query + self.key_length),
        }
        return self.finish(tokens, answers, tokens[:, 1:], {"start": start}, slices)

    def _cells(self, generator: torch.Generator, batch_size: int) -> Tensor:
        """The entries' cells `(B, K)`, that of the one asked for first."""
        if self.depth is None:
            return distinct(generator, self.cells, self.entries, batch_size)
        asked = round(self.depth * (self.cells - 1))
        others = distinct(generator, max(1, self.cells - 1), max(1, self.entries - 1), batch_size)
        others = others + (others >= asked).long()
        here = others.new_full((batch_size, 1), asked)
        return torch.cat([here, others[:, : self.entries - 1]], 1)

    def _haystack(self, generator: torch.Generator, batch_size: int) -> Tensor:
        if not self.filler:
            return torch.zeros(batch_size, self.length + 1, dtype=torch.int64, device=generator.device)
        if self.repeated:
            cycle = torch.arange(self.length + 1, device=generator.device) % self.filler + self.first_filler
            return cycle.repeat(batch_size, 1)
        return integers(generator, self.first_filler, self.first_key, batch_size, self.length + 1)

    def bayes(self, batch: Batch) -> Spread:
        return certain(batch.targets[batch.latents["answers"]])

    def chance(self, batch: Batch) -> Spread:
        return level(len(batch) * self.value_length, self.first_value, self.vocab_size, batch.tokens.device)

    def kept(self, batch: Batch, slots: int) -> Spread:
        start = batch.latents["start"]
        later = (start > start[:, :1]).sum(1)
        held = (later < slots).repeat_interleave(self.value_length)
        return choose(held, self.bayes(batch), self.chance(batch))

    def windowed(self, batch: Batch, width: int) -> Spread:
        tokens, start, marker = batch.tokens, batch.latents["start"], int(self.marker)
        device = tokens.device
        digit = torch.arange(self.value_length, device=device)
        place = self.query + self.key_length + digit
        first = (place - width + 1)[None, :, None]
        key_at = (start + marker)[:, None]
        whole = (key_at >= first).double()
        cut = (key_at < first) & (key_at + self.key_length + self.value_length > first)
        out_of_sight = (first - key_at).clamp(0, self.entry)

        has_cut = cut.any(2)
        cut_start = torch.where(cut, key_at, 0).amax(2)
        lost = torch.where(cut, out_of_sight, 0).amax(2)
        lost_key = lost.clamp(max=self.key_length)
        lost_value = (lost - self.key_length).clamp(min=0)
        hidden = self.entries - whole.sum(2) - has_cut.double()

        index = torch.arange(self.key_length, device=device)
        visible = index >= lost_key[..., None]
        end = _take(tokens, cut_start[..., None] + index)
        asked = tokens[:, None, self.query + 1 : self.query + 1 + self.key_length]
        agrees = ((end == asked) | ~visible).all(2)
        keys = _take(tokens, key_at[:, 0][:, :, None] + index)
        alike = ((keys[:, None] == end[:, :, None]) | ~visible[:, :, None]).all(3)
        same_end = (alike * whole).sum(2)
        ways = (self.key_tokens ** lost_key.double() - same_end - agrees.double()).clamp(min=0)
        ways = ways / (self.words - whole.sum(2) - 1).clamp(min=1)

        digits = _take(tokens, cut_start[..., None] + self.key_length + digit)
        answer = tokens[:, None, self.query + 1 + self.key_length :]
        answer = torch.nn.functional.pad(answer, (0, self.value_length - answer.shape[2]))
        read = digit < digit[:, None]
        shown = digit >= lost_value[..., None]
        digits_agree = ((digits == answer) | ~(read & shown)).all(2)
        blind = (read & ~shown).sum(2).double()
        log_odds = torch.where(agrees & digits_agree & has_cut, 0.0, NEVER) - blind * math.log(self.value_tokens)
        against = hidden.log() + ways.log() - digit.double() * math.log(self.value_tokens)
        if self.depth is not None:
            known = cut[:, :, 0]
            log_odds, against = torch.where(known, 0.0, NEVER).double(), torch.where(known, NEVER, 0.0).double()
        log_cut = log_odds - torch.logaddexp(log_odds, against)
        legible = has_cut & (lost_value <= digit)
        log_cut = torch.where(legible, log_cut, NEVER).flatten()

        rest = torch.log(-torch.expm1(log_cut)) - math.log(self.value_tokens)
        candidate = digits.gather(2, digit.expand(len(batch), -1)[..., None])[..., 0].flatten()
        listed = torch.where(legible.flatten(), candidate, -1)[:, None]
        guess = around(rest, self.first_value, self.vocab_size, listed, torch.logaddexp(log_cut, rest)[:, None])
        return choose(whole[:, :, 0].bool().flatten(), self.bayes(batch), guess)

    def expectations(self) -> dict[str, Expectation]:
        ignorant = Expectation(math.log(self.value_tokens), 1 / self.value_tokens)
        result = {"bayes": Expectation(0.0, 1.0), "chance": ignorant}
        for width in self.chosen.windows or []:
            result[f"window_{width}"] = expected_window(self, width)
        if self.depth is None:
            for slots in self.chosen.slots or []:
                held = min(1.0, slots / self.entries)
                loss = (1 - held) * ignorant.log_loss
                result[f"slots_{slots}"] = Expectation(loss, held + (1 - held) * ignorant.accuracy)
        return result

    def stream(self, batch: Batch) -> Spread:
        others = batch.scored & ~batch.latents["answers"]
        row, place = others.nonzero(as_tuple=True)
        coming, device = place + 1, place.device
        start = batch.latents["start"].sort(1).values[row]
        cell, inside = (coming - self.offset) // self.entry, (coming - self.offset) % self.entry
        earlier = start + inside[:, None] < coming[:, None]
        current = coming - inside
        occupied = (start == current[:, None]).any(1)
        token = inside - int(self.marker)

        fresh = level(len(row), self.first_value, self.vocab_size, device)
        fresh = choose(
            token < self.key_length,
            self._key_token(batch, row, start, earlier, current + int(self.marker), token),
            fresh,
        )
        noise = certain(torch.zeros_like(row))
        if self.repeated:
            noise = certain(coming % self.filler + self.first_filler)
        elif self.filler:
            noise = level(len(row), self.first_filler, self.first_key, device)
        free = (self.cells - cell).clamp(min=1).double()
        chance = (self.entries - earlier.sum(1)) / free
        if self.depth is not None:
            asked = round(self.depth * (self.cells - 1))
            left = self.entries - earlier.sum(1) - (cell <= asked).long()
            chance = torch.where(cell == asked, 1.0, left / (free - (cell <= asked).double()).clamp(min=1))
        if self.marker:
            at_start = _with_marker(noise, chance)
            noise = choose((inside == 0) & (coming >= self.offset), at_start, noise)
            occupied &= inside > 0
        context = choose(occupied & (coming >= self.offset), fresh, noise)
        whole = torch.ones_like(earlier)
        if self.depth is not None:
            whole = start == batch.latents["start"][row, :1]
        asked_at = torch.full_like(coming, self.query + 1)
        question = self._key_token(batch, row, start, whole, asked_at, coming - asked_at, distinct=False)
        question = choose(coming == self.query, certain(torch.zeros_like(row)), question)
        return choose(coming < self.query, context, question)

    def _key_token(
        self,
        batch: Batch,
        row: Tensor,
        start: Tensor,
        among: Tensor,
        key_at: Tensor,
        token: Tensor,
        distinct: bool = True,
    ) -> Spread:
        """Token `token` of the key at `key_at`, given those before it.

        `distinct`: of a key that none of the entries `among` has; otherwise of the key of one of them.
        """
        token = token.clamp(0, self.key_length - 1)
        index = torch.arange(self.key_length, device=row.device)
        words = batch.tokens[row[:, None, None], start[:, :, None] + int(self.marker) + index]
        begun = batch.tokens[row[:, None], (key_at[:, None] + index).clamp(max=self.length - 1)]
        same = ((words == begun[:, None]) | (index >= token[:, None, None])).all(2) & among
        following = words.gather(2, token[:, None, None].expand(-1, words.shape[1], 1))[..., 0] - self.first_key
        count = torch.zeros(len(row), self.key_tokens, dtype=torch.float64, device=row.device)
        count.scatter_add_(1, following, same.double())
        if distinct:
            count = (self.key_tokens ** (self.key_length - 1 - token).double())[:, None] - count
        log_p = (count / count.sum(1, keepdim=True)).log()
        every = torch.arange(self.first_key, self.first_value, device=row.device).expand(len(row), -1)
        return around(torch.full_like(log_p[:, 0], NEVER), 0, 0, every, log_p)


def _with_marker(noise: Spread, chance: Tensor) -> Spread:
    """The marker (token 1) with probability `chance` `(n,)`, noise otherwise."""
    quiet = torch.log1p(-chance)[:, None]
    marker = torch.ones_like(chance, dtype=torch.int64)[:, None]
    tokens = torch.cat([marker, noise.tokens], 1)
    log_p = torch.cat([chance.double().log()[:, None], noise.log_p + quiet], 1)
    return Spread(noise.low, noise.high, noise.level + quiet, tokens, log_p)


def _take(tokens: Tensor, place: Tensor) -> Tensor:
    """`tokens[b, place[b, ...]]`, places beyond the end clamped (their values are masked by the caller)."""
    flat = place.clamp(0, tokens.shape[1] - 1).flatten(1)
    return tokens.gather(1, flat).view(place.shape)
