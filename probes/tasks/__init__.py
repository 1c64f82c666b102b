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
