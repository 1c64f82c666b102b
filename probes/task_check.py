"""A user's own task held to the contract of `probes.task`, on a few sequences, before anything is computed from it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from probes.plugins import PluginError
from probes.task import IGNORED, Batch, Reference, Task, TaskError

SEQUENCES = 64
"""Sequences whose tokens and targets are looked at; references are asked about the first two."""

T = TypeVar("T")


def make_checked(made: type[Task], settings: Mapping[str, Any]) -> Task:
    """The task of a class with its settings. Raises `PluginError`, one line that names the class and what is missing or
    wrong, and `TaskError` where the task itself refuses its settings."""
    name = made.__name__
    if missing := sorted(getattr(made, "__abstractmethods__", ())):
        raise PluginError(f"{name} lacks {', '.join(f'{method}()' for method in missing)}, which every task has")
    task = _asked(name, lambda: made(**settings))
    for attribute, kind in (("name", str), ("version", int), ("settings", dict), ("vocab_size", int), ("length", int)):
        value = getattr(task, attribute, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            has = "lacks" if value is None else f"has {value!r} as"
            raise PluginError(f"{name} {has} {attribute!r}, which is to be of type {kind.__name__}")
    batch = _asked(f"{name}.sample", lambda: task.sample(torch.Generator().manual_seed(0), SEQUENCES))
    _check_batch(name, task, batch)
    again = task.sample(torch.Generator().manual_seed(0), SEQUENCES)
    if not (torch.equal(batch.tokens, again.tokens) and torch.equal(batch.targets, again.targets)):
        raise PluginError(f"{name}.sample gives other sequences for the same generator; draw from `generator` alone")
    _check_references(name, task, batch.rows(0, 2))
    return task


def _check_batch(name: str, task: Task, batch: Any) -> None:
    if not isinstance(batch, Batch):
        raise PluginError(f"{name}.sample returns a {type(batch).__name__}, not a probes.task.Batch")
    expected = (SEQUENCES, task.length)
    for part, tensor in (("tokens", batch.tokens), ("targets", batch.targets)):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int64 or tuple(tensor.shape) != expected:
            found = (
                f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            )
            raise PluginError(f"{name}.sample: {part} is {found}, not torch.int64 {expected}, as `length` says")
        outside = (tensor < 0) | (tensor >= task.vocab_size)
        if part == "targets":
            outside &= tensor != IGNORED
        if outside.any():
            row, column = (int(index) for index in outside.nonzero()[0])
            value, last = int(tensor[row, column]), task.vocab_size - 1
            raise PluginError(
                f"{name}.sample: {part}[{row}, {column}] = {value} is outside the vocabulary of {task.vocab_size}; "
                f"nearest: {min(max(value, 0), last)}"
            )
    if not batch.scored.any():
        raise PluginError(f"{name}.sample: no position is scored: every target is {IGNORED}")


def _check_references(name: str, task: Task, batch: Batch) -> None:
    references = _asked(f"{name}.references", task.references)
    if not isinstance(references, Mapping) or "bayes" not in references:
        has = ", ".join(map(str, references)) if isinstance(references, Mapping) else type(references).__name__
        raise PluginError(f"{name}.references has no 'bayes', the exact predictor (it has: {has or 'nothing'})")
    for key, reference in references.items():
        where = f"{name}: reference {key}"
        if not isinstance(reference, Reference):
            raise PluginError(f"{where} is a {type(reference).__name__}, not a probes.task.Reference")
        log_p = _asked(f"{where}: log_prob", lambda reference=reference: reference.log_prob(batch))  # type: ignore[misc]
        if not isinstance(log_p, torch.Tensor) or log_p.shape != batch.tokens.shape:
            found = tuple(log_p.shape) if isinstance(log_p, torch.Tensor) else type(log_p).__name__
            raise PluginError(f"{where}: log_prob is {found}, not {tuple(batch.tokens.shape)}")
        _asked(f"{where}: log_predictive", lambda reference=reference: reference.log_predictive(batch))  # type: ignore[misc]


def _asked(what: str, ask: Callable[[], T]) -> T:
    """What a part of the task returns; its error in one line that says where it was raised."""
    try:
        return ask()
    except (TaskError, PluginError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error) or "no message").splitlines()[0]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raise PluginError(f"{what}: {type(error).__name__}: {text} ({where})") from error
