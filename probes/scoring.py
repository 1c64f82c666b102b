"""Scores in nats over Bayes, for a model and for every reference of its task, on the same sequences.

For a predictor q, the exact Bayes predictive p and the target y at each scored position of sequence i, with
sums over its n_i scored positions:

    kl_i      = sum_t KL(p_t || q_t)                   (only where the exact predictive is known)
    sampled_i = sum_t log p_t(y_t) - log q_t(y_t)

and the score of either is the ratio sum_i s_i / sum_i n_i, with the standard error of a ratio over sequences.
Both estimate the same expectation unless q has seen the target: then `kl` grows while `sampled` shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probes.splits import BLOCK, Split, digest, evaluation_blocks
from probes.task import Batch, Reference, Task

Model = Callable[[Batch], Tensor]
"""Maps a batch to logits `(n, V)` at its scored positions, row-major."""


class Estimate(NamedTuple):
    """A mean and its standard error over sequences; `se` is NaN for fewer than two sequences."""

    mean: float
    se: float


def ratio(total: np.ndarray, count: np.ndarray) -> Estimate:
    """`sum(total) / sum(count)` with its standard error over sequences (linearised ratio estimator).

    `total`, `count`: `(N,)` sums per sequence. SE = sqrt(sum (s_i - r n_i)^2 / (N (N - 1))) / mean(n).
    """
    counted = count.sum()
    if counted == 0:
        return Estimate(math.nan, math.nan)
    mean = float(total.sum() / counted)
    if len(total) < 2 or not math.isfinite(mean):
        return Estimate(mean, math.nan)
    residual = total - mean * count
    se = math.sqrt(float((residual**2).sum()) / (len(total) * (len(total) - 1))) / float(count.mean())
    return Estimate(mean, se)


@dataclass
class Sums:
    """Sums per sequence of one predictor, `(N,)` each; `position` sums over sequences, `(T,)` each."""

    count: np.ndarray
    nll: np.ndarray
    sampled: np.ndarray
    correct: np.ndarray | None
    """None for a bound."""
    kl: np.ndarray | None
    """None where no exact predictive is known, or for a bound."""
    to_model: np.ndarray | None = None
    """For a reference r scored beside a model q: sums of KL(r || q)."""
    position: dict[str, np.ndarray] = field(default_factory=dict)
    slices: dict[str, dict[int, tuple[int, float, float, float]]] = field(default_factory=dict)
    """Per slice and label: positions, and sums of nll, of correct, and of excess (kl where known, else sampled)."""

    @property
    def headline(self) -> np.ndarray:
        """The better estimate of the excess that there is: `kl`, else `sampled`."""
        return self.sampled if self.kl is None else self.kl

    def excess(self) -> Estimate:
        """Nats over Bayes per scored position."""
        return ratio(self.headline, self.count)

    def accuracy(self) -> Estimate | None:
        """Fraction of scored positions whose most probable token is the target; None for a bound."""
        return None if self.correct is None else ratio(self.correct, self.count)

    def sequence_accuracy(self) -> Estimate | None:
        """Fraction of sequences with every scored position right; unscored ones are left out. None for a bound."""
        if self.correct is None:
            return None
        scored = self.count > 0
        return ratio((self.correct[scored] == self.count[scored]).astype(float), np.ones(int(scored.sum())))

    def agreement(self) -> Estimate | None:
        """`sampled - kl`: zero in expectation unless the predictor has seen the target. None without `kl`."""
        return None if self.kl is None else ratio(self.sampled - self.kl, self.count)


CERTAINTY = 1e-6
"""How improbable the test sequences must be, were `bayes` exact, for a task to be refused."""


class BeatenBayes(ValueError):
    """A reference predicts better than `bayes`, by more than chance allows: one of the two is wrong. One line."""


def refuse_beaten(task: Task, scores: Mapping[str, Sums]) -> None:
    """Raises `BeatenBayes` where `bayes` rules out a target that occurs, or a restricted reference beats it.

    If p is exact, E[q_t / p_t] = 1 at every scored position t for any predictor q of the same tokens. By Jensen's
    inequality E[exp(m)] <= 1 for the mean m of log q_t - log p_t over a sequence, and by Markov's, over independent
    sequences, P(sum_i m_i >= log 1/CERTAINTY) <= CERTAINTY: however heavy the tails. Bounds are no predictors.
    """
    bayes = scores["bayes"]
    scored = bayes.count > 0
    if not np.isfinite(bayes.nll).all():
        raise BeatenBayes(f"{task.name}: bayes gives probability 0 to a target that occurs, so it is not exact")
    for name, sums in scores.items():
        if sums.correct is None or not scored.any():
            continue
        gain = -(sums.sampled[scored] / bayes.count[scored])
        if gain.sum() >= -math.log(CERTAINTY):
            gap = -ratio(sums.sampled, sums.count).mean
            raise BeatenBayes(
                f"{task.name}: {name} beats bayes by {gap:.3g} nats: bayes is not the exact predictor of these "
                f"sequences, or {name} sees what a predictor cannot"
            )


def paired(first: Sums, second: Sums) -> Estimate:
    """Excess of `first` minus excess of `second` on the same sequences, with the paired standard error."""
    if (first.kl is None) != (second.kl is None):
        return ratio(first.sampled - second.sampled, first.count)
    return ratio(first.headline - second.headline, first.count)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`sum_v p (log p - log q)` over the last dimension, nats; terms with p = 0 are 0."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


class _Accumulator:
    """Collects blocks of per-position values into `Sums`. `parts` are the fields that have a value."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.rows: dict[str, list[np.ndarray]] = {}
        self.position = {"count": np.zeros(length), "excess": np.zeros(length), "nll": np.zeros(length)}
        self.slices: dict[str, dict[int, np.ndarray]] = {}

    def add(self, batch: Batch, values: dict[str, Tensor]) -> None:
        scored = batch.scored.cpu()
        row, column = (index.numpy() for index in scored.nonzero(as_tuple=True))
        flat = {name: value.double().cpu().numpy() for name, value in values.items()}
        flat["count"] = np.ones(len(row))
        excess = flat["kl"] if "kl" in flat else flat["sampled"]
        for name, value in flat.items():
            self.rows.setdefault(name, []).append(np.bincount(row, value, minlength=len(batch)))
        for name, value in (("count", flat["count"]), ("excess", excess), ("nll", flat["nll"])):
            self.position[name] += np.bincount(column, value, minlength=self.length)
        for name, labels in batch.slices.items():
            at = labels.cpu().numpy()[row, column]
            table = self.slices.setdefault(name, {})
            for label in np.unique(at[at >= 0]):
                here = at == label
                correct = flat["correct"][here].sum() if "correct" in flat else np.nan
                part = [here.sum(), flat["nll"][here].sum(), correct, excess[here].sum()]
                table[int(label)] = table.get(int(label), np.zeros(4)) + np.array(part, dtype=float)

    def sums(self) -> Sums:
        rows = {name: np.concatenate(parts) for name, parts in self.rows.items()}
        slices = {
            name: {label: (int(part[0]), *map(float, part[1:])) for label, part in sorted(table.items())}
            for name, table in self.slices.items()
        }
        return Sums(
            rows["count"],
            rows["nll"],
            rows["sampled"],
            rows.get("correct"),
            rows.get("kl"),
            None,
            self.position,
            slices,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class _Predictions:
    """What a reference says at the scored positions of one batch: `(n,)` and `(n, V)` or None."""

    at_target: Tensor
    log_predictive: Tensor | None


class EvaluationSet:
    """The sequences of one evaluation split with what every reference says of them, formed once.

    Reference distributions are kept in memory up to `cache_bytes` in all (256 MiB on a CPU, 1 GiB on a GPU) and formed
    again beyond it.
    """

    def __init__(
        self,
        task: Task,
        data_seed: int,
        split: Split,
        sequences: int,
        *,
        batch_size: int = BLOCK,
        device: torch.device | str = "cpu",
        extra: dict[str, Reference] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        blocks = evaluation_blocks(task, data_seed, split, sequences)
        self.task = task
        for block in blocks:
            _check_tokens(task, block)
        self.digest = digest(blocks)
        self.sequences = sequences
        self.batches = [
            block.rows(start, min(start + batch_size, len(block))).to(device)
            for block in blocks
            for start in range(0, len(block), batch_size)
        ]
        self.references = {**task.references(), **(extra or {})}
        self._cache: dict[tuple[int, str], _Predictions] = {}
        self._sums: dict[str, Sums] = {}
        if cache_bytes is None:
            cache_bytes = 2**28 if torch.device(device).type == "cpu" else 2**30
        scored = sum(int(batch.scored.sum()) for batch in self.batches)
        self._keeps = scored * task.vocab_size * 8 * len(self.references) <= cache_bytes

    def predictions(self, index: int, name: str) -> _Predictions:
        """What reference `name` says of batch `index`."""
        known = self._cache.get((index, name))
        if known is None:
            batch, reference = self.batches[index], self.references[name]
            known = _Predictions(reference.log_prob(batch)[batch.scored], reference.log_predictive(batch))
            if index == 0 and known.log_predictive is not None:
                self._check(name, known.log_predictive, len(known.at_target))
            if self._keeps:
                self._cache[index, name] = known
        return known

    def _check(self, name: str, log_predictive: Tensor, positions: int) -> None:
        """ValueError where a reference of a task gives no distributions over the vocabulary at the scored positions."""
        expected = (positions, self.task.vocab_size)
        if tuple(log_predictive.shape) != expected:
            raise ValueError(f"{self.task.name}: reference {name}: shape {tuple(log_predictive.shape)}, not {expected}")
        off = (log_predictive.logsumexp(-1).abs()).max().item() if positions else 0.0
        if not off < 1e-6:
            raise ValueError(f"{self.task.name}: reference {name} is no distribution (log of its sum: {off:.3g})")

    def score(self, model: Model | None = None, *, references: bool = True) -> dict[str, Sums]:
        """`Sums` by name of every reference and, where a model is given, of the model under the name `model`.

        Without `references` only the model is scored, against Bayes as always.

        Distributions are compared in float64 on the set's device; only values per position leave it.
        """
        wanted = list(self.references) if references else []
        fresh = {name: _Accumulator(self.task.length) for name in wanted if name not in self._sums}
        own, to_model = _Accumulator(self.task.length), {name: list[np.ndarray]() for name in wanted}
        for index, batch in enumerate(self.batches):
            target = batch.targets[batch.scored]
            if not len(target):
                continue
            bayes = self.predictions(index, "bayes")
            log_q = None
            if model is not None:
                with torch.no_grad():
                    log_q = torch.log_softmax(model(batch).double(), dim=-1)
                said = _Predictions(log_q.gather(-1, target[:, None])[:, 0], log_q)
                own.add(batch, _values(said, bayes, target))
            for name in wanted:
                if name in self._sums and (log_q is None or self._sums[name].correct is None):
                    continue
                reference = self.predictions(index, name)
                if name in fresh:
                    fresh[name].add(batch, _values(reference, bayes, target))
                if log_q is not None and reference.log_predictive is not None:
                    divergence = kl_divergence(reference.log_predictive, log_q)
                    to_model[name].append(_by_sequence(batch, divergence))
        self._sums.update({name: total.sums() for name, total in fresh.items() if total.rows})
        found = {"model": own.sums()} if own.rows else {}
        for name in wanted:
            if name in self._sums:
                rows = np.concatenate(to_model[name]) if to_model[name] else None
                found[name] = replace(self._sums[name], to_model=rows)
        return found


def _check_tokens(task: Task, block: Batch) -> None:
    """ValueError where a token, or a target that counts, is outside the task's vocabulary."""
    for name, values in (("token", block.tokens), ("target", block.targets[block.scored])):
        wrong = values[(values < 0) | (values >= task.vocab_size)]
        if len(wrong):
            raise ValueError(f"{task.name}: {name} {int(wrong[0])} is outside the vocabulary of {task.vocab_size}")


def _by_sequence(batch: Batch, values: Tensor) -> np.ndarray:
    """Sums `(B,)` of values at the scored positions."""
    row = batch.scored.nonzero(as_tuple=True)[0].cpu().numpy()
    return np.bincount(row, values.double().cpu().numpy(), minlength=len(batch))


def _values(own: _Predictions, bayes: _Predictions, target: Tensor) -> dict[str, Tensor]:
    values = {"nll": -own.at_target, "sampled": bayes.at_target - own.at_target}
    if own.log_predictive is not None:
        values["correct"] = (own.log_predictive.argmax(-1) == target).double()
        if bayes.log_predictive is not None:
            values["kl"] = kl_divergence(bayes.log_predictive, own.log_predictive)
    return values
