"""The five predictors in JAX, compiled, on integer tokens `(..., T)`; NumPy float64 comes back.

Signatures and results are those of `filters.reference`; fields agree within 1e-12 (1 + |value|). Two options more:
`dtype="float32"` (docs/filters.md has its error), and `device_arrays=True` for JAX arrays on the default device. The
caller's JAX configuration is left as it was. Which numbers are used is chosen by `filters.scaling.is_linear`.

Many sequences on the CPU are filtered by `filters.jax_batches`, side by side. Others are cut into chunks of one size:
first the product of every chunk's steps, all chunks side by side; then what enters each chunk; then the vectors inside.
A window is an edge law, the end of a chunk, whole chunks, and the beginning of another: its cost does not depend on its
width. Lengths are filled up to one of eight sizes per octave, so that few programs are compiled; no filling enters a
result.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from filters import jax_batches, jax_programs, reference
from filters.hmm import Array, TwoTimescaleHMM, float64_locally, forgetting_transition
from filters.jax_numbers import Linear, Wide
from filters.jax_programs import Inputs, Laws, Outputs
from filters.jax_tables import LEAST, tables_of
from filters.reference import Edge, FilterResult, Impossible
from filters.wide import Wide as NumpyWide


def forward(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, *, impossible: Impossible = "raise", **options: Any
) -> FilterResult:
    """As `filters.reference.forward`."""
    run = _Run(hmm, hmm.check_tokens(tokens), hmm.transition, impossible, **options)
    return run.filtered(reference.forward)


def fixed_decay(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, rate: float, *, impossible: Impossible = "raise", **options: Any
) -> FilterResult:
    """As `filters.reference.fixed_decay`."""
    forgetting = forgetting_transition(hmm.regimes, rate)
    run = _Run(hmm, hmm.check_tokens(tokens), forgetting, impossible, **options)
    return run.filtered(reference.fixed_decay, rate)


def unigram(
    hmm: TwoTimescaleHMM, tokens: ArrayLike, *, impossible: Impossible = "raise", **options: Any
) -> FilterResult:
    """As `filters.reference.unigram`."""
    believed = hmm.unigram_model
    result = forward(believed, tokens, impossible=impossible, **options)
    return Result(result.log_prob, result.posterior, believed.transition, believed.emission)


def window(
    hmm: TwoTimescaleHMM,
    tokens: ArrayLike,
    width: int,
    edge: Edge = "uniform",
    *,
    impossible: Impossible = "raise",
    **options: Any,
) -> FilterResult:
    """As `filters.reference.window`."""
    x, table = hmm.check_tokens(tokens), reference.edge_table(hmm, edge)
    if (width := reference.checked_width(width)) >= x.shape[-1]:
        return forward(hmm, x, impossible=impossible, **options)
    run = _Run(hmm, x, hmm.transition, impossible, lag=width - 1, **options)
    if edge == "uniform":
        laws = Laws(run.tables.of(table[:1].T), None)
    else:
        rows = np.ones((max(LEAST, 1 << hmm.vocab_size.bit_length()), hmm.regimes))
        rows[: hmm.vocab_size] = table
        index = np.zeros(run.inputs.pairs.shape, dtype=np.int32)
        index[:, : x.shape[-1]] = run.x
        laws = Laws(run.tables.of(rows.T), index)
    return run.windowed(laws, reference.window, width, edge)


def composite(
    hmm: TwoTimescaleHMM,
    tokens: ArrayLike,
    width: int,
    rate: float,
    *,
    impossible: Impossible = "raise",
    **options: Any,
) -> FilterResult:
    """As `filters.reference.composite`."""
    x, forgetting = hmm.check_tokens(tokens), forgetting_transition(hmm.regimes, rate)
    if (width := reference.checked_width(width)) >= x.shape[-1]:
        return forward(hmm, x, impossible=impossible, **options)
    run = _Run(hmm, x, hmm.transition, impossible, lag=width - 1, **options)
    if not x.size:
        return run.answered_by(reference.composite, width, rate)
    other = _Run(hmm, x, forgetting, impossible, **options)
    carried = other.posterior()
    if other.numbers is Wide and (np.asarray(carried.mantissa)[:, : x.shape[-1]] == 0).all(-1).any():
        return run.answered_by(reference.composite, width, rate)
    with float64_locally():
        laws = run.converted(carried, other.numbers)
    index = np.arange(run.inputs.pairs.size, dtype=np.int32).reshape(run.inputs.pairs.shape)
    return run.windowed(Laws(laws, index), reference.composite, width, rate)


def predictive(hmm: TwoTimescaleHMM, tokens: ArrayLike, result: FilterResult, positions: Any = None) -> Array:
    """As `filters.reference.predictive`, which computes it; `(..., n, V)` NumPy."""
    on_host = FilterResult(None, np.asarray(result.prior), None, result.emission)
    return reference.predictive(hmm, tokens, on_host, positions)


def _layout(rows: int, tokens: int, lag: int | None) -> tuple[int, int]:
    """The length to fill up to, and the tokens of a chunk: about `sqrt(length rows) / 1.4`, a power of two.

    One chunk per sequence saves the products where there are many sequences. A window's chunks are not longer than the
    window, and are single tokens where it is absorbed directly.
    """
    octave = max(LEAST, 1 << (tokens - 1).bit_length()) // 2
    length = max(LEAST, next(n for n in range(octave, 2 * octave + 1, octave // 8) if n >= tokens))
    size = min(length & -length, 1 << max(3, int(np.log2(np.sqrt(length * rows) / 1.4))))
    if lag is None:
        return length, length if rows >= LEAST else size
    return length, 1 if lag < jax_programs.DIRECT else min(size, 1 << (lag.bit_length() - 1))


class Result(FilterResult):
    """A result whose `prior` is formed when it is first asked for: `posterior[t] @ transition`."""

    transition: Array

    def __init__(self, log_prob: Any, posterior: Any, transition: Array, emission: Array | None = None) -> None:
        vars(self).update(log_prob=log_prob, posterior=posterior, transition=transition, emission=emission)

    @cached_property
    def prior(self) -> Any:  # type: ignore[override]
        """`(..., T-1, K)`."""
        with float64_locally():
            return _read_only(self.posterior[..., :-1, :] @ self.transition)


class _Run:
    """What a program needs of a model and sequences `(B, T)`, and what is made of its outputs."""

    def __init__(
        self,
        hmm: TwoTimescaleHMM,
        x: NDArray[np.int64],
        transition: Array,
        impossible: Impossible,
        *,
        dtype: str = "float64",
        device_arrays: bool = False,
        lag: int | None = None,
    ) -> None:
        if dtype not in ("float64", "float32"):
            raise ValueError(f"dtype is {dtype!r}; it is 'float64' or 'float32'")
        self.hmm, self.tokens, self.dtype, self.device_arrays = hmm, x, dtype, device_arrays
        self.transition = transition
        self.mode = reference.checked_mode(impossible)
        self.x = x.reshape(-1, x.shape[-1])
        self.tables = tables_of(hmm, transition, dtype)
        self.numbers = self.tables.numbers
        self.length, self.size = _layout(max(1, len(self.x)), self.x.shape[1], lag)
        self.never = None
        if self.tables.never is not None and self.tables.never_first is not None:
            later = self.tables.never[self.x[:, :-1], self.x[:, 1:]]
            self.never = np.concatenate([self.tables.never_first[self.x[:, :1]], later], axis=1)

    @cached_property
    def inputs(self) -> Inputs:
        """What the programs of `filters.jax_programs` read."""
        start = jax.tree.map(lambda part: part[:, self.x[:, 0]], self.tables.start)
        tokens, length = self.x.astype(np.int32), self.x.shape[1]
        pairs = np.empty((len(tokens), self.length), dtype=np.int32)
        np.multiply(tokens[:, :-1], np.int32(self.hmm.vocab_size), out=pairs[:, 1:length])
        pairs[:, 1:length] += tokens[:, 1:]
        pairs[:, :1] = pairs[:, length:] = self.tables.neutral
        return Inputs(*self.tables.on_device, start, pairs)

    @property
    def in_batches(self) -> bool:
        """Whether `filters.jax_batches` is the form for this."""
        plain = self.numbers is Linear and not self.device_arrays
        return plain and jax_batches.applies(len(self.x), self.hmm.regimes)

    def in_order(self, part: Any) -> Any:
        """A part of a program's outputs as `(B, n, K)`."""
        return part.transpose(2, 0, 1) if self.size == self.length else part

    def filtered(self, definition: Any, *arguments: Any) -> FilterResult:
        """The result of the filter; `definition(hmm, tokens, *arguments)` is its reference."""
        if not len(self.x):
            return self.answered_by(definition, *arguments)
        with float64_locally():
            if self.in_batches:
                found = jax_batches.filtered(self.tables, self.x, self.hmm.vocab_size, self.length)
                return self.checked(*found, definition, *arguments)
            outputs = jax_programs.filtered(self.numbers, self.size, self.inputs)
            return self.result(outputs, 1, definition, *arguments)

    def windowed(self, laws: Laws, definition: Any, width: int, *arguments: Any) -> FilterResult:
        """As `filtered`, with windows started from `laws`."""
        if not len(self.x):
            return self.answered_by(definition, width, *arguments)
        with float64_locally():
            outputs = jax_programs.windowed(self.numbers, self.size, self.inputs, laws, np.int64(width - 1))
            return self.result(outputs, 0, definition, width, *arguments)

    def posterior(self) -> Any:
        """The filter's posteriors `(B, n, K)`, filling included, as numbers of this run."""
        with float64_locally():
            outputs = jax_programs.filtered(self.numbers, self.size, self.inputs)
            return jax.tree.map(self.in_order, outputs.posterior)

    def converted(self, posterior: Any, numbers: Any) -> Any:
        """Posteriors of another run, which computes with `numbers`, as a table of this run `(K, B n)`."""
        table = jax.tree.map(lambda part: part.reshape(-1, part.shape[-1]).T, posterior)
        if numbers is self.numbers:
            return table
        if numbers is Wide:
            return self.tables.of(NumpyWide(np.asarray(table.mantissa), np.asarray(table.exponent)))
        return self.tables.of(np.asarray(table, dtype=np.float64))

    def result(self, outputs: Outputs, first: int, definition: Any, *arguments: Any) -> FilterResult:
        """The outputs without their filling; predictions are at positions `first` to `first + T - 1` of them."""
        length = self.x.shape[1]
        predicted = slice(first, first + length - 1)
        log_prob = self.in_order(self.numbers.log(outputs.probability))[:, predicted, 0]
        posterior = self.numbers.float(outputs.posterior)
        if not self.device_arrays:
            posterior = np.asarray(posterior)
        return self.checked(log_prob, self.in_order(posterior)[:, :length], definition, *arguments)

    def checked(self, log_prob: Any, posterior: Any, definition: Any, *arguments: Any) -> FilterResult:
        """The result; `definition` gives it where impossible tokens depend on the path."""
        if self.never is not None:
            found = self.never.copy()
            if self.numbers is Wide:
                found |= (posterior == 0).all(axis=-1)
                found[:, 1:] |= np.isneginf(log_prob)
            if found.any():
                if self.mode == "raise":
                    raise reference.impossible_observation(found.reshape(self.tokens.shape))
                if self.numbers is Wide:
                    return self.answered_by(definition, *arguments)
                log_prob = np.where(found[:, 1:], -np.inf, log_prob)
        return self._returned(log_prob, posterior)

    def answered_by(self, definition: Any, *arguments: Any) -> FilterResult:
        """The reference's result, or its error."""
        answer = definition(self.hmm, self.tokens, *arguments, impossible=self.mode)
        with float64_locally():
            return self._returned(answer.log_prob, answer.posterior)

    def _returned(self, log_prob: Any, posterior: Any) -> FilterResult:
        make: Any = partial(jnp.asarray if self.device_arrays else np.asarray, dtype=self.dtype)
        lead, length = self.tokens.shape[:-1], self.x.shape[1]
        return Result(
            _read_only(make(log_prob).reshape(*lead, length - 1)),
            _read_only(make(posterior).reshape(*lead, length, self.hmm.regimes)),
            self.transition.astype(self.dtype),
        )


def _read_only(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array
