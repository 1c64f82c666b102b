"""The tasks by kind, loaded when asked for: `TASKS[kind]` is `module:Class`, a subclass of `probes.task.Task`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from probes.messages import nearest

if TYPE_CHECKING:
    from probes.task import Task

TASKS: dict[str, str] = {
    "two_timescale": "probes.tasks.two_timescale:TwoTimescale",
    "mqar": "probes.tasks.mqar:Mqar",
    "copy": "probes.tasks.copying:Copy",
    "selective_copy": "probes.tasks.selective_copy:SelectiveCopy",
    "induction": "probes.tasks.induction:Induction",
    "phonebook": "probes.tasks.phonebook:Phonebook",
    "needle": "probes.tasks.needle:Needle",
    "in_context_recall": "probes.tasks.in_context_recall:InContextRecall",
    "fuzzy_recall": "probes.tasks.fuzzy_recall:FuzzyRecall",
    "memorization": "probes.tasks.memorization:Memorization",
    "compression": "probes.tasks.compression:Compression",
    "hmm": "probes.tasks.hidden_markov:HiddenMarkov",
    "markov": "probes.tasks.markov:Markov",
}


def create(kind: str, settings: Mapping[str, Any]) -> Task:
    """The task of one kind with its settings; `task:module:Class` and `task:file.py:Class` name a user's own.

    Raises `TaskError` for an unknown kind, or for settings that the task refuses.
    """
    from probes.task import TaskError

    if kind.startswith("task:"):
        from probes.plugins import load_object

        return load_object(kind.removeprefix("task:"))(**settings)
    if kind not in TASKS:
        raise TaskError(f"unknown task {kind!r}{nearest(kind, TASKS)}")
    module, name = TASKS[kind].split(":")
    return getattr(import_module(module), name)(**settings)
