"""AMOR's gate: what a score of uncertainty is, and the running threshold that it must exceed.

    H_t = -(1 / log V) sum_v p_tv log p_tv,   p_t = softmax(head(h~_t)),   g_t = 1[H_t > tau],   tau = mu + kappa sigma
    mu <- m mu + (1 - m) median(H),   sigma <- m sigma + (1 - m) std(H)

Shapes: `B` sequences, `T` tokens, `D = d_model`, `V` the vocabulary.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, eqs. 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 2**24
"""Logits that a gate holds at once; it looks at more positions than that in parts."""


def normalised_entropy(logits: Tensor) -> Tensor:
    """Entropy of `softmax(logits (..., V))` over `log V`, in [0, 1], float32; 0 for a vocabulary of one (eq. 2)."""
    probability = torch.softmax(logits, dim=-1, dtype=torch.float32)
    in_place = None if probability.requires_grad else probability
    return torch.special.entr(probability, out=in_place).sum(-1) / math.log(max(2, logits.shape[-1]))


def closeness(logits: Tensor) -> Tensor:
    """`1 - (p_1 - p_2)`, the two largest probabilities of `softmax(logits (..., V))`, float32; 0 where V is one.

    Large where the model hesitates between two tokens, as the entropy is; the margin itself is CALM's criterion.

    Reference: Schuster et al. 2022, arXiv 2207.07061, section 3.5.
    """
    if logits.shape[-1] == 1:
        return torch.zeros(logits.shape[:-1], device=logits.device)
    top = torch.softmax(logits.float(), dim=-1).topk(2, dim=-1).values
    return 1 - (top[..., 0] - top[..., 1])


def score_positions(
    features: Tensor, head: Callable[[Tensor], Tensor], vocab_size: int, score: Callable[[Tensor], Tensor]
) -> Tensor:
    """`score(head(features))`, `(B, T, D)` to `(B, T)` float32, without a gradient and without all logits at once.

    Logits are widened to float32 here, so that the head's own are gone before the score makes its copy.
    """
    with torch.no_grad():
        rows = features.detach().flatten(0, -2)
        size = max(1, LARGEST // vocab_size)
        if len(rows) <= size:
            return score(head(rows).float()).view(features.shape[:-1])
        return torch.cat([score(head(part).float()) for part in rows.split(size)]).view(features.shape[:-1])


class Statistics(nn.Module):
    """Exponential averages of the median and the standard deviation of a score, and the threshold from them.

    `forward(score)` is the decision, `score > mu + kappa sigma`. In training the averages are moved first, by the
    lower median and the unbiased standard deviation over all positions of the batch, once a forward pass: micro-batches
    whose gradients are accumulated move them once each, as in the reference code. In evaluation nothing moves. One
    position has no standard deviation, and leaves sigma alone. The buffers stay in float32 whatever the model's dtype;
    nothing here reads a value on the host.

    Reference: AMOR, eqs. 3 and 4; the order, median and deviation from its public code.
    """

    mu: Tensor
    sigma: Tensor

    def __init__(self, *, kappa: float, momentum: float, mu_init: float, sigma_init: float) -> None:
        super().__init__()
        self.kappa, self.momentum = kappa, momentum
        self.register_buffer("mu", torch.tensor(mu_init, dtype=torch.float32))
        self.register_buffer("sigma", torch.tensor(sigma_init, dtype=torch.float32))

    @property
    def tau(self) -> Tensor:
        """The threshold, a float32 scalar."""
        return self.mu + self.kappa * self.sigma

    @torch.no_grad()
    def update(self, score: Tensor) -> None:
        """Moves the averages by one batch of scores, of any shape."""
        values = score.detach().float().flatten()
        self.mu.mul_(self.momentum).add_(values.median(), alpha=1 - self.momentum)
        if values.numel() > 1:
            self.sigma.mul_(self.momentum).add_(values.std(), alpha=1 - self.momentum)

    @torch.no_grad()
    def fix(self, mu: float | Tensor, sigma: float | Tensor = 0.0) -> None:
        """Sets both averages."""
        self.mu.copy_(torch.as_tensor(mu))
        self.sigma.copy_(torch.as_tensor(sigma))

    def forward(self, score: Tensor) -> Tensor:
        """Where `score (B, T)` exceeds the threshold, boolean; the averages are moved first in training."""
        if self.training:
            self.update(score)
        return score.detach() > self.tau

    def _apply(self, fn: Any, recurse: bool = True) -> Statistics:
        kept = self.mu, self.sigma
        super()._apply(fn, recurse)
        moved = self.mu, self.sigma
        self.mu, self.sigma = (
            new.float() if old.is_meta or new.is_meta else old.to(new.device)
            for old, new in zip(kept, moved, strict=True)
        )
        return self
