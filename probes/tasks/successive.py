"""Successive sampling: `k` of `n` items, each draw in proportion to the weights left. Exact probabilities.

With independent clocks `E_i ~ Exp(w_i)` the sample is the set of the `k` that ring first. For a set `S` of size `k`

    P(S) = int_0^inf W(S^c) prod_{i in S} (1 - e^{-w_i t}) prod_{i not in S} e^{-w_i t} dt

with `W(S^c) = sum_{i not in S} w_i` (the integral by parts over the time of the `k`-th ring). Sums over sets are
products over items of polynomials in the number taken; the factor `W` is carried as a derivative beside them. The
integral is taken by the trapezoid rule in `log t`, which converges geometrically, since the integrand is smooth and
vanishes at both ends.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 2**20
"""Numbers of a temporary array."""


def inclusion(log_weights: Tensor, k: int) -> Tensor:
    """Probability of each item to be among the `k`: `(n,)` float64. `log_weights` is `(n,)`."""
    n = len(log_weights)
    if k == n or _even(log_weights):
        return torch.full((n,), k / n, dtype=torch.float64)
    grid = _Grid(log_weights, k)
    before, after = grid.tables(range(n)), grid.tables(range(n - 1, -1, -1))
    result = []
    for item in range(n):
        (head, head_slope), (tail, tail_slope) = before[item], after[n - 1 - item]
        tail, tail_slope = tail[:k].flip(0), tail_slope[:k].flip(0)
        sets = (head[:k] * tail_slope + head_slope[:k] * tail).sum(0)
        result.append((grid.step * grid.rung[item] * sets).sum())
    return torch.stack(result)


def next_inclusion(log_weights: Tensor, k: int, taken: Tensor) -> Tensor:
    """`P(item s is taken | taken[:, :s])` for every `s`: `(B, n)` float64; `taken` `(B, n)` boolean, `k` in a row."""
    n = len(log_weights)
    seen = taken.long().cumsum(1) - taken.long()
    if k == n or _even(log_weights):
        return (k - seen).double() / (n - torch.arange(n, device=taken.device))
    grid = _Grid(log_weights, k)
    tail = grid.tables(range(n - 1, -1, -1))[:n][::-1]
    rows = max(1, CHUNK // len(grid.step))
    parts = zip(taken.cpu().split(rows), seen.cpu().split(rows), strict=True)
    chunks = [_conditional(grid, tail, part, count, k) for part, count in parts]
    return torch.cat(chunks).to(taken.device)


def _conditional(grid: _Grid, tail: list[tuple[Tensor, Tensor]], taken: Tensor, seen: Tensor, k: int) -> Tensor:
    log_factor = torch.zeros(len(taken), len(grid.step), dtype=torch.float64)
    spared = torch.zeros(len(taken), 1, dtype=torch.float64)
    columns = []
    for item, (level, slope) in enumerate(tail):
        factor = (log_factor - log_factor.amax(1, keepdim=True)).exp() * grid.step
        left = k - seen[:, item]
        with_it = (left - 1).clamp(min=0)
        yes = grid.rung[item] * (spared * level[with_it] + slope[with_it])
        no = grid.silent[item] * ((spared + grid.weights[item]) * level[left] + slope[left])
        take = torch.where(left > 0, (factor * yes).sum(1), 0.0)
        columns.append(take / (take + (factor * no).sum(1)))
        here = taken[:, item, None]
        log_factor = log_factor + torch.where(here, grid.rung[item].log(), grid.silent[item].log())
        spared = spared + torch.where(here, 0.0, grid.weights[item])
    return torch.stack(columns, 1)


class _Grid:
    """Nodes in `log t`, and `P(rung)`, `P(silent)` of each item at each node."""

    def __init__(self, log_weights: Tensor, k: int) -> None:
        self.k = k
        self.weights = (log_weights - log_weights.max()).double().cpu().exp()
        # P(k-th ring > t) is at most the number of sets of n - k items times exp(-t W) for the lightest of them
        n = len(self.weights)
        least = self.weights.sort().values[: n - k].sum()
        sets = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        first, last = -math.log(float(self.weights.sum())) - 45 / k - 1, math.log((45 + sets) / float(least))
        width = min(0.2, 0.2 / math.sqrt(k))
        time = torch.arange(first, last + width, width, dtype=torch.float64).exp()
        self.step = width * time
        self.silent = (-self.weights[:, None] * time).exp()
        self.rung = -torch.expm1(-self.weights[:, None] * time)

    def tables(self, order: range) -> list[tuple[Tensor, Tensor]]:
        """After 0, 1, ... items of `order`: `(k + 1, nodes)` sums over sets of each size, plain and with `W`."""
        level = torch.zeros(self.k + 1, len(self.step), dtype=torch.float64)
        level[0] = 1
        slope = torch.zeros_like(level)
        tables = [(level, slope)]
        for item in order:
            rung, silent = self.rung[item], self.silent[item]
            slope = silent * (slope + self.weights[item] * level) + rung * slope.roll(1, 0).index_fill(0, _ZERO, 0)
            level = silent * level + rung * level.roll(1, 0).index_fill(0, _ZERO, 0)
            tables.append((level, slope))
        return tables


_ZERO = torch.tensor([0])


def _even(log_weights: Tensor) -> bool:
    return bool((log_weights == log_weights[0]).all())
