"""Markov chains, a new transition table for each sequence: the bigram statistics must be learnt in context.

The rows of the table are drawn from a symmetric Dirichlet(alpha), the first token is uniform. The table is integrated
out, exactly, by Polya's urn: with `n_ab` transitions `a -> b` so far and `n_a = sum_b n_ab`,

    P(x_{t+1} = b | x_0 .. x_t = a) = (n_ab + alpha) / (n_a + V alpha)

which is the law the tokens are drawn from and Bayes' prediction of them. Restrictions: `window(w)` counts only the
`w - 1` transitions among the last `w` tokens (its first token is taken as given, what it says of the table through the
chain's marginal law is not used); `unigram` counts tokens instead of transitions, `(n_b + V alpha)/(n + V^2 alpha)`;
`chance` is level.

Reference: Edelman et al. (2024), The Evolution of Statistical Induction Heads (arXiv 2402.11004).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from probes.task import IGNORED, Batch, Reference, Task
from probes.tasks.draws import integers, uniforms
from probes.tasks.recall import Positive
from probes.tasks.settings import TaskSettings, read_settings, refuse

ROWS = 32
"""Sequences whose count tables are held at once."""


class MarkovSettings(TaskSettings):
    """Dials of `markov`."""

    vocab_size: int = Field(8, ge=1)
    length: int = Field(128, ge=1)
    concentration: float = Field(1.0, gt=0)
    """`alpha`: small values make rows nearly deterministic, large ones nearly level."""
    burn_in: int = Field(0, ge=0)
    """Positions before this one are not scored."""
    windows: list[Positive] | None = None
    """Widths of the window references; None: an eighth and a half of the length."""
    extrapolate: list[Positive] = Field([])
    """Multiples of the length at which a trained model is also scored."""


class Markov(Task):
    """See the module."""

    name = "markov"
    version = 1

    def __init__(self, **settings: Any) -> None:
        dials = read_settings(MarkovSettings, self.name, settings)
        self.vocab_size, self.length, self.alpha = dials.vocab_size, dials.length, dials.concentration
        if dials.burn_in >= dials.length:
            refuse(self.name, "burn_in", dials.burn_in, "no position is left to score", dials.length - 1)
        if dials.windows is None:
            dials = dials.model_copy(update={"windows": sorted({max(1, self.length // 8), max(1, self.length // 2)})})
        self.chosen = dials
        self.settings = dials.model_dump(mode="json")

    def dials(self) -> dict[str, Any]:
        return {**self.settings, "log_vocab": math.log(self.vocab_size)}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        size, device = self.vocab_size, generator.device
        token = integers(generator, 0, size, batch_size)
        choice = uniforms(generator, self.length, batch_size)
        counts = torch.full((batch_size, size, size), self.alpha, dtype=torch.float64, device=device)
        one = torch.ones(batch_size, 1, 1, dtype=torch.float64, device=device)
        tokens = [token]
        for step in range(self.length):
            row = token[:, None, None].expand(-1, 1, size)
            ladder = counts.gather(1, row)[:, 0].cumsum(1)
            token = (ladder <= choice[step][:, None] * ladder[:, -1:]).sum(1).clamp(max=size - 1)
            counts.scatter_add_(1, row, torch.zeros_like(ladder)[:, None].scatter(2, token[:, None, None], one))
            tokens.append(token)
        stream = torch.stack(tokens, 1)
        targets = stream[:, 1:].clone()
        targets[:, : self.chosen.burn_in] = IGNORED
        return Batch(stream[:, :-1].contiguous(), targets)

    def references(self) -> dict[str, Reference]:
        found: dict[str, Reference] = {"bayes": Counting(self, bigrams=True)}
        for width in self.chosen.windows or []:
            found[f"window_{width}"] = Counting(self, bigrams=True, width=width)
        return {**found, "unigram": Counting(self, bigrams=False), "chance": Counting(self, bigrams=False, width=0)}

    def evaluations(self) -> dict[str, Task]:
        changes = [(factor, {"length": factor * self.length, "extrapolate": []}) for factor in self.chosen.extrapolate]
        return {f"length_x{factor}": Markov(**{**self.settings, **change}) for factor, change in changes}


class Counting(Reference):
    """`(n_b + c) / (sum_b n_b + V c)`, with `n_b` the times that `b` followed.

    `bigrams`: followed the current token, and `c = alpha`; else any token, and `c = V alpha`.
    `width`: among the last `width` tokens only; 0 counts nothing.
    """

    def __init__(self, task: Markov, *, bigrams: bool, width: int | None = None) -> None:
        self.task, self.bigrams, self.width = task, bigrams, width

    def log_prob(self, batch: Batch) -> Tensor:
        parts = []
        for start in range(0, len(batch), ROWS):
            some = batch.rows(start, start + ROWS)
            picked = self._table(some).gather(2, some.targets.clamp(min=0)[..., None])[..., 0]
            parts.append(torch.where(some.scored, picked, 0.0))
        return torch.cat(parts)

    def log_predictive(self, batch: Batch) -> Tensor:
        blocks = [batch.rows(start, start + ROWS) for start in range(0, len(batch), ROWS)]
        return torch.cat([self._table(block)[block.scored] for block in blocks])

    def _table(self, batch: Batch) -> Tensor:
        """`(B, T, V)` log-probabilities."""
        tokens, size = batch.tokens, self.task.vocab_size
        place = torch.arange(tokens.shape[1], device=tokens.device)
        # pair s is the step from token s - 1 to token s, which position t has read when s <= t
        counted = (place[None, :] <= place[:, None]) & (place > 0)
        if self.width is not None:
            counted = counted & (place[None, :] - 1 > place[:, None] - self.width)
        weight = counted.expand(len(batch), -1, -1)
        if self.bigrams:
            weight = weight & (tokens.roll(1, 1)[:, None, :] == tokens[:, :, None])
        elif self.width is None:
            weight = (place[None, :] <= place[:, None]).expand(len(batch), -1, -1)
        follower = torch.nn.functional.one_hot(tokens, size).double()
        counts = weight.double() @ follower + (self.task.alpha if self.bigrams else size * self.task.alpha)
        return (counts / counts.sum(2, keepdim=True)).log()
