"""The two-timescale task: a slow regime that switches rarely, and in each regime a bigram process of its own.

    z_0 ~ uniform,  P(z_{t+1} = z_t) = 1 - eps, else uniform over the other regimes
    x_0 ~ uniform,  P(x_{t+1} = v | z_{t+1}, x_t) = B_{z_{t+1}}[x_t, v],  B_j = (1 - eta) C + eta D_j

The tables are fixed by `table_seed` (drawn as the book draws them, rows from a symmetric Dirichlet distribution); each
sequence is fresh. `T + 1` tokens are drawn: `tokens[t] = x_t`, `targets[t] = x_{t+1}`, scored from `burn_in` on.

Reference: the state-space book, section 14.6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from filters import torch_backend
from filters.diagnostics import mean_discrimination
from filters.hmm import TwoTimescaleHMM, book_tables, matched_rate, overlap_emissions, sticky_transition
from probes.task import IGNORED, Batch, Reference, Task
from probes.tasks.settings import TaskSettings, read_settings, refuse

NOT_STATIONARY = 1e-3
"""Total variation from the stationary law beyond which a window's edge is not taken for stationary."""


class Dials(TaskSettings):
    """The dials of `two_timescale`; the defaults are the book's reference configuration, shorter."""

    regimes: int = Field(4, ge=1)
    vocab: int = Field(12, ge=1)
    overlap: float = Field(0.4, ge=0, le=1)
    """eta: 0, all regimes share one table; 1, nothing is shared."""
    switch_rate: float = Field(0.02, ge=0, le=1)
    """eps: the probability per token that the regime changes."""
    length: int = Field(512, ge=2)
    burn_in: int = Field(128, ge=0)
    concentration: float = Field(0.3, gt=0)
    """Of the Dirichlet distribution of the tables' rows."""
    table_seed: int = Field(0, ge=0)
    windows: list[int] = Field([1, 8, 64])
    """Widths of the window references, each with a uniform and with a stationary edge."""
    decay_switch_rates: list[float] = Field([0.2])
    """Switch rates to whose matched forgetting rates the mistimed fixed-decay references are set."""


class TwoTimescale(Task):
    """`two_timescale`. TaskError where a dial is out of range, or the burn-in leaves nothing to score."""

    name = "two_timescale"
    version = 1

    def __init__(self, **settings: Any) -> None:
        dials = read_settings(Dials, self.name, settings)
        if dials.burn_in >= dials.length:
            refuse(self.name, "burn_in", dials.burn_in, f"leaves nothing of length {dials.length}", dials.length - 1)
        if dials.regimes == 1 and dials.switch_rate > 0:
            refuse(self.name, "switch_rate", dials.switch_rate, "one regime cannot switch", 0.0)
        for width in dials.windows:
            if width < 1:
                refuse(self.name, "windows", dials.windows, "a window holds a token or more", [1])
        self.settings = dials.model_dump()
        self.settings_model = dials
        self._on_device: dict[torch.device, Tensor] = {}
        self.vocab_size, self.length, self.burn_in = dials.vocab, dials.length, dials.burn_in
        shared, regime_tables = _tables(dials.regimes, dials.vocab, dials.concentration, dials.table_seed)
        self.hmm = TwoTimescaleHMM(
            sticky_transition(dials.regimes, dials.switch_rate),
            overlap_emissions(shared, regime_tables, dials.overlap),
            torch.full((dials.regimes,), 1 / dials.regimes, dtype=torch.float64).numpy(),
        )

    def dials(self) -> dict[str, Any]:
        """The settings, and the mean discrimination between regimes, nats per token."""
        return {**self.settings, "mean_discrimination": mean_discrimination(self.hmm)}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        """Draws `(B, 3, T + 1)` uniforms; the regime chain is a cumulative sum, the tokens a prefix composition.

        Given its uniform and its regime, each step is a map from token to token (inverse CDF), and maps compose
        associatively: log2(T) rounds, no loop over time.
        """
        device, steps = generator.device, self.length + 1
        uniform = torch.rand(batch_size, 3, steps, generator=generator, device=device, dtype=torch.float64)
        regimes = _regime_chain(uniform[:, 0], uniform[:, 1], self.settings["switch_rate"], self.hmm.regimes)
        first = (uniform[:, 2, 0] * self.vocab_size).long().clamp(max=self.vocab_size - 1)
        maps = _inverse_cdf_maps(self._cumulative(device), regimes[:, 1:], uniform[:, 2, 1:])
        tokens = torch.cat([first[:, None], _follow(maps, first)], dim=1)
        targets = tokens[:, 1:].clone()
        targets[:, : self.burn_in] = IGNORED
        since = _since_last_switch(regimes[:, 1:])
        return Batch(tokens[:, :-1].contiguous(), targets, {"regimes": regimes}, {"octave_since_switch": since})

    def _cumulative(self, device: torch.device) -> Tensor:
        """The rows' distribution functions `(K, V, V)`, once a device."""
        if device not in self._on_device:
            self._on_device[device] = torch.tensor(self.hmm.emission, device=device).cumsum(-1)
        return self._on_device[device]

    def references(self) -> dict[str, Reference]:
        """Bayes, windows, the mistimed decay, the unigram, and the composite of the second window and that decay."""
        dials = self.settings_model
        found: dict[str, Reference] = {"bayes": Filter(self, "forward")}
        for width in dials.windows:
            found[f"window_{width}"] = Filter(self, "window", width=width)
            found[f"window_{width}_stationary"] = Filter(self, "window", width=width, edge="stationary")
        for rate in dials.decay_switch_rates:
            found[f"fixed_decay_{rate:g}"] = Filter(self, "fixed_decay", rate=matched_rate(rate, dials.regimes))
        found["unigram"] = Filter(self, "unigram")
        for width in dials.windows[1:2]:
            for rate in dials.decay_switch_rates[:1]:
                forgetting = matched_rate(rate, dials.regimes)
                found[f"composite_{width}_{rate:g}"] = Filter(self, "composite", width=width, rate=forgetting)
        return found

    def beliefs(self, batch: Batch) -> dict[str, Tensor]:
        """`regime`: the forward filter's posterior of `z_t` given `x_0..x_t`."""
        tokens = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1)
        return {"regime": torch_backend.forward(self.hmm, tokens).posterior[:, :-1][batch.scored]}

    def window(self, width: int) -> Reference | None:
        """The window filter with a stationary edge: the best prediction from the last `width` tokens.

        None where the first scored windows begin before the stream has become stationary: there it is not the best.
        """
        edge = max(1, self.burn_in - width + 1)
        if width < self.length and self._from_stationary(edge) > NOT_STATIONARY:
            return None
        return Filter(self, "window", width=width, edge="stationary")

    def _from_stationary(self, position: int) -> float:
        """The largest total variation, over tokens, of `P(z_t | x_t)` at a position from the stationary one."""
        law = self.hmm.initial[:, None] * np.full(self.vocab_size, 1 / self.vocab_size)
        for _ in range(position):
            law = np.einsum("iu,ij,juv->jv", law, self.hmm.transition, self.hmm.emission)
        seen = law.sum(0)
        posterior = np.divide(law, seen, out=self.hmm.edge_posterior.T.copy(), where=seen > 0)
        return float(np.abs(posterior - self.hmm.edge_posterior.T).sum(0).max() / 2)


