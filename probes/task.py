"""What a task is: batches drawn from a generator, dials, and references that are exact.

Shapes: `B` sequences, `T` positions, `V` tokens, `n` scored positions of a batch in row-major order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that is not scored."""


@dataclass(frozen=True)
class Batch:
    """Sequences with their targets.

    `tokens (B, T)` int64 are what a model reads; `targets (B, T)` int64 what it must predict at each position,
    `IGNORED` where nothing is scored. `latents` holds what the generator knows and a model does not (regimes,
    spans, ...), leading dimension `B`. `slices` holds `(B, T)` int64 labels by which a score may be split (load,
    gap, depth, ...), -1 where a label does not apply.
    """

    tokens: Tensor
    targets: Tensor
    latents: Mapping[str, Tensor] = field(default_factory=dict)
    slices: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def scored(self) -> Tensor:
        """Boolean `(B, T)`: the positions whose targets count."""
        return self.targets != IGNORED

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        return Batch(
            self.tokens.to(device),
            self.targets.to(device),
            {name: value.to(device) for name, value in self.latents.items()},
            {name: value.to(device) for name, value in self.slices.items()},
        )

    def rows(self, start: int, stop: int) -> Batch:
        """Sequences `start` to `stop`, as views."""
        return Batch(
            self.tokens[start:stop],
            self.targets[start:stop],
            {name: value[start:stop] for name, value in self.latents.items()},
            {name: value[start:stop] for name, value in self.slices.items()},
        )

    def select(self, index: Tensor) -> Batch:
        """The sequences at `index (n,)`, copied, in that order."""
        return Batch(
            self.tokens[index],
            self.targets[index],
            {name: value[index] for name, value in self.latents.items()},
            {name: value[index] for name, value in self.slices.items()},
        )

    @staticmethod
    def concatenate(batches: list[Batch]) -> Batch:
        """One batch with the sequences of all, in order."""
        first = batches[0]
        return Batch(
            torch.cat([batch.tokens for batch in batches]),
            torch.cat([batch.targets for batch in batches]),
            {name: torch.cat([batch.latents[name] for batch in batches]) for name in first.latents},
            {name: torch.cat([batch.slices[name] for batch in batches]) for name in first.slices},
        )


class Reference(ABC):
    """A predictor that is optimal under a stated restriction, or a bound that no predictor may pass.

    `is_bound` marks a bound: it has a log-probability per position but no distribution, and is never drawn as a
    predictor.
    """

    is_bound: ClassVar[bool] = False

    @abstractmethod
    def log_prob(self, batch: Batch) -> Tensor:
        """`log P(target)` in nats, `(B, T)` float64, 0 where unscored."""

    def log_predictive(self, batch: Batch) -> Tensor | None:
        """Log-probabilities of all tokens at the scored positions, `(n, V)` float64; None for a bound."""
        return None


class Task(ABC):
    """A source of sequences whose best predictor is known.

    A subclass is constructed from plain-data keyword arguments, checks them before anything is sampled
    (`TaskError`), and keeps them resolved, defaults included, in `settings`: these, `name` and `version` are its
    identity. `version` goes up whenever the same settings give other data or other references.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    settings: dict[str, Any]
    vocab_size: int
    length: int
    head: Mapping[str, Any] | None = None
    """Declares a head other than next-token logits from the model's last features; None for the usual one."""

    @abstractmethod
    def dials(self) -> dict[str, Any]:
        """The settings and the quantities derived from them (discrimination, load, ...), for reports."""

    @abstractmethod
    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        """Draws `batch_size` sequences on the generator's device: a pure function of its uniform draws."""

    @abstractmethod
    def references(self) -> dict[str, Reference]:
        """References by name; `bayes` is always among them."""

    def window(self, width: int) -> Reference | None:
        """The best prediction from the last `width` tokens, for any width; None where the task has no such form.

        It bounds what a model of receptive field `width` can do.
        """
        return None

    def beliefs(self, batch: Batch) -> dict[str, Tensor]:
        """What an ideal observer of the tokens up to a position believes of each slow variable there.

        Distributions `(n, K)` float64 at the scored positions, row-major, by name; empty where there is none.
        """
        return {}

    def evaluations(self) -> dict[str, Task]:
        """Further tasks on which a model trained on this one is also scored (longer sequences, ...), by name."""
        return {}


class TaskError(ValueError):
    """Settings that no sequence can satisfy; the message names the dial, its value and the nearest valid choice."""
