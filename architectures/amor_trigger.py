"""What makes an AMOR block fire: the native entropy gate, and everything it is compared with.

A trigger is called as `(features (B, T, D), context, start)`, `start` being the position of the first token, and
returns a `Gate`. `TRIGGERS` has the classes by the names of `amor_spec.TRIGGERS`, whose parameters they take.

Shapes: `B` sequences, `T` tokens, `D = d_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .amor_gate import Statistics, closeness, normalised_entropy, score_positions
from .amor_router import Router
from .context import Context


class Gate(NamedTuple):
    """`fire (B, T)` boolean; `score (B, T)` what was compared with the threshold, None where nothing was;
    `weight (B, T)` what the update is multiplied with besides, None: 1."""

    fire: Tensor
    score: Tensor | None = None
    weight: Tensor | None = None


class Trigger(nn.Module):
    """Base. `number` is the block's, from 0; `vocab_size` the head's."""

    def __init__(self, d_model: int, vocab_size: int, number: int) -> None:
        super().__init__()
        self.d_model, self.vocab_size, self.number = d_model, vocab_size, number

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        raise NotImplementedError


class Scored(Trigger):
    """A trigger that fires where its score is above the running statistics of that score."""

    def __init__(self, d_model: int, vocab_size: int, number: int, **statistics: float) -> None:
        super().__init__(d_model, vocab_size, number)
        self.statistics = Statistics(**statistics)

    def score(self, features: Tensor, context: Context) -> Tensor:
        """The score, `(B, T)` float32."""
        raise NotImplementedError

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        score = self.score(features, context)
        return Gate(self.statistics(score), score)


class EntropyTrigger(Scored):
    """The native gate: the entropy of the model's own next-token distribution, over log V."""

    def score(self, features: Tensor, context: Context) -> Tensor:
        assert context.head is not None
        return score_positions(features, context.head, self.vocab_size, normalised_entropy)


class MarginTrigger(Scored):
    """One minus the gap between the two largest probabilities of that distribution."""

    def score(self, features: Tensor, context: Context) -> Tensor:
        assert context.head is not None
        return score_positions(features, context.head, self.vocab_size, closeness)


class RouterTrigger(Scored):
    """A router's estimate of the entropy, distilled from the native gate (`probes.distil`) or left untrained."""

    def __init__(self, d_model: int, vocab_size: int, number: int, *, hidden: int, **statistics: float) -> None:
        super().__init__(d_model, vocab_size, number, **statistics)
        self.router = Router(d_model, hidden)

    def score(self, features: Tensor, context: Context) -> Tensor:
        return self.router(features)


class InputTrigger(Scored):
    """A learned function of the features: linear, or with one layer of `hidden` SiLU units.

    The update of a firing position is multiplied with `sigmoid(score)`, which is how the decision learns; where it does
    not fire no gradient flows, so that the dense and the sparse form agree.

    Reference: the router of Mixture-of-Depths, Raposo et al. 2024, arXiv 2404.02258, section 3.3.
    """

    def __init__(self, d_model: int, vocab_size: int, number: int, *, hidden: int, **statistics: float) -> None:
        super().__init__(d_model, vocab_size, number, **statistics)
        self.hidden = nn.Linear(d_model, hidden) if hidden else None
        self.out = nn.Linear(hidden or d_model, 1)

    def score(self, features: Tensor, context: Context) -> Tensor:
        x = features if self.hidden is None else F.silu(self.hidden(features))
        return self.out(x)[..., 0].float()

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        score = self.score(features, context)
        return Gate(self.statistics(score), score.detach(), torch.sigmoid(score))


class ControlTrigger(Trigger):
    """A tensor from outside, `context.control[name] (B, T)`: above its running statistics, or above 0."""

    def __init__(
        self, d_model: int, vocab_size: int, number: int, *, name: str, compare: str, **statistics: float
    ) -> None:
        super().__init__(d_model, vocab_size, number)
        self.name = name
        self.statistics = Statistics(**statistics) if compare == "statistics" else None

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        if self.name not in context.control:
            given = ", ".join(context.control) or "none"
            raise ValueError(f"control: the trigger reads {self.name!r}, which was not given (given: {given})")
        value = context.control[self.name]
        if value.shape != features.shape[:-1]:
            raise ValueError(f"control.{self.name}: shape {tuple(value.shape)}, not {tuple(features.shape[:-1])}")
        score = value.detach().float()
        return Gate(score > 0 if self.statistics is None else self.statistics(score), score)


class PositionTrigger(Trigger):
    """Every `every`-th position, from `offset` on."""

    def __init__(self, d_model: int, vocab_size: int, number: int, *, every: int, offset: int) -> None:
        super().__init__(d_model, vocab_size, number)
        self.every, self.offset = every, offset

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        place = torch.arange(start, start + features.shape[1], device=features.device)
        return Gate(((place - self.offset) % self.every == 0).expand(features.shape[:-1]))


class RandomTrigger(Trigger):
    """Independently with probability `rate`, by a hash of seed, block, training step, sequence and position.

    The same seed gives the same draws on every device, whole or token by token; each training step has its own, and
    every evaluation batch the same.
    """

    rate: Tensor
    steps: Tensor

    def __init__(self, d_model: int, vocab_size: int, number: int, *, rate: float, seed: int) -> None:
        super().__init__(d_model, vocab_size, number)
        self.seed = seed
        self.register_buffer("rate", torch.tensor(rate, dtype=torch.float32))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        batch, length = features.shape[:2]
        if self.training:
            self.steps += 1
        stream = _mix(self.steps * self.training + _mix(torch.full_like(self.steps, self.seed * 1009 + self.number)))
        row = torch.arange(batch, device=features.device)[:, None]
        place = torch.arange(start, start + length, device=features.device)
        bits = _mix(_mix(stream + row) + place)
        uniform = ((bits >> 40) & 0xFFFFFF).float() / 2**24
        return Gate(uniform < self.rate)


class ConstantTrigger(Trigger):
    """Everywhere, or nowhere."""

    fires: bool

    def forward(self, features: Tensor, context: Context, start: int) -> Gate:
        return Gate(torch.full(features.shape[:-1], self.fires, dtype=torch.bool, device=features.device))


class AlwaysTrigger(ConstantTrigger):
    """Causal attention at every position."""

    fires = True


class NeverTrigger(ConstantTrigger):
    """No attention: the same function as an output projection set to zero."""

    fires = False


TRIGGERS: dict[str, type[Trigger]] = {
    "entropy": EntropyTrigger,
    "margin": MarginTrigger,
    "router": RouterTrigger,
    "random_router": RouterTrigger,
    "input": InputTrigger,
    "position": PositionTrigger,
    "random": RandomTrigger,
    "always": AlwaysTrigger,
    "never": NeverTrigger,
    "control": ControlTrigger,
}


def make_trigger(params: Mapping[str, Any], d_model: int, vocab_size: int, number: int) -> Trigger:
    """The trigger of a resolved spec for block `number`."""
    settings = {key: value for key, value in params.items() if key != "kind"}
    return TRIGGERS[params["kind"]](d_model, vocab_size, number, **settings)


_GOLDEN, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mix(x: Tensor) -> Tensor:
    """One step of splitmix64 on int64, whose products wrap. Reference: Steele, Lea & Flood 2014, figure 17."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))
