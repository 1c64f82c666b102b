"""The two-timescale hidden Markov model: a slow regime that selects a bigram table.

`K` regimes, `V` tokens. The regime is a Markov chain, `z_0 ~ initial`, `P(z_{t+1} = j | z_t = i) = transition[i, j]`;
the tokens follow the new regime's table, `P(x_{t+1} = v | z_{t+1} = j, x_t = u) = emission[j, u, v]`. Natural
logarithms and float64 throughout.

Reference: State-space book, section 14.6.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filters.checks import real_array
from filters.stationary import stationary_law

Array = NDArray[np.float64]

TOLERANCE = 1e-9
"""How far from 1 the sum of a row may be."""


class ModelError(ValueError):
    """A table that is no distribution, or tables whose shapes do not fit together."""


class TokenError(ValueError):
    """Tokens that the model cannot read: of a wrong type or shape, or out of range."""


class ImpossibleObservation(ValueError):
    """A token to which the predictor gives probability zero.

    `position` is its index in the sequence, `sequence` the index of its sequence among the leading dimensions.
    """

    def __init__(self, position: int, sequence: tuple[int, ...] = (), detail: str = "") -> None:
        self.position = position
        self.sequence = sequence
        where = f"position {position}" + (f" of sequence {', '.join(map(str, sequence))}" if sequence else "")
        super().__init__(f"the token at {where} has probability zero{detail}; impossible='-inf' scores it -inf instead")


@dataclass(frozen=True, eq=False)
class TwoTimescaleHMM:
    """The model's tables, validated, copied and made read-only.

    Args:
        transition: `(K, K)`, rows sum to 1.
        emission: `(K, V, V)`, `[regime, current token, next token]`.
        initial: `(K,)`, the law of `z_0`.
        initial_emission: `(K, V)`, `P(x_0 | z_0)`; None: the first token tells nothing of the first regime.

    Raises:
        ModelError: a shape that does not fit, an entry that is negative or not finite, or a row whose sum differs
            from 1 by more than 1e-9; the message names the table and the row.
    """

    transition: Array
    emission: Array
    initial: Array
    initial_emission: Array | None = None

    def __post_init__(self) -> None:
        transition = _distribution("transition", self.transition, 2)
        regimes = len(transition)
        emission = _distribution("emission", self.emission, 3)
        vocab = emission.shape[-1]
        initial = _distribution("initial", self.initial, 1)
        _shaped("transition", transition, (regimes, regimes))
        _shaped("emission", emission, (regimes, vocab, vocab))
        _shaped("initial", initial, (regimes,))
        tables: dict[str, Array | None] = {"transition": transition, "emission": emission, "initial": initial}
        if self.initial_emission is not None:
            tables["initial_emission"] = _distribution("initial_emission", self.initial_emission, 2)
            _shaped("initial_emission", tables["initial_emission"], (regimes, vocab))
        for name, table in tables.items():
            object.__setattr__(self, name, table)

    @property
    def regimes(self) -> int:
        """`K`."""
        return len(self.transition)

    @property
    def vocab_size(self) -> int:
        """`V`."""
        return self.emission.shape[-1]

    @cached_property
    def stationary_unigram(self) -> Array:
        """`(K, V)`: each table's stationary law; of a reducible table, the running average's limit from uniform."""
        return _frozen(np.stack([stationary_law(table) for table in self.emission]))

    @cached_property
    def stationary_regime(self) -> Array:
        """`(K,)`: the limit of the running average of the regime's law, from `initial`."""
        return _frozen(stationary_law(self.transition, self.initial))

    @cached_property
    def stationary_joint(self) -> Array:
        """`(K, V)`: the limit of the running average of the law of `(z_t, x_t)`.

        The start is `initial` times `initial_emission`, or times the uniform law where the model has none; it matters
        only if the joint chain is reducible.
        """
        regimes, vocab = self.regimes, self.vocab_size
        joint = np.einsum("ij,juv->iujv", self.transition, self.emission).reshape(regimes * vocab, regimes * vocab)
        first = np.full((regimes, vocab), 1.0 / vocab) if self.initial_emission is None else self.initial_emission
        law = stationary_law(joint, (self.initial[:, None] * first).ravel())
        return _frozen(law.reshape(regimes, vocab))

    @cached_property
    def edge_posterior(self) -> Array:
        """`(V, K)`: `P(z_t | x_t)` on the stationary stream; the regime's law for a token that never occurs in it."""
        joint = self.stationary_joint.T
        total = joint.sum(axis=1, keepdims=True)
        return _frozen(np.where(total > 0, joint / np.where(total > 0, total, 1.0), self.stationary_joint.sum(axis=1)))

    @cached_property
    def unigram_model(self) -> TwoTimescaleHMM:
        """The model whose rows are all the regime's stationary unigram: what the unigram predictor believes."""
        emission = np.repeat(self.stationary_unigram[:, None, :], self.vocab_size, axis=1)
        return TwoTimescaleHMM(self.transition, emission, self.initial, self.initial_emission)

    def check_tokens(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """`tokens` `(..., T)` as int64.

        Raises:
            TokenError: not of an integer type, sequences of several lengths, no token at all along the last axis, or a
                token outside `0..V-1`; the message says which and where.
        """
        try:
            array = np.asarray(tokens)
        except ValueError:
            raise TokenError("tokens must have shape (..., T), all sequences of one length, and these differ") from None
        if array.ndim == 0 or array.shape[-1] == 0:
            raise TokenError(f"tokens must have shape (..., T) with T >= 1, not {array.shape}")
        if array.dtype.kind not in "iu":
            raise TokenError(f"tokens must be of an integer type, not {array.dtype}")
        unsigned = array.view(array.dtype.str.replace("i", "u"))  # read so, a negative token is a large one
        least_outside = self.vocab_size
        if array.dtype.kind == "i":
            least_outside = min(least_outside, 1 << (8 * array.itemsize - 1))
        if array.size and unsigned.max() >= least_outside:
            outside = unsigned >= least_outside
            where = np.unravel_index(int(outside.argmax()), array.shape)
            raise token_out_of_range(int(array[where]), tuple(int(i) for i in where), self.vocab_size)
        return array.astype(np.int64, copy=False)


def token_out_of_range(token: int, where: tuple[int, ...], vocab_size: int) -> TokenError:
    """The error for `token` at index `where`, sequence indices first."""
    place = f"position {where[-1]}" + (f" of sequence {', '.join(map(str, where[:-1]))}" if len(where) > 1 else "")
    return TokenError(f"token {token} at {place} is outside 0..{vocab_size - 1}")


def sticky_transition(regimes: int, switch_rate: float) -> Array:
    """`T(eps) = (1 - eps) I + eps / (K - 1) (J - I)`: stay, else jump uniformly. `(K, K)`; one regime always stays.

    Raises:
        ModelError: `regimes < 1` or `switch_rate` outside `[0, 1]`.
    """
    _at_least_one("regimes", regimes)
    _within("switch_rate", switch_rate, 1.0)
    if regimes == 1:
        return np.ones((1, 1))
    table = np.full((regimes, regimes), switch_rate / (regimes - 1))
    np.fill_diagonal(table, 1.0 - switch_rate)
    return table


def forgetting_transition(regimes: int, rate: float) -> Array:
    """`M(lambda) = (1 - lambda) I + lambda / K J`: mix toward uniform at a fixed rate. `(K, K)`.

    Rates up to `K / (K - 1)` are accepted, as the matched rate of `eps <= 1` needs; beyond 1 regimes repel.

    Raises:
        ModelError: `regimes < 1` or `rate` outside `[0, K / (K - 1)]` (`[0, 1]` for one regime).
    """
    _at_least_one("regimes", regimes)
    _within("rate", rate, 1.0 if regimes == 1 else regimes / (regimes - 1))
    table = np.full((regimes, regimes), rate / regimes)
    # 1 - rate (K - 1) / K, without the rounding of rate * (K - 1) beyond its limit
    np.fill_diagonal(
        table, max(0.0, 1.0 - rate) + rate / regimes if rate <= 1 else max(0.0, 1.0 - rate + rate / regimes)
    )
    return table


def matched_rate(switch_rate: float, regimes: int) -> float:
    """`lambda* = eps K / (K - 1)`, at which `M(lambda*) = T(eps)`; 0 for one regime.

    Reference: State-space book, Theorem 14.4.
    """
    _at_least_one("regimes", regimes)
    _within("switch_rate", switch_rate, 1.0)
    return 0.0 if regimes == 1 else switch_rate * regimes / (regimes - 1)


def overlap_emissions(shared: ArrayLike, regime_tables: ArrayLike, overlap: float) -> Array:
    """`B_j = (1 - eta) C + eta D_j`. `shared` `(V, V)`, `regime_tables` `(K, V, V)`; `(K, V, V)`.

    At `overlap` 0 the regimes cannot be told apart, at 1 they share nothing.
    """
    _within("overlap", overlap, 1.0)
    return (1.0 - overlap) * np.asarray(shared, dtype=np.float64) + overlap * np.asarray(
        regime_tables, dtype=np.float64
    )


def book_instance(
    *, overlap: float = 0.4, switch_rate: float = 0.02, length: int = 8192, seed: int = 0
) -> tuple[TwoTimescaleHMM, NDArray[np.int64], NDArray[np.int64]]:
    """The reference configuration of the book: `K = 4`, `V = 12`, Dirichlet tables of concentration 0.3.

    Returns the model, tokens `(length,)` and regimes `(length,)`. The tables depend on the seed alone, the stream also
    on `overlap` and `switch_rate`. Drawn with JAX's threefry generator in float64 on the CPU; the caller's JAX
    configuration is as before afterwards.

    Reference: State-space book, section 14.6.
    """
    _within("overlap", overlap, 1.0)
    _within("switch_rate", switch_rate, 1.0)
    _at_least_one("length", length)
    with _book_generator():
        return _draw_book_instance(overlap, switch_rate, length, seed)


def book_tables(regimes: int, vocab: int, concentration: float = 0.3, seed: int = 0) -> tuple[Array, Array]:
    """The shared table `C` `(V, V)` and the regimes' tables `D` `(K, V, V)`, drawn as the book draws its own.

    Rows are symmetric Dirichlet. `K = 4`, `V = 12`, 0.3 and seed 0 are the reference configuration's.
    """
    _at_least_one("regimes", regimes)
    _at_least_one("vocab", vocab)
    with _book_generator():
        return _draw_book_tables(regimes, vocab, concentration, seed)[:2]


@contextmanager
def _book_generator() -> Iterator[None]:
    """JAX in float64, with the partitionable threefry generator, on the CPU; as before afterwards."""
    import jax

    with float64_locally(), jax.threefry_partitionable(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def _draw_book_tables(regimes: int, vocab: int, concentration: float, seed: int) -> tuple[Array, Array, Any]:
    """`C`, `D`, and the key from which streams are drawn."""
    import jax.numpy as jnp
    from jax import random

    key_tables, key_stream = random.split(random.key(seed, impl="threefry2x32"))
    key_shared, key_regimes = random.split(key_tables)
    alpha = concentration * jnp.ones(vocab)
    shared = np.asarray(random.dirichlet(key_shared, alpha, shape=(vocab,)))
    return shared, np.asarray(random.dirichlet(key_regimes, alpha, shape=(regimes, vocab))), key_stream


def float64_locally() -> Any:
    """A context in which JAX has 64-bit types, whatever the caller's configuration."""
    import jax

    return (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64(True)


def _draw_book_instance(
    overlap: float, switch_rate: float, length: int, seed: int
) -> tuple[TwoTimescaleHMM, NDArray[np.int64], NDArray[np.int64]]:
    from jax import random

    regimes, vocab, concentration = 4, 12, 0.3
    shared, tables, key_stream = _draw_book_tables(regimes, vocab, concentration, seed)
    emission = overlap_emissions(shared, tables, overlap)
    transition = sticky_transition(regimes, switch_rate)
    hmm = TwoTimescaleHMM(transition, emission, np.full(regimes, 1.0 / regimes))
    if not (hmm.emission > 0).all():
        raise ModelError(f"seed {seed} draws a table with an entry that is not positive")

    key_sequence = random.fold_in(key_stream, int(switch_rate * 1e9) + int(overlap * 1e3))
    k0, k1, k2 = random.split(key_sequence, 3)
    z0 = random.randint(k0, (), 0, regimes)
    x0 = random.randint(k1, (), 0, vocab)
    with np.errstate(divide="ignore"):
        logs = np.log(transition), np.log(emission)
    z, x = _book_stream()(*logs, z0, x0, random.split(k2, length - 1))
    tokens = np.concatenate([np.asarray(x0)[None], np.asarray(x)]).astype(np.int64)
    return hmm, tokens, np.concatenate([np.asarray(z0)[None], np.asarray(z)]).astype(np.int64)


@cache
def _book_stream() -> Any:
    """The book's chain as one program, compiled once a length: regimes and tokens from logarithms, start and keys."""
    import jax
    from jax import random

    def stream(log_transition: Any, log_emission: Any, z0: Any, x0: Any, keys: Any) -> tuple[Any, Any]:
        def step(carry: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
            z, x = carry
            key_z, key_x = random.split(key)
            z = random.categorical(key_z, log_transition[z])
            x = random.categorical(key_x, log_emission[z, x])
            return (z, x), (z, x)

        return jax.lax.scan(step, (z0, x0), keys)[1]

    return jax.jit(stream)


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _distribution(name: str, table: ArrayLike, ndim: int) -> Array:
    try:
        array = real_array(name, table)
    except ValueError as error:
        raise ModelError(str(error)) from None
    if array.ndim != ndim or 0 in array.shape:
        raise ModelError(f"{name} must have {ndim} non-empty dimensions, not shape {array.shape}")
    if not np.isfinite(array).all() or (array < 0).any():
        where = np.argwhere(~np.isfinite(array) | (array < 0))[0].tolist()
        raise ModelError(f"{name}{where} is {array[tuple(where)]}: a probability is finite and not negative")
    sums = array.sum(axis=-1)
    wrong = np.abs(sums - 1.0) > TOLERANCE
    if wrong.any():
        row = np.argwhere(wrong)[0].tolist() if ndim > 1 else ""
        value = float(sums[tuple(row)]) if ndim > 1 else float(sums)
        raise ModelError(f"{name}{row} sums to {value!r}, not to 1; divide each row by its sum")
    return _frozen(array)


def _shaped(name: str, array: Array | None, shape: tuple[int, ...]) -> None:
    if array is not None and array.shape != shape:
        raise ModelError(f"{name} has shape {array.shape}; with the other tables it must be {shape}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ModelError(f"{name} is {value}; the least is 1")


def _within(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        nearest = 0.0 if value < 0 else most
        raise ModelError(f"{name} is {value}; it must lie in [0, {most:g}], the nearest being {nearest:g}")
