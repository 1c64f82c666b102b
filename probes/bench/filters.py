"""The exact filters against hmmlearn and dynamax: log-probability and posteriors of the same sequences, as ratios.

Contenders take turns, so that what else the machine does falls on all of them alike; medians are compared. A call that
comes after another contender's finds its data out of the caches; what many sequences cost where call follows call, the
throughput, is measured apart, in turns of several calls. Before anything is timed, the answers are checked to agree.
The model is the book's, its pairs of tokens hmmlearn's symbols. Written as `filters.json`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from filters import jax_backend, reference
from filters.hmm import Array, TwoTimescaleHMM, book_instance, float64_locally
from filters.sampling import sample
from probes import environment
from probes.cli_common import show_table, table
from probes.files import whole_file
from probes.results import write_json

DIALS: dict[str, Any] = {
    "lengths": [8192, 1_000_000],
    "sequences": 1024,
    "sequence_length": 256,
    "window_length": 8192,
    "widths": [512, 4096],
    "repeats": 15,
    "seed": 0,
}
"""`lengths`: of the one sequence that is filtered; `sequences` of `sequence_length` tokens are filtered at once;
windows of `widths` run over `window_length` tokens."""

CALLS = 20
"""Calls in a turn, where throughput is measured."""
TARGETS = {
    "forward": "at most 1.5 of hmmlearn's time",
    "batch": "at most 1/20",
    "window": "at most 1/100 of O(T w) NumPy",
    "widths": "at most 1.5",
}


def run(
    out: Path,
    *,
    lengths: list[int] | None = None,
    sequences: int = 1024,
    sequence_length: int = 256,
    window_length: int = 8192,
    widths: list[int] | None = None,
    repeats: int = 15,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures, prints the table, and writes and returns it.

    RuntimeError where two contenders disagree by more than 1e-9.
    """
    hmm = book_instance(length=1)[0]
    rows: list[dict[str, Any]] = []
    for length in lengths or DIALS["lengths"]:
        tokens, _ = sample(hmm, 1, length, seed)
        rows += _filters(hmm, tokens[0], repeats)
    tokens, _ = sample(hmm, sequences, sequence_length, seed)
    rows += _batches(hmm, tokens, f"{sequences:,} sequences of {sequence_length}", repeats)
    tokens, _ = sample(hmm, 1, window_length, seed)
    rows += _windows(hmm, tokens[0], widths or DIALS["widths"], repeats)
    shown = []
    for row in rows:
        numbers = [f"{row[key]:.3f}" for key in ("milliseconds", "fastest")]
        numbers += [f"{row[key]:.3g}" for key in ("ours_over_theirs", "fastest_over_fastest")]
        shown.append([row["case"], row["contender"], *numbers, row["target"], row["holds"]])
    columns = ["case", "contender", "median ms", "fastest", "ours / theirs", "of fastest", "target", "holds"]
    show_table(table(columns, shown, right=columns[2:6]), "filters in JAX, float64, against others")
    found = {
        "rows": rows,
        "repeats": repeats,
        "environment": environment.describe("cpu", precision="float64", kernels="plain"),
    }
    with whole_file(out / "filters.json") as temporary:
        write_json(temporary, found)
    return found


