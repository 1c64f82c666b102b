"""Predictive distributions of a memory: level over ranges of tokens, except for a few tokens listed one by one.

What a restricted reader knows of an answer has this form: tokens that it can rule out, one that it suspects, and all
others alike. Kept so, a distribution over 8192 tokens costs a handful of numbers, and exact zeros stay zeros.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

NEVER = -math.inf


class Spread(NamedTuple):
    """`n` distributions over tokens.

    Each token of `low[:, r] <= token < high[:, r]` has log-probability `level[:, r]`, the ranges being disjoint;
    but `tokens[:, j]` (each at most once a row, -1 for none) has `log_p[:, j]`; everything else has probability 0.
    Shapes `(n, r)` int64, int64, float64 and `(n, k)` int64, float64.
    """

    low: Tensor
    high: Tensor
    level: Tensor
    tokens: Tensor
    log_p: Tensor

    def log_prob(self, targets: Tensor) -> Tensor:
        """`log P(targets)` in nats, `(n,)` float64."""
        target = targets[:, None]
        inside = (target >= self.low) & (target < self.high)
        levels = torch.where(inside, self.level, NEVER).amax(1)
        hit = self.tokens == target
        listed = torch.where(hit, self.log_p, NEVER).amax(1) if self.tokens.shape[1] else levels
        return torch.where(hit.any(1), listed, levels)

    def dense(self, vocab_size: int) -> Tensor:
        """Log-probabilities of all tokens, `(n, V)` float64."""
        token = torch.arange(vocab_size + 1, device=self.low.device)
        table = torch.full((len(self.low), vocab_size + 1), NEVER, dtype=torch.float64, device=self.low.device)
        for low, high, level in zip(self.low.T, self.high.T, self.level.T, strict=True):
            inside = (token >= low[:, None]) & (token < high[:, None])
            table = torch.where(inside, level[:, None], table)
        spare = torch.where(self.tokens < 0, vocab_size, self.tokens)
        return table.scatter(1, spare, self.log_p)[:, :vocab_size]


def certain(tokens: Tensor) -> Spread:
    """All probability on `tokens` `(n,)`."""
    return around(tokens.new_zeros(len(tokens)), 0, 0, tokens[:, None], 0.0)


def level(n: int, low: int, high: int, device: torch.device) -> Spread:
    """Uniform on `low, ..., high - 1`, `n` times."""
    none = torch.empty((n, 0), dtype=torch.int64, device=device)
    mass = torch.full((n,), -math.log(high - low), dtype=torch.float64, device=device)
    return around(mass, low, high, none, 0.0)


def around(level: Tensor, low: int, high: int, tokens: Tensor, log_p: Tensor | float) -> Spread:
    """Log-probability `level` `(n,)` on one range, except for `tokens` `(n, k)` with `log_p`, broadcast to `(n, k)`."""
    n = len(level)
    edges = torch.tensor([[low, high]], device=tokens.device).expand(n, 2)
    values = torch.as_tensor(log_p, dtype=torch.float64, device=tokens.device).expand(tokens.shape)
    return Spread(edges[:, :1], edges[:, 1:], level.double()[:, None], tokens, values)


def choose(condition: Tensor, yes: Spread, no: Spread) -> Spread:
    """`yes` in the rows where `condition` `(n,)` holds, `no` in the others."""

    def pad(value: Tensor, width: int, fill: float) -> Tensor:
        return torch.nn.functional.pad(value, (0, width - value.shape[1]), value=fill)

    ranges = max(yes.low.shape[1], no.low.shape[1])
    listed = max(yes.tokens.shape[1], no.tokens.shape[1])
    fields = []
    for one, two, width, fill in zip(yes, no, [ranges] * 3 + [listed] * 2, [0, 0, NEVER, -1, NEVER], strict=True):
        fields.append(torch.where(condition[:, None], pad(one, width, fill), pad(two, width, fill)))
    return Spread(*fields)


def two_ranges(log_one: Tensor, one: tuple[int, int], log_two: Tensor, two: tuple[int, int]) -> Spread:
    """Masses `log_one` and `log_two` `(n,)`, each spread evenly over its own range `low, ..., high - 1`."""
    edges = torch.tensor([one, two], device=log_one.device).T[:, None].expand(2, len(log_one), 2)
    sizes = (edges[1] - edges[0]).double()
    none = torch.empty((len(log_one), 0), dtype=torch.int64, device=log_one.device)
    return Spread(edges[0], edges[1], torch.stack([log_one, log_two], 1) - sizes.log(), none, none.double())
