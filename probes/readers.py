"""Exact readers as models: memories whose answers are known without training, in the place of a trained model.

Each reads `(B, T)` tokens and predicts at every position `t` the value stored under the key `x_t`. A pair `(x_{s-1},
x_s)` is written when its second token is read, if the first lies in `keys` and the second in `values` (ranges `[low,
high)`; None: all tokens, so that every two neighbours are a pair). `scores` are what the memory holds for each value;
`log_prob` is the reader's exact prediction; called as a model (`model:probes.readers:RingBuffer`), a reader returns
`sharpness * scores` as logits, its only parameter being the sharpness.

- `Induction`: what followed the last occurrence of `x_t`; certain, or level where there is none.
- `RingBuffer(slots)`: the same among the last `slots` pairs written; level where the key is not among them.
- `OuterProduct(dimension, decay)`: `M_t = decay M_{t-1} + k(x_{s-1}) e(x_s)^T`, read as `k(x_t)^T M_t`. Keys are random
  sign vectors of length 1, values unit vectors. With `decay < 1` it fades by age in tokens. Scores are divided by the
  largest, so that neutral filler, which scales all of them alike, changes no prediction.

Reference: State-space book, chapters 15 and 16; Schlag et al. (2021), Linear transformers are secretly fast weight
programmers (arXiv 2102.11174).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Reader(nn.Module, ABC):
    """Base: which pairs are written, and predictions from scores."""

    def __init__(self, vocab_size: int, keys: Sequence[int] | None = None, values: Sequence[int] | None = None) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.keys, self.values = (_range(part, vocab_size) for part in (keys, values))
        self.sharpness = nn.Parameter(torch.tensor(20.0))

    @abstractmethod
    def scores(self, tokens: Tensor) -> Tensor:
        """`(B, T, V)` float64: what is held for each value under the key at each position."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(B, T, V)`, `sharpness * scores`."""
        return self.sharpness * self.scores(tokens).to(self.sharpness.dtype)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """The exact prediction, `(B, T, V)` float64: even over the values with the largest score, if it is positive.

        Elsewhere even over all values.
        """
        scores = self.scores(tokens)
        best = scores.amax(-1, keepdim=True)
        token = torch.arange(self.vocab_size, device=tokens.device)
        possible = (token >= self.values[0]) & (token < self.values[1])
        chosen = torch.where(best > 0, scores == best, possible)
        return torch.where(chosen, 0.0, -math.inf).double() - chosen.sum(-1, keepdim=True).double().log()

    def written(self, tokens: Tensor) -> Tensor:
        """Boolean `(B, T)`: the positions whose token completes a pair."""
        first, second = ((tokens >= low) & (tokens < high) for low, high in (self.keys, self.values))
        return torch.nn.functional.pad(first[:, :-1], (1, 0)) & second

    def matches(self, tokens: Tensor) -> Tensor:
        """Boolean `(B, T, T)`: `[t, s]`, the pair completed at `s <= t` has the key `x_t`."""
        keys = tokens.roll(1, 1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        return (tokens[:, :, None] == keys[:, None, :]) & (place[:, None] >= place) & self.written(tokens)[:, None, :]


class Induction(Reader):
    """See the module."""

    def scores(self, tokens: Tensor) -> Tensor:
        return _last(self.matches(tokens), tokens, self.vocab_size)


class RingBuffer(Reader):
    """See the module."""

    def __init__(
        self, vocab_size: int, slots: int, keys: Sequence[int] | None = None, values: Sequence[int] | None = None
    ) -> None:
        super().__init__(vocab_size, keys, values)
        self.slots = slots

    def scores(self, tokens: Tensor) -> Tensor:
        number = self.written(tokens).long().cumsum(1)
        kept = number[:, :, None] - number[:, None, :] < self.slots
        return _last(self.matches(tokens) & kept, tokens, self.vocab_size)


class OuterProduct(Reader):
    """See the module."""

    def __init__(
        self,
        vocab_size: int,
        dimension: int,
        decay: float = 1.0,
        keys: Sequence[int] | None = None,
        values: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(vocab_size, keys, values)
        self.decay = decay
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (vocab_size, dimension), generator=generator).double() * 2 - 1
        self.register_buffer("codes", signs / math.sqrt(dimension))

    def scores(self, tokens: Tensor) -> Tensor:
        codes: Tensor = self.codes[tokens]  # type: ignore[index]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        writes = self.written(tokens)
        # ages count from the last pair written: tokens since then scale all weights alike and are left out
        latest = torch.where(writes, place, 0).cummax(1).values
        age = latest[:, :, None] - place
        weight = torch.where((age >= 0) & writes[:, None, :], self.decay ** age.clamp(min=0).double(), 0.0)
        overlap = codes @ codes.roll(1, 1).transpose(1, 2)
        held = (overlap * weight) @ torch.nn.functional.one_hot(tokens, self.vocab_size).double()
        largest = held.amax(-1, keepdim=True)
        return held / torch.where(largest > 0, largest, 1.0)


def _last(match: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    """1 at the token of the last matching position, 0 elsewhere: `(B, T, V)` float64."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    last = torch.where(match, place, -1).amax(-1)
    found = torch.nn.functional.one_hot(tokens.gather(1, last.clamp(min=0)), vocab_size).double()
    return found * (last >= 0)[..., None]


def _range(given: Sequence[int] | None, vocab_size: int) -> tuple[int, int]:
    low, high = given or (0, vocab_size)
    if not 0 <= low < high <= vocab_size:
        raise ValueError(f"range {list(given or ())} of tokens is empty or outside 0..{vocab_size}")
    return low, high
