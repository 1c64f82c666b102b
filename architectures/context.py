"""What passes through a model beside the residual stream, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """`logits (B, T, V)`, or `(n, V)` at the positions asked for; `extras` what else the model has to say.

    `extras["features"]`, when asked for: the residual stream after the embedding and after each block, then the
    normalised one that the head reads, each `(B, T, D)`.
    """

    logits: Tensor
    extras: dict[str, Any]


@dataclass
class Context:
    """Passed to every block of one forward pass.

    `control`: named `(B, T)` tensors from outside (a mode, a gate). `streams`: what earlier layers publish, by the
    layer's name; a later layer of the same name replaces it. `head`: features `(..., D)` to logits `(..., V)`, final
    norm not included. `extras`: what blocks report; it ends up in `Output.extras`.
    """

    control: Mapping[str, Tensor] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)
    head: Callable[[Tensor], Tensor] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
