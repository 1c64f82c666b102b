"""What the JAX filters read of a model, made once: the arithmetic that is exact for it, and its tables in that."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from filters import scaling
from filters.hmm import Array, TwoTimescaleHMM, float64_locally
from filters.jax_numbers import Linear, Wide
from filters.wide import Wide as NumpyWide

LEAST = 64
"""The least length and number of columns that programs are compiled for."""

MOST = 16
"""Transitions of which the tables are kept, for each model."""


class Tables(NamedTuple):
    """A predictor with `transition` on the emissions of a model, as `numbers` of type `computed`.

    `transition` `(K, K)`. `likelihoods` `(K, R)` by pair `u V + v` of tokens, the last column all ones, which tells
    nothing. `start` `(K, V)`: over `z_0` by the first token. `never` `(V, V)` and `never_first` `(V,)` are the tokens
    that no regime emits, None if the numbers are plain and there are none.
    """

    numbers: Any
    computed: str
    transition: Any
    likelihoods: Any
    start: Any
    never: NDArray[np.bool_] | None
    never_first: NDArray[np.bool_] | None
    on_device: tuple[Any, Any]
    """`transition` and `likelihoods` as JAX arrays."""

    @property
    def neutral(self) -> int:
        """The last column of `likelihoods`."""
        return int(jax.tree.leaves(self.likelihoods)[0].shape[1]) - 1

    def of(self, values: Array | NumpyWide) -> Any:
        """NumPy numbers as those of this predictor."""
        return self.numbers.of(values if isinstance(values, NumpyWide) else NumpyWide.of(values), self.computed)


_known: WeakKeyDictionary[TwoTimescaleHMM, dict[tuple[bytes, str], Tables]] = WeakKeyDictionary()


def tables_of(hmm: TwoTimescaleHMM, transition: Array, dtype: str) -> Tables:
    """The tables for results in `dtype`; in float32 only where that loses no evidence."""
    known = _known.setdefault(hmm, {})
    key = transition.tobytes(), dtype
    tables = known.get(key)
    if tables is None:
        if len(known) >= MOST:
            known.clear()
        tables = known[key] = _made(hmm, transition, dtype)
    return tables


def _made(hmm: TwoTimescaleHMM, transition: Array, dtype: str) -> Tables:
    single = dtype == "float32" and scaling.is_linear(transition, hmm.emission, "float32")
    computed = "float32" if single else "float64"
    numbers: Any = Linear if single or scaling.is_linear(transition, hmm.emission) else Wide

    likelihoods, never = scaling.likelihoods(hmm, skip_never=numbers is Linear)
    pairs = hmm.vocab_size**2
    rows = np.ones((max(LEAST, 1 << pairs.bit_length()), hmm.regimes))
    rows[:pairs] = likelihoods.reshape(pairs, hmm.regimes)
    first, never_first = scaling.starts(hmm)
    certain = numbers is Linear and not (never.any() or never_first.any())

    def ready(values: NumpyWide) -> Any:
        return jax.tree.map(np.ascontiguousarray, numbers.of(values, computed))

    tables = ready(NumpyWide.of(transition)), ready(NumpyWide.of(rows.T))
    with float64_locally():
        on_device = jax.tree.map(jnp.asarray, tables)
    return Tables(
        numbers,
        computed,
        *tables,
        ready(NumpyWide(first.mantissa.T, first.exponent.T)),
        None if certain else never,
        None if certain else never_first,
        on_device,
    )
