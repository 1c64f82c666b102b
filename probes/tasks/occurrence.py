"""Earlier occurrences of the same code in a row, by one stable sort instead of all pairs."""

from __future__ import annotations

import torch
from torch import Tensor


def previous_occurrence(codes: Tensor) -> Tensor:
    """The last `j < i` with `codes[:, j] == codes[:, i]`, -1 where there is none: `(B, n)` int64."""
    order, new = _groups(codes)
    before = torch.where(new, -1, order.roll(1, 1))
    return torch.empty_like(order).scatter_(1, order, before)


def first_occurrence(codes: Tensor) -> Tensor:
    """The first `j <= i` with `codes[:, j] == codes[:, i]`: `(B, n)` int64."""
    order, new = _groups(codes)
    rank = torch.arange(codes.shape[1], device=codes.device)
    leader = torch.where(new, rank, 0).cummax(1).values
    return torch.empty_like(order).scatter_(1, order, order.gather(1, leader))


def _groups(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The stable order of the codes, and where in it a new code begins."""
    ranked, order = codes.sort(dim=1, stable=True)
    new = torch.ones_like(ranked, dtype=torch.bool)
    new[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    return order, new
