"""The compiled programs behind `filters.jax_backend`.

`K` regimes, `B` sequences, `n` steps in `C` chunks of `S` each. What is indexed by step is laid out as
`(S, 1, K, B, C)`, by place within the chunk: scans run over the first axis, all chunks side by side. `numbers` is one
of the arithmetics of `filters.jax_numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from filters.wide import Wide as NumpyWide

DIRECT = 8
"""Windows of fewer steps absorb them one by one."""


@cache
def vector_options() -> dict[str, Any]:
    """Compiler options for the widest vectors, none where this XLA does not know them."""
    options = {"xla_cpu_prefer_vector_width": 512}
    try:
        jax.jit(lambda number: number + 1, compiler_options=options).lower(0).compile()
    except Exception:  # of a type of XLA's own
        return {}
    return options


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`jax.jit` with `vector_options`, made at the first call, since they are found by asking XLA.

    Within `jax.disable_jit()` the function itself runs, on JAX arrays as ever.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        program = cache(lambda: jax.jit(function, compiler_options=vector_options(), **options))

        def run(*arguments: Any) -> Any:
            if jax.config.values["jax_disable_jit"]:
                return function(*jax.tree.map(_on_device, arguments))
            return program()(*arguments)

        return wraps(function)(run)

    return decorated


def _on_device(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


class Inputs(NamedTuple):
    """What fixes a filter: `table` `(K, K)`, `likelihoods` `(K, R)`, `start` `(K, B)` over `z_0`, `pairs` `(B, n)`.

    A token has the likelihoods `likelihoods[:, pair]`; those of the first, and those that fill the array up, are all 1.
    """

    table: Any
    likelihoods: Any
    start: Any
    pairs: Any


class Laws(NamedTuple):
    """Where windows start: at token t the regime has the law `table[:, index[b, t]]`, `(K, R)` and `(B, n)`.

    Without an index it is the same everywhere, and `table` is `(K, 1)`.
    """

    table: Any
    index: Any


class Outputs(NamedTuple):
    """By token, as numbers: `probability` `(B, n, 1)` and `posterior` `(B, n, K)`.

    Of chunks that hold a whole sequence the parts are `(n, K, B)` as they come: a view puts them in order, no copy.
    """

    probability: Any
    posterior: Any


@compiled(static_argnames=("numbers", "size"))
def filtered(numbers: Any, size: int, inputs: Inputs) -> Outputs:
    """The filter; at token t, its probability, and the posterior after it."""
    table, start, index = _arranged(inputs, size)
    heads = start
    if index.shape[-1] > 1:

        def multiply(product: Any, places: Any) -> tuple[Any, None]:
            weighed = numbers.times(product, _columns(inputs.likelihoods, places))
            return numbers.matmul(numbers.tamed(weighed, whole=True), table), None

        products, _ = jax.lax.scan(multiply, _identity(numbers, inputs, index), index)
        heads = _heads(numbers, products, start)

    def advance(prior: Any, places: Any) -> tuple[Any, Outputs]:
        joint = numbers.times(prior, _columns(inputs.likelihoods, places))
        total = numbers.total(joint)
        posterior = numbers.divided(joint, total)
        return numbers.matmul(posterior, table), Outputs(total, posterior)

    return _flat(jax.lax.scan(advance, numbers.divided(heads, numbers.total(heads)), index)[1])


@compiled(static_argnames=("numbers", "size"))
def windowed(numbers: Any, size: int, inputs: Inputs, laws: Laws, lag: Any) -> Outputs:
    """Windows of `lag` steps; at token t, the posterior after it, and the probability of the token after it.

    Chunks of one token absorb steps one by one, `lag < DIRECT`; else chunks are not longer than `lag`.
    """
    table, start, index = _arranged(inputs, size)

    def believed(vector: Any, places: Any) -> Outputs:
        posterior = numbers.divided(vector, numbers.total(vector))
        prior = numbers.matmul(posterior, table)
        total = numbers.total(numbers.times(prior, _columns(inputs.likelihoods, places)))
        return Outputs(total, posterior)

    following = _by_place(jnp.roll(inputs.pairs, -1, axis=1), size)
    arguments = numbers, table, inputs, start, index, laws, lag
    windows = _direct(*arguments) if size == 1 else _windows(*arguments)
    return _flat(jax.vmap(believed)(windows, following))


def _arranged(inputs: Inputs, size: int) -> tuple[Any, Any, Any]:
    """The table `(K, K, 1, 1)`, the start `(1, K, B, 1)` and the index `(S, B, C)`."""
    table = jax.tree.map(lambda part: part[:, :, None, None], inputs.table)
    start = jax.tree.map(lambda part: part[None, :, :, None], inputs.start)
    return table, start, _by_place(inputs.pairs, size)


def _by_place(index: Any, size: int) -> Any:
    """`(B, n)` as `(S, B, C)`."""
    return index.reshape(index.shape[0], -1, size).transpose(2, 0, 1)


def _columns(table: Any, places: Any) -> Any:
    """Columns of `table` `(K, R)` at `places` `(B, C)`: row vectors `(1, K, B, C)`."""
    return jax.tree.map(lambda part: part.at[:, places].get(mode="promise_in_bounds")[None], table)


def _law(laws: Laws, places: Any) -> Any:
    """The laws at `places` as `_columns`, or the one law as `(1, K, 1, 1)`."""
    if places is None:
        return jax.tree.map(lambda part: part[None, :, :, None], laws.table)
    return _columns(laws.table, places)


def _flat(lanes: Any) -> Any:
    """From `(S, 1, K, B, C)` to `(B, n, K)`; if there is one chunk, to `(n, K, B)`."""

    def flat(part: Any) -> Any:
        if part.shape[-1] == 1:
            return part[:, 0, :, :, 0]
        return part[:, 0].transpose(2, 3, 0, 1).reshape(part.shape[3], -1, part.shape[2])

    return jax.tree.map(flat, lanes)


def _shifted(lanes: Any, by: Any) -> Any:
    """Chunk c takes the place of chunk `c + by`; what wraps around is replaced by the caller."""
    return jax.tree.map(lambda part: jnp.roll(part, by, axis=-1), lanes)


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _joined(parts: list[Any], axis: int) -> Any:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)


def _chunks(lanes: Any) -> int:
    return jax.tree.leaves(lanes)[0].shape[-1]


def _identity(numbers: Any, inputs: Inputs, index: Any) -> Any:
    """`(K, K, B, C)`, one for each chunk."""
    first = jax.tree.leaves(inputs.start)[0]
    eye = numbers.of(NumpyWide.of(np.eye(len(first))), first.dtype)
    shape = (len(first), len(first), *index.shape[1:])
    return jax.tree.map(lambda part: jnp.broadcast_to(part[:, :, None, None], shape), eye)


def _step(numbers: Any, table: Any, rows: Any, likelihood: Any) -> Any:
    """Rows of regime weights one step on."""
    return numbers.tamed(numbers.times(numbers.matmul(rows, table), likelihood))


def _heads(numbers: Any, products: Any, start: Any) -> Any:
    """What enters each chunk `(1, K, B, C)`: `start` through the products of all chunks before it."""
    if _chunks(products) == 1:
        return start
    return jax.lax.platform_dependent(
        products, start, cpu=partial(_heads_in_turn, numbers), default=partial(_heads_by_doubling, numbers)
    )


def _heads_in_turn(numbers: Any, products: Any, start: Any) -> Any:
    """Chunk by chunk: a step of a loop costs little beside a product of all chunks."""

    def enter(vector: Any, product: Any) -> tuple[Any, Any]:
        return numbers.tamed(numbers.matmul(vector, product)), vector

    steps = jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0)[..., None], products)
    heads = jax.lax.scan(enter, start, steps)[1]
    return jax.tree.map(lambda part: jnp.moveaxis(part[..., 0], 0, -1), heads)


def _heads_by_doubling(numbers: Any, products: Any, start: Any) -> Any:
    """Few steps, each over all chunks."""
    chunks = _chunks(products)

    def double(digit: Any, until: Any) -> Any:
        longer = numbers.tamed(numbers.matmul(_shifted(until, 1 << digit), until), whole=True)
        return _chosen(jnp.arange(chunks) >= 1 << digit, longer, until)

    until = jax.lax.fori_loop(0, (chunks - 1).bit_length(), double, products)
    later = numbers.tamed(numbers.matmul(start, jax.tree.map(lambda part: part[..., :-1], until)))
    return _joined([start, later], -1)


def _windows(numbers: Any, table: Any, inputs: Inputs, start: Any, index: Any, laws: Laws, lag: Any) -> Any:
    """Posteriors at each token `(S, 1, K, B, C)`, up to a factor each.

    The window that ends at place p of a chunk has the tokens after place `p - lag`, counted on through the chunks
    before: the end of the edge's chunk, whole chunks, and the beginning of its own. Windows that reach the first token
    are the filter's posteriors.
    """
    size, _, chunks = index.shape
    eye = _identity(numbers, inputs, index)
    firsts = jnp.arange(chunks) * size

    def backward(suffix: Any, step: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        place, places, laws_at = step
        column = jax.tree.map(lambda part: part.swapaxes(0, 1), _columns(inputs.likelihoods, places))
        longer = numbers.tamed(numbers.matmul(table, numbers.times(column, suffix)))
        end = numbers.tamed(numbers.matmul(_law(laws, laws_at), suffix))
        return _chosen(firsts + place == 0, suffix, longer), end

    edges = None if laws.index is None else _by_place(laws.index, size)
    products, ends = jax.lax.scan(backward, eye, (jnp.arange(size), index, edges), reverse=True)
    whole, rest = lag // size, lag % size
    fewer = _runs(numbers, products, eye, whole - 1)
    more = numbers.tamed(numbers.matmul(fewer, _shifted(products, -whole)))
    through = jax.vmap(lambda vector, product: numbers.tamed(numbers.matmul(vector, product)), (0, None))
    entering = _chosen(
        jnp.arange(size)[:, None, None, None, None] + rest < size,
        _shifted(through(ends, fewer), whole),
        _shifted(through(ends, more), whole + 1),
    )
    # the filter's posterior enters windows that reach the start, of which the first token is no step
    opening = _heads(numbers, products, start)

    def onward(prefix: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        place, places = step
        entered = jax.tree.map(
            lambda part: jax.lax.dynamic_index_in_dim(part, (place - rest) % size, 0, False), entering
        )
        longer = _step(numbers, table, prefix, _columns(inputs.likelihoods, places))
        prefix = _chosen(firsts + place == 0, prefix, longer)
        return prefix, numbers.matmul(_chosen(firsts + place <= lag, opening, entered), prefix)

    return jax.lax.scan(onward, eye, (jnp.arange(size), index))[1]


def _runs(numbers: Any, products: Any, eye: Any, length: Any) -> Any:
    """For each chunk the product of the `length` chunks after it, by the binary digits of `length`."""

    def double(digit: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        run, power, after = state
        taken = (length >> digit) & 1
        longer = numbers.tamed(numbers.matmul(run, _shifted(power, -after)))
        power = numbers.tamed(numbers.matmul(power, _shifted(power, -(1 << digit))))
        return _chosen(taken == 1, longer, run), power, after + (taken << digit)

    first = eye, products, jnp.ones((), dtype=jnp.int64)
    digits = 64 - jax.lax.clz(jnp.asarray(length, dtype=jnp.int64))
    return jax.lax.fori_loop(jnp.int64(0), digits, double, first)[0]


def _direct(numbers: Any, table: Any, inputs: Inputs, start: Any, index: Any, laws: Laws, lag: Any) -> Any:
    """As `_windows` for `lag < DIRECT`, with chunks of one token."""
    places = index[0]

    def absorb(k: Any, vector: Any) -> Any:
        return _step(numbers, table, vector, _columns(inputs.likelihoods, jnp.roll(places, lag - 1 - k, axis=-1)))

    def open(vector: Any, places: Any) -> tuple[Any, Any]:
        vector = _step(numbers, table, vector, _columns(inputs.likelihoods, places[:, None]))
        return vector, vector

    edges = None if laws.index is None else jnp.roll(_by_place(laws.index, 1)[0], lag, axis=-1)
    shape = jax.tree.leaves(start)[0].shape[:-1] + places.shape[-1:]
    begin = jax.tree.map(lambda part: jnp.broadcast_to(part, shape), _law(laws, edges))
    vectors = jax.lax.fori_loop(0, lag, absorb, begin)
    opened = jax.lax.scan(open, start, places[:, 1:DIRECT].T)[1]
    opened = jax.tree.map(lambda part: jnp.moveaxis(part[..., 0], 0, -1), opened)
    opening = _joined([start, opened, jax.tree.map(lambda part: part[..., DIRECT:], vectors)], -1)
    chosen = _chosen(jnp.arange(_chunks(vectors)) <= lag, opening, vectors)
    return jax.tree.map(lambda part: part[None], chosen)