class Filter(Reference):
    """One of the five exact predictors of `filters.torch_backend`, on a batch of the task."""

    def __init__(self, task: TwoTimescale, predictor: str, **parameters: Any) -> None:
        self.task, self.parameters = task, parameters
        self.predict = getattr(torch_backend, predictor)

    def _filter(self, batch: Batch) -> tuple[Tensor, Any]:
        tokens = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1)
        return tokens, self.predict(self.task.hmm, tokens, impossible="-inf", **self.parameters)

    def log_prob(self, batch: Batch) -> Tensor:
        _, result = self._filter(batch)
        return torch.where(batch.scored, result.log_prob, 0.0)

    def log_predictive(self, batch: Batch) -> Tensor:
        tokens, result = self._filter(batch)
        positions = torch.arange(self.task.burn_in, self.task.length, device=tokens.device)
        predictive = torch_backend.predictive(self.task.hmm, tokens, result, positions)
        return predictive.log().flatten(0, 1)


@lru_cache(maxsize=16)
def _tables(regimes: int, vocab: int, concentration: float, seed: int):
    return book_tables(regimes, vocab, concentration, seed)


def _regime_chain(switch: Tensor, jump: Tensor, rate: float, regimes: int) -> Tensor:
    """Regimes `(B, L)` from uniforms: a switch adds 1 to K - 1, uniformly, modulo K, so the chain is a running sum."""
    start = (jump[:, :1] * regimes).long().clamp(max=regimes - 1)
    if regimes == 1:
        return torch.zeros_like(jump, dtype=torch.int64)
    offset = 1 + (jump[:, 1:] * (regimes - 1)).long().clamp(max=regimes - 2)
    moves = torch.where(switch[:, 1:] < rate, offset, 0)
    return torch.cat([start, moves], dim=1).cumsum(1) % regimes


def _inverse_cdf_maps(cumulative: Tensor, regimes: Tensor, uniform: Tensor) -> Tensor:
    """Maps `(B, L, V)`: entry v is the token that follows v at a step with this regime and uniform.

    The inverse CDF counts the `v'` with `F(v') <= u`; the last token with positive probability where rounding
    leaves `F` below `u`.
    """
    total = cumulative[..., -1:]
    positive = cumulative < total
    level = uniform[..., None, None]
    return ((cumulative[regimes] <= level) & positive[regimes]).sum(-1)


def _follow(maps: Tensor, first: Tensor) -> Tensor:
    """Tokens `(B, L)`: the running composition of `maps (B, L, V)` applied to `first (B,)`, by doubling."""
    length, stride = maps.shape[1], 1
    while stride < length:
        later = maps[:, stride:].gather(-1, maps[:, :-stride])
        maps = torch.cat([maps[:, :stride], later], dim=1)
        stride *= 2
    return maps.gather(-1, first[:, None, None].expand(-1, length, 1))[..., 0]


def _since_last_switch(regimes: Tensor) -> Tensor:
    """Octave of the number of tokens since the last switch, `floor(log2(1 + n))`; -1 before the first switch."""
    index = torch.arange(regimes.shape[1], device=regimes.device)
    switched = torch.zeros_like(regimes, dtype=torch.bool)
    switched[:, 1:] = regimes[:, 1:] != regimes[:, :-1]
    last = torch.where(switched, index, -1).cummax(1).values
    age = (index - last + 1).double()
    return torch.where(last >= 0, age.log2().floor().long(), -1)
