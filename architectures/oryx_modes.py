"""Which mixer writes which token's output, layer by layer, and how much attention that saves.

The mode is data: the control tensor `mode (B, T)` int64, 0 attention, 1 linear, for every layer that follows it, and
`mode_0`, `mode_1`, ... for one layer each. A tensor on the CPU can be read without waiting, so the layer's `Plan` names
the attended segments and attention is computed for those alone. A tensor on an accelerator is not read: both mixers
are computed everywhere and each token picks its own, with shapes that do not depend on the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import nearest_name
from .oryx_spec import ATTENTION, LINEAR, control_names

Path = Literal["auto", "dense", "sparse"]
"""How a mixture is computed. `dense`: both mixers at every token; `sparse`: attention at the tokens in attention mode
alone, which reads the tensor on the host; `auto`: sparse where the tensor is on the CPU and has few segments."""

MOST_SEGMENTS = 64
"""More attended segments than this are cheaper in one dense product."""


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `stop` of the sequences `rows` (None: of all) that are in attention mode."""

    start: int
    stop: int
    rows: Tensor | None
    count: int
    """Number of those sequences."""

    def pairs(self, before: int) -> int:
        """Query-key pairs that causal attention of these tokens has, with `before` tokens ahead of the first."""
        length = self.stop - self.start
        return self.count * (length * (before + self.start) + length * (length + 1) // 2)


@dataclass(frozen=True)
class Plan:
    """What one layer computes for `(B, T)` tokens.

    `attends (B, T)` boolean says which mixer writes; None where `single` says it for all. `segments` are the tokens for
    which attention is computed, None for all.
    """

    single: int | None
    attends: Tensor | None = None
    segments: tuple[Segment, ...] | None = None

    @property
    def linear(self) -> bool:
        """Whether any output of the recurrence is needed."""
        return self.single != ATTENTION

    @property
    def attention(self) -> bool:
        """Whether any output of attention is needed."""
        return self.single != LINEAR

    def pairs(self, batch: int, length: int, before: int) -> int:
        """Query-key pairs that are computed, counted causally."""
        if not self.attention:
            return 0
        if self.segments is None:
            return Segment(0, length, None, batch).pairs(before)
        return sum(segment.pairs(before) for segment in self.segments)

    @property
    def fraction(self) -> Tensor | float:
        """Fraction of the tokens in attention mode; a tensor where it would have to be waited for."""
        return float(self.single == ATTENTION) if self.attends is None else self.attends.float().mean()


class Modes:
    """The plans of all layers for one call, made from its control tensors.

    ValueError for a control tensor with an unknown name, another shape than the tokens', another type than int64, or
    (on the CPU) another value than 0 and 1.
    """

    def __init__(self, layers: Sequence[str], control: Mapping[str, Tensor], tokens: Tensor, path: Path) -> None:
        for name, tensor in control.items():
            _check(name, tensor, tokens, control_names(layers))
        self.device, self.path = tokens.device, path
        self.batch, self.length = tokens.shape
        fixed = {"follow": self._plan(control.get("mode")), "attention": Plan(ATTENTION), "linear": Plan(LINEAR)}
        own = {
            layer: self._plan(control[f"mode_{layer}"]) for layer in range(len(layers)) if f"mode_{layer}" in control
        }
        self.plans = [own.get(layer, fixed[mode]) for layer, mode in enumerate(layers)]
        parts = [(plan.fraction, sum(plan is used for used in self.plans)) for plan in (*fixed.values(), *own.values())]
        self.fraction = sum(fraction * count for fraction, count in parts if count) / len(layers)

    def _plan(self, mode: Tensor | None) -> Plan:
        if mode is None:
            return Plan(ATTENTION)
        attends = mode == ATTENTION
        if self.path == "dense" or (self.path == "auto" and mode.device.type != "cpu"):
            return Plan(None, attends.to(self.device, non_blocking=True))
        attends = attends.cpu()
        total = int(attends.sum())
        if total in (0, attends.numel()):
            return Plan(ATTENTION if total else LINEAR)
        segments = _segments(attends, MOST_SEGMENTS if self.path == "auto" else attends.shape[1])
        if segments is not None:
            segments = tuple(
                s if s.rows is None else Segment(s.start, s.stop, s.rows.to(self.device, non_blocking=True), s.count)
                for s in segments
            )
        return Plan(None, attends.to(self.device, non_blocking=True), segments)

    def metrics(self, before: int = 0) -> dict[str, Any]:
        """`attention_fraction`: of the tokens, mean over layers; `attention_pairs`: computed query-key pairs as a
        fraction of those of attention at every token of every layer (dense computation: 1)."""
        whole = Segment(0, self.length, None, self.batch).pairs(before) * len(self.plans)
        computed = sum(plan.pairs(self.batch, self.length, before) for plan in self.plans)
        return {"attention_fraction": self.fraction, "attention_pairs": computed / max(1, whole)}


def _segments(attends: Tensor, most: int) -> tuple[Segment, ...] | None:
    """The attended tokens `(B, T)`, cut where any sequence changes its mode; None for more than `most` segments."""
    batch, length = attends.shape
    changes = (attends[:, 1:] != attends[:, :-1]).any(0).nonzero().flatten() + 1
    cuts = [0, *changes.tolist(), length]
    if len(cuts) - 1 > most:
        return None
    found = []
    for start, stop in pairwise(cuts):
        rows = attends[:, start].nonzero().flatten()
        if len(rows):
            found.append(Segment(start, stop, None if len(rows) == batch else rows, len(rows)))
    return tuple(found)


def _check(name: str, tensor: Tensor, tokens: Tensor, known: set[str]) -> None:
    if name not in known:
        raise ValueError(f"control: unknown {name!r}; nearest: {nearest_name(name, known)!r}")
    if tensor.shape != tokens.shape:
        raise ValueError(f"control.{name}: shape {tuple(tensor.shape)}, the tokens have {tuple(tokens.shape)}")
    if tensor.dtype != torch.int64:
        raise ValueError(f"control.{name}: {tensor.dtype}; nearest: torch.int64")
    if tensor.device.type == "cpu" and bool(((tensor != ATTENTION) & (tensor != LINEAR)).any()):
        wrong = tensor[(tensor != ATTENTION) & (tensor != LINEAR)][0].item()
        raise ValueError(f"control.{name}: {wrong} is no mode; nearest: {min(1, max(0, wrong))}")
