"""Checks that hold for any recall task: used by its tests, independent of its references."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from probes.task import Batch, Reference, Task


def draw(task: Task, sequences: int, seed: int = 0) -> Batch:
    return task.sample(torch.Generator().manual_seed(seed), sequences)


def check_normalised(task: Task, batch: Batch) -> None:
    """Every predictor is a distribution, and `log_prob` is its entry at the target; unscored positions are 0."""
    target = batch.targets[batch.scored]
    for name, reference in task.references().items():
        log_prob = reference.log_prob(batch)
        assert log_prob.dtype == torch.float64, name
        assert log_prob.shape == batch.tokens.shape, name
        assert not log_prob[~batch.scored].any(), name
        assert (log_prob <= 1e-12).all(), name
        table = reference.log_predictive(batch)
        if reference.is_bound:
            assert table is None, name
            continue
        assert table is not None, name
        assert table.shape == (len(target), task.vocab_size), name
        np.testing.assert_allclose(table.exp().sum(1), 1, rtol=0, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(
            table.gather(1, target[:, None])[:, 0], log_prob[batch.scored], rtol=1e-12, atol=1e-12, err_msg=name
        )


View = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of tokens `(n, T)` and positions `(n,)`: what a restricted reader sees there, int64 `(n, k)`."""


def check_function_of(task: Task, reference: Reference, view: View, sequences: int, seed: int = 1) -> None:
    """`reference` is `P(target | view)`: the same wherever the view is the same, and right on average there.

    Scored positions are sorted into cells by what is seen (and where). Within a cell predictions must agree to 1e-9,
    and the counts of targets must fit them: chi-square over the bins with expected counts of at least 5, those below
    pooled, within six standard deviations of its mean, to which a bin of probability p contributes 1 - p.
    """
    batch = draw(task, sequences, seed)
    table = reference.log_predictive(batch)
    assert table is not None
    probability = table.exp().numpy()
    assert not np.isnan(probability).any()
    row, place = (index.numpy() for index in batch.scored.nonzero(as_tuple=True))
    seen = np.column_stack([place, view(batch.tokens.numpy()[row], place)])
    mixer = np.random.default_rng(0).integers(1, 2**63, size=seen.shape[1], dtype=np.uint64) | np.uint64(1)
    code = (seen.astype(np.uint64) * mixer).sum(1)
    _, first, cell = np.unique(code, return_index=True, return_inverse=True)
    predicted = probability[first]
    np.testing.assert_allclose(probability, predicted[cell], rtol=0, atol=1e-9)

    count = np.zeros_like(predicted)
    np.add.at(count, (cell, batch.targets[batch.scored].numpy()), 1)
    assert not count[predicted == 0].any(), "a target had probability 0"
    size = count.sum(1, keepdims=True)
    mean = predicted * size
    small = mean < 5
    mean = np.column_stack([np.where(small, 0, mean), np.where(small, mean, 0).sum(1)])
    count = np.column_stack([np.where(small, 0, count), np.where(small, count, 0).sum(1)])
    used = mean >= 5
    chi_square = ((count - mean)[used] ** 2 / mean[used]).sum()
    expected = (1 - mean / size)[used].sum()
    assert abs(chi_square - expected) < 6 * math.sqrt(2 * max(expected, 1)), (chi_square, expected)


def last_tokens(width: int) -> View:
    """The view of a window."""

    def view(tokens: np.ndarray, place: np.ndarray) -> np.ndarray:
        at = place[:, None] - np.arange(width)
        return np.where(at >= 0, np.take_along_axis(tokens, np.maximum(at, 0), 1), -1)

    return view


def everything(tokens: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The view of the exact predictor."""
    return last_tokens(tokens.shape[1])(tokens, place)


def check_expectations(task, sequences: int = 4000, seed: int = 2) -> None:
    """The closed forms agree with the sampled means of references over answers within 4.5 standard errors."""
    batch = draw(task, sequences, seed)
    answers = batch.latents["answers"].double()
    for name, expectation in task.expectations().items():
        reference = task.references()[name]
        loss = -(reference.log_prob(batch) * answers).sum(1)
        residual = loss - expectation.log_loss * answers.sum(1)
        error = residual.std() / math.sqrt(sequences)
        assert abs(residual.mean()) < 4.5 * error + 1e-9, (name, residual.mean(), error)
        some = batch.rows(0, min(sequences, 500))
        table = reference.log_predictive(some)
        best = torch.zeros(some.tokens.shape, dtype=torch.float64)
        best[some.scored] = table.exp().amax(1)
        residual = (best * answers[: len(some)]).sum(1) - expectation.accuracy * answers[: len(some)].sum(1)
        error = residual.std() / math.sqrt(len(some))
        assert abs(residual.mean()) < 4.5 * error + 1e-9, (name, residual.mean(), error)
