"""A head that tells every token of a sequence from the features at its end.

    logits_i = W_2 GELU(W_1 (h_T + c_i) + b_1) + b_2

with the normalised features `h_T` of the last position and a sinusoidal code `c_i` of position `i`. Everything that is
said of the sequence must pass through `h_T`.

Reference: Poli et al. (2024), MAD (arXiv 2403.17844), compression; the code is that of Vaswani et al. (2017).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PositionMLP(nn.Module):
    """`hidden` units between `d_model` features and `vocab_size` logits."""

    def __init__(self, d_model: int, hidden: int, vocab_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, hidden)
        self.outer = nn.Linear(hidden, vocab_size)

    def coded(self, features: Tensor) -> Tensor:
        """`h_T + c_i` for every position `i`: `(B, T, D)` of features `(B, T, D)`."""
        return features[:, -1:] + position_code(features.shape[1], features.shape[2]).to(features)

    def forward(self, coded: Tensor) -> Tensor:
        """Logits `(..., V)` of `coded` `(..., D)`."""
        return self.outer(F.gelu(self.inner(coded)))


def position_code(length: int, width: int) -> Tensor:
    """`(T, D)`: sines, then cosines, of `i 10000^(-2j/D)`."""
    rates = 10000.0 ** (-2.0 * torch.arange((width + 1) // 2) / width)
    angle = torch.arange(length)[:, None] * rates
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width]