def _filters(hmm: TwoTimescaleHMM, tokens: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    """One sequence: log-probability and posteriors."""
    learn, raw, dyna = _hmmlearn(hmm), _hmmlearn_forward(hmm), _dynamax(hmm)
    codes = (tokens[:-1] * hmm.vocab_size + tokens[1:])[:, None]
    ours = jax_backend.forward(hmm, tokens)
    total, filtered = raw(tokens)
    _agree("hmmlearn", (total, filtered), (ours.log_prob.sum(), ours.posterior[1:]))
    _agree("dynamax", dyna(tokens), (ours.log_prob.sum(), ours.posterior[1:]))
    times = _take_turns(
        {
            "ours": lambda: jax_backend.forward(hmm, tokens),
            "hmmlearn, scaling": lambda: learn.score_samples(codes),
            "hmmlearn, forward pass alone": lambda: raw(tokens),
            "dynamax": lambda: dyna(tokens),
        },
        repeats,
    )
    return _rows(f"forward, T = {len(tokens):,}", times, {"hmmlearn, scaling": (1.5, TARGETS["forward"])})


def _batches(hmm: TwoTimescaleHMM, tokens: np.ndarray, case: str, repeats: int) -> list[dict[str, Any]]:
    """Many sequences at once."""
    learn, usual, dyna = _hmmlearn(hmm), _hmmlearn(hmm, "log"), _dynamax(hmm, batch=True)
    codes = (tokens[:, :-1] * hmm.vocab_size + tokens[:, 1:]).reshape(-1, 1)
    each = [tokens.shape[1] - 1] * len(tokens)
    ours = jax_backend.forward(hmm, tokens)
    _agree("dynamax", dyna(tokens), (ours.log_prob.sum(axis=1), ours.posterior[:, 1:]))
    total = learn.score(codes, each) + len(codes) * np.log(hmm.vocab_size)
    _agree("hmmlearn", (total,), (ours.log_prob.sum(),))
    times = _take_turns(
        {
            "ours": lambda: jax_backend.forward(hmm, tokens),
            "hmmlearn, scaling": lambda: learn.score_samples(codes, each),
            "hmmlearn, log (its default)": lambda: usual.score_samples(codes, each),
            "dynamax, vmap": lambda: dyna(tokens),
        },
        repeats,
    )
    target = (1 / 20, TARGETS["batch"])
    targets = {"hmmlearn, scaling": target, "hmmlearn, log (its default)": target}
    after = _take_turns(
        {
            "ours": lambda: jax_backend.forward(hmm, tokens),
            "hmmlearn, scaling": lambda: learn.score_samples(codes, each),
            "dynamax, vmap": lambda: dyna(tokens),
        },
        max(2, repeats // 3),
        calls=CALLS,
    )
    return _rows(case, times, targets) + _rows("the same, in a row", after, targets)


def _windows(hmm: TwoTimescaleHMM, tokens: np.ndarray, widths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Windows of every width, the first against direct NumPy forms, all against the first."""
    first = widths[0]
    ours = jax_backend.window(hmm, tokens, first)
    _agree("NumPy", (ours.log_prob.sum(), direct_window(hmm, tokens, first)), (ours.log_prob.sum(), ours.posterior))
    contenders = {f"width {width}": partial(jax_backend.window, hmm, tokens, width) for width in widths}
    for call in contenders.values():
        call()
    times = _take_turns(contenders, repeats)
    slow = _take_turns(
        {
            "O(T w) NumPy, plain": lambda: direct_window(hmm, tokens, first),
            "O(T w) NumPy, the reference": lambda: reference.window(hmm, tokens, first),
        },
        3,
    )
    case = f"window {first}, T = {len(tokens):,}"
    base = times[f"width {first}"]
    rows = _rows(case, {"ours": base, **slow}, {"O(T w) NumPy, plain": (1 / 100, TARGETS["window"])})
    for width in widths[1:]:
        wider = {"ours": times[f"width {width}"], f"width {first}": base}
        rows += _rows(f"window {width}, T = {len(tokens):,}", wider, {f"width {first}": (1.5, TARGETS["widths"])})
    return rows


def direct_window(hmm: TwoTimescaleHMM, tokens: np.ndarray, width: int) -> Array:
    """Posteriors `(T, K)` of all windows at once in plain float64 NumPy, token by token: `O(T width)`."""
    likelihood = hmm.emission.transpose(1, 2, 0)[tokens[:-1], tokens[1:]]
    length = len(tokens)
    posterior = np.full((length, hmm.regimes), 1 / hmm.regimes)
    posterior[:width] = hmm.initial
    for step in range(1, width):
        late = posterior[width - step :] @ hmm.transition
        late *= likelihood[: length - width + step]
        late /= late.sum(axis=1, keepdims=True)
        posterior[width - step :] = late
    return posterior


def _hmmlearn(hmm: TwoTimescaleHMM, form: str = "scaling") -> Any:
    """hmmlearn's model over pairs of tokens, each `emission[j, u, v] / V`."""
    from hmmlearn.hmm import CategoricalHMM

    model = CategoricalHMM(n_components=hmm.regimes, implementation=form)
    model.startprob_ = hmm.initial @ hmm.transition
    model.transmat_ = hmm.transition
    model.emissionprob_ = hmm.emission.reshape(hmm.regimes, -1) / hmm.vocab_size
    return model


def _hmmlearn_forward(hmm: TwoTimescaleHMM) -> Callable[[np.ndarray], tuple[float, Array]]:
    """hmmlearn's forward pass in C++, from tokens to the scaled forward weights, which are the filter's posteriors."""
    from hmmlearn import _hmmc

    start, likelihood = hmm.initial @ hmm.transition, np.ascontiguousarray(hmm.emission.transpose(1, 2, 0))

    def forward(tokens: np.ndarray) -> tuple[float, Array]:
        total, filtered, _ = _hmmc.forward_scaling(start, hmm.transition, likelihood[tokens[:-1], tokens[1:]])
        return total, filtered

    return forward


def _dynamax(hmm: TwoTimescaleHMM, batch: bool = False) -> Callable[[np.ndarray], tuple[Any, Any]]:
    """dynamax's compiled filter, in float64, from tokens to NumPy."""
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import hmm_filter

    start, logs = hmm.initial @ hmm.transition, np.log(hmm.emission.transpose(1, 2, 0))

    def one(tokens: Any) -> tuple[Any, Any]:
        found = hmm_filter(jnp.asarray(start), jnp.asarray(hmm.transition), jnp.asarray(logs)[tokens[:-1], tokens[1:]])
        return found.marginal_loglik, found.filtered_probs

    compiled = jax.jit(jax.vmap(one) if batch else one)

    def forward(tokens: np.ndarray) -> tuple[Any, Any]:
        with float64_locally():
            total, filtered = compiled(tokens)
            return np.asarray(total), np.asarray(filtered)

    return forward


def _agree(name: str, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> None:
    offset = 0.0
    for one, other in zip(theirs, ours):
        gap = np.abs(np.asarray(one) - np.asarray(other)) / (1 + np.abs(np.asarray(other)))
        offset = max(offset, float(gap.max()))
    if not offset <= 1e-9:
        raise RuntimeError(f"{name} and the filters in JAX differ by {offset:.2g}")


def _take_turns(
    contenders: Mapping[str, Callable[[], Any]], repeats: int, calls: int = 1
) -> dict[str, tuple[float, float]]:
    """Median and least seconds a call of each, measured in rounds after one that warms up, `calls` in a row a round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if turn:
                times[name].append((time.perf_counter() - start) / calls)
    return {name: (statistics.median(found), min(found)) for name, found in times.items()}


def _rows(
    case: str, times: dict[str, tuple[float, float]], targets: dict[str, tuple[float, str]]
) -> list[dict[str, Any]]:
    """One row a contender: its times, ours over them, and whether a target for the ratio of the medians holds."""
    rows = []
    for name, (seconds, fastest) in times.items():
        ratio = times["ours"][0] / seconds
        most, target = targets.get(name, (None, ""))
        holds = "" if most is None else "yes" if ratio <= most else "no"
        rows.append(
            {
                "case": case,
                "contender": name,
                "milliseconds": 1e3 * seconds,
                "fastest": 1e3 * fastest,
                "ours_over_theirs": ratio,
                "fastest_over_fastest": times["ours"][1] / fastest,
                "target": target,
                "holds": holds,
            }
        )
    return rows
