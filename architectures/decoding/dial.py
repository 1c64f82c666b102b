"""A gate's firing rate as a dial: the model's own gate is computed and paid for, the decision comes from a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ..amor_trigger import Gate, Trigger
from ..context import Context


def even_pattern(rate: float, room: int, batch: int, block: int, blocks: int) -> Tensor:
    """Decisions `(B, room)` uint8 that fire at `rate`, evenly spread, blocks and sequences out of step.

    Token t of sequence b fires where `floor((t + s + 1) rate) > floor((t + s) rate)`, with a shift s that spreads the
    `B * blocks` patterns over one period. Any n tokens in a row hold `n rate` firing ones to within one.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate: {rate} is not in [0, 1]; nearest: {min(1.0, max(0.0, rate))}")
    place = torch.arange(room, dtype=torch.float64)
    shift = (torch.arange(batch, dtype=torch.float64) * blocks + block) / (batch * blocks)
    phase = place * rate + shift[:, None]
    return ((phase + rate).floor() > phase.floor()).to(torch.uint8)


class Dialled(Trigger):
    """The trigger `inner`, whose score is computed as ever, with its decisions replaced by `fires (B, room)` uint8."""

    fires: Tensor

    def __init__(self, inner: Trigger, fires: Tensor) -> None:
        super().__init__(inner.d_model, inner.vocab_size, inner.number)
        self.inner = inner
        self.register_buffer("fires", fires, persistent=False)

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        gate = self.inner(features, context, start)
        return gate._replace(fire=self.fires[:, start : start + features.shape[1]] > 0)
