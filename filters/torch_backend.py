"""The five predictors in torch, on integer tokens `(..., T)`, computed and returned on the tokens' device.

Signatures and results are those of `filters.reference`; fields agree within 1e-12 (1 + |value|). Which numbers are used
is chosen by `filters.scaling.is_linear`: plain float64 where every transition is positive, an exponent per entry
elsewhere. With `dtype=torch.float32` the plain recursion runs in float32 (docs/filters.md has its error); where it
would not be exact in range, float64 is used and rounded.

The loop over time is over positions, or over the offset within a block: a long sequence of few rows is cut into blocks
whose products of steps run side by side, and windows are products of a block's suffix with the next block's prefix, so
that their cost does not depend on the width.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from filters import reference, scaling
from filters.hmm import Array, TokenError, TwoTimescaleHMM, forgetting_transition, token_out_of_range
from filters.reference import Edge, FilterResult, Impossible
from filters.torch_numbers import Linear, Wide
from filters.wide import Wide as NumpyWide

DIRECT_WIDTH = 16
"""Windows up to this width absorb their tokens one by one."""
LANES = 64
"""A batch of as many sequences is not cut into blocks."""


def forward(
    hmm: TwoTimescaleHMM, tokens: Tensor, *, impossible: Impossible = "raise", dtype: torch.dtype = torch.float64
) -> FilterResult:
    """As `filters.reference.forward`."""
    return _Run(hmm, tokens, hmm.transition, impossible, dtype).filtered(reference.forward)


def fixed_decay(
    hmm: TwoTimescaleHMM,
    tokens: Tensor,
    rate: float,
    *,
    impossible: Impossible = "raise",
    dtype: torch.dtype = torch.float64,
) -> FilterResult:
    """As `filters.reference.fixed_decay`."""
    run = _Run(hmm, tokens, forgetting_transition(hmm.regimes, rate), impossible, dtype)
    return run.filtered(reference.fixed_decay, rate)


def unigram(
    hmm: TwoTimescaleHMM, tokens: Tensor, *, impossible: Impossible = "raise", dtype: torch.dtype = torch.float64
) -> FilterResult:
    """As `filters.reference.unigram`."""
    believed = hmm.unigram_model
    result = forward(believed, tokens, impossible=impossible, dtype=dtype)
    return FilterResult(result.log_prob, result.prior, result.posterior, believed.emission)


def window(
    hmm: TwoTimescaleHMM,
    tokens: Tensor,
    width: int,
    edge: Edge = "uniform",
    *,
    impossible: Impossible = "raise",
    dtype: torch.dtype = torch.float64,
) -> FilterResult:
    """As `filters.reference.window`."""
    run = _Run(hmm, tokens, hmm.transition, impossible, dtype)
    laws = reference.edge_table(hmm, edge)
    if (width := reference.checked_width(width)) >= run.x.shape[1]:
        return run.filtered(reference.forward)
    return run.windowed(run.of(laws)[run.x], width, reference.window, width, edge)


def composite(
    hmm: TwoTimescaleHMM,
    tokens: Tensor,
    width: int,
    rate: float,
    *,
    impossible: Impossible = "raise",
    dtype: torch.dtype = torch.float64,
) -> FilterResult:
    """As `filters.reference.composite`."""
    run = _Run(hmm, tokens, hmm.transition, impossible, dtype)
    carrying = _Run(hmm, tokens, forgetting_transition(hmm.regimes, rate), impossible, dtype)
    if (width := reference.checked_width(width)) >= run.x.shape[1]:
        return run.filtered(reference.forward)
    carried = carrying.posterior()
    carried = carried.divided(carried.total())
    if carrying.numbers is Wide and (carried.total().mantissa == 0).any():
        return carrying.answered_by(reference.composite, width, rate)
    return run.windowed(run.converted(carried), width, reference.composite, width, rate)


def predictive(hmm: TwoTimescaleHMM, tokens: Tensor, result: FilterResult, positions: Any = None) -> Tensor:
    """As `filters.reference.predictive`; `(..., n, V)` on the tokens' device, of the result's type."""
    x = _checked(hmm, tokens)
    if isinstance(positions, Tensor):
        index = torch.arange(x.shape[-1] - 1, device=x.device)[positions]
    else:  # by NumPy, whose slices may step backwards and whose lists may be empty
        chosen = np.arange(x.shape[-1] - 1)[slice(None) if positions is None else positions]
        index = torch.as_tensor(np.array(chosen), device=x.device)
    emission = torch.tensor(hmm.emission if result.emission is None else result.emission).to(result.prior)
    # by regime, so that no (..., n, K, V) is formed
    at, prior = x[..., index], result.prior[..., index, :]
    return sum(prior[..., j, None] * emission[j, at] for j in range(hmm.regimes))


def _checked(hmm: TwoTimescaleHMM, tokens: Tensor) -> Tensor:
    """`tokens` as int64; `TokenError` as `TwoTimescaleHMM.check_tokens`."""
    if not isinstance(tokens, Tensor):
        raise TokenError(f"tokens must be a torch tensor, not {type(tokens).__name__}")
    if tokens.dim() == 0 or tokens.shape[-1] == 0:
        raise TokenError(f"tokens must have shape (..., T) with T >= 1, not {tuple(tokens.shape)}")
    if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
        raise TokenError(f"tokens must be of an integer type, not {str(tokens.dtype).removeprefix('torch.')}")
    if tokens.dtype in (torch.uint16, torch.uint32, torch.uint64):
        hmm.check_tokens(tokens.cpu().numpy())
    x = tokens.to(torch.int64)
    outside = (x < 0) | (x >= hmm.vocab_size)
    if outside.any():
        where = tuple(int(i) for i in outside.nonzero()[0])
        raise token_out_of_range(int(x[where]), where, hmm.vocab_size)
    return x


class _Run:
    """One predictor's recursion on sequences `(B, T)`: `n = T - 1` steps of one transition."""

    def __init__(
        self, hmm: TwoTimescaleHMM, tokens: Tensor, transition: Array, impossible: Impossible, dtype: torch.dtype
    ) -> None:
        x = _checked(hmm, tokens)
        reference.checked_mode(impossible)
        if dtype not in (torch.float64, torch.float32):
            raise ValueError(f"dtype is {dtype}; it is torch.float64 or torch.float32")
        self.hmm, self.mode, self.dtype, self.tokens = hmm, impossible, dtype, x
        self.x = x.reshape(-1, x.shape[-1])
        single = dtype == torch.float32 and scaling.is_linear(transition, hmm.emission, "float32")
        self.like = torch.empty(0, dtype=torch.float32 if single else torch.float64, device=x.device)
        self.numbers: Any = Linear if single or scaling.is_linear(transition, hmm.emission) else Wide
        self.table = self.of(transition)
        likelihood, never = scaling.likelihoods(hmm, skip_never=self.numbers is Linear)
        pairs = self.x[:, :-1], self.x[:, 1:]
        self.likelihood = self.of(likelihood)[pairs]
        self.never = torch.as_tensor(never, device=x.device)[pairs]
        first, never_first = scaling.starts(hmm)
        self.start = self.of(first)[self.x[:, 0]]
        self.never_first = torch.as_tensor(never_first, device=x.device)[self.x[:, 0]]

    def of(self, numbers: Array | NumpyWide) -> Any:
        """NumPy numbers as this run's."""
        return self.numbers.of(numbers if isinstance(numbers, NumpyWide) else NumpyWide.of(numbers), self.like)

    def converted(self, vectors: Linear | Wide) -> Any:
        """Vectors of another run's numbers as this run's."""
        if self.numbers is Linear:
            return Linear(vectors.float().to(self.like))
        return Wide.wider(vectors) if isinstance(vectors, Linear) else vectors

    def truncated(self, length: int) -> _Run:
        """This run on the first `length` tokens."""
        run = object.__new__(_Run)
        run.__dict__.update(self.__dict__)
        run.x, run.likelihood = self.x[:, :length], self.likelihood[:, : length - 1]
        return run

    def posterior(self) -> Any:
        """The filter's posteriors, `(B, T, K)`."""
        rows, steps = self.x.shape[0], self.x.shape[1] - 1
        if rows < LANES and steps >= 4 * LANES:
            return self._blocked(isqrt(steps))
        vectors = [self.start]
        for t in range(steps):
            vectors.append(vectors[-1].after(self.table).times(self.likelihood[:, t]).tamed(1))
        return self.numbers.stack(vectors, 1)

    def _blocked(self, size: int) -> Any:
        """All blocks side by side, offset by offset: first their products, then vectors from the head of each."""
        steps, (likelihood, count) = self.x.shape[1] - 1, self._cut(self.likelihood, size)
        product = self._identity(count)
        for r in range(size):
            product = product.after(self.table).times(likelihood[:, :, r, None, :]).tamed(2)
        heads = [self.start]
        for b in range(count - 1):
            heads.append(heads[-1].through(product[:, b]).tamed(1))
        vectors = [self.numbers.stack(heads, 1)]
        for r in range(size):
            vectors.append(vectors[-1].after(self.table).times(likelihood[:, :, r]).tamed(1))
        body = self.numbers.stack(vectors[1:], 2).map(lambda part: part.flatten(1, 2))
        return self.numbers.cat([self.start[:, None], body[:, :steps]], 1)

    def windows(self, laws: Linear | Wide, width: int) -> Any:
        """Posteriors `(B, T, K)` of windows started from `laws` `(B, T, K)`, or from the start where they reach it."""
        lag, count = width - 1, self.x.shape[1] - width
        opening = self.truncated(width).posterior()
        if width > DIRECT_WIDTH:
            return self.numbers.cat([opening, self._sliding(laws, lag)], 1)
        vector: Any = laws[:, 1 : 1 + count]
        for step in range(1, width):
            vector = vector.after(self.table).times(self.likelihood[:, step : step + count]).tamed(1)
        return self.numbers.cat([opening, vector], 1)

    def _sliding(self, laws: Linear | Wide, lag: int) -> Any:
        """Windows of `lag` steps that do not reach the start: edge, suffix of a block, prefix of the next.

        Step i, which absorbs token i, is in block `(i - 1) // lag`. The window that ends with offset r of one block has
        the steps after offset r of the block before, and r steps of its own.
        """
        steps = self.x.shape[1] - 1
        likelihood, count = self._cut(self.likelihood, lag)
        edges, _ = self._cut(laws[:, 1:], lag)
        suffix, heads = self._identity(count - 1), []
        for r in reversed(range(lag)):
            heads.append(edges[:, :-1, r].through(suffix).tamed(1))
            suffix = suffix.times(likelihood[:, :-1, r, :, None]).before(self.table).tamed(2)
        prefix, windows = self._identity(count - 1), []
        for r in range(lag):
            prefix = prefix.after(self.table).times(likelihood[:, 1:, r, None, :]).tamed(2)
            windows.append(heads[lag - 1 - r].through(prefix).tamed(1))
        return self.numbers.stack(windows, 2).map(lambda part: part.flatten(1, 2))[:, : steps - lag]

    def _cut(self, vectors: Any, size: int) -> tuple[Any, int]:
        """`(B, n, K)` in blocks `(B, count, size, K)`; the last is filled up with repetitions that nothing reads."""
        steps = self.x.shape[1] - 1
        count = -(-steps // size)
        index = torch.arange(count * size, device=self.x.device).clamp(max=steps - 1)
        return vectors[:, index].map(lambda part: part.unflatten(1, (count, size))), count

    def _identity(self, count: int) -> Any:
        eye = self.of(np.eye(self.hmm.regimes))
        return eye.map(lambda part: part.expand(self.x.shape[0], count, -1, -1))

    def filtered(self, definition: Any, *arguments: Any) -> FilterResult:
        """The result of the filter; `definition(hmm, tokens, *arguments)` is its reference."""
        return self.result(self.posterior(), definition, *arguments)

    def windowed(self, laws: Linear | Wide, width: int, definition: Any, *arguments: Any) -> FilterResult:
        """The result of windows started from `laws`."""
        return self.result(self.windows(laws, width), definition, *arguments)

    def result(self, posterior: Any, definition: Any, *arguments: Any) -> FilterResult:
        """Everything that follows from the posteriors `(B, T, K)`."""
        posterior = posterior.divided(posterior.total())
        prior = posterior[:, :-1].after(self.table)
        log_prob = prior.times(self.likelihood).total().log()
        found = self.impossible(posterior, log_prob)
        if found.any():
            if self.mode == "raise":
                raise reference.impossible_observation(found.cpu().numpy().reshape(self.tokens.shape))
            if self.numbers is Wide:
                return self.answered_by(definition, *arguments)
            log_prob = torch.where(self.never, -torch.inf, log_prob)
        log_prob, before, after = (
            field.to(self.dtype).reshape(*self.tokens.shape[:-1], *field.shape[1:])
            for field in (log_prob, prior.float(), posterior.float())
        )
        return FilterResult(log_prob, before, after)

    def impossible(self, posterior: Any, log_prob: Tensor) -> Tensor:
        """`(B, T)`: tokens of probability zero; with `Wide` the first of a row makes those after it impossible too."""
        found = posterior.total().float() == 0
        found[:, 0] |= self.never_first
        found[:, 1:] |= self.never | torch.isneginf(log_prob)
        return found

    def answered_by(self, definition: Any, *arguments: Any) -> FilterResult:
        """The reference's result, or its error: it says what follows impossible tokens that depend on the path."""
        result = definition(self.hmm, self.tokens.cpu().numpy(), *arguments, impossible=self.mode)
        log_prob, prior, posterior = (
            torch.as_tensor(field, device=self.tokens.device, dtype=self.dtype)
            for field in (result.log_prob, result.prior, result.posterior)
        )
        return FilterResult(log_prob, prior, posterior)
