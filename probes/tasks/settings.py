"""The dials of a task as a strict model, whose errors are `TaskError`s of one line.

    class Dials(TaskSettings):
        length: int = Field(64, ge=2)

    dials = read_settings(Dials, "copy", {"length": 1})     # TaskError: copy: length = 1: input should be ...

Conditions that tie several dials together are checked by the task with `refuse`, before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import ConfigDict, ValidationError

from probes.config import Strict
from probes.messages import describe_validation
from probes.task import TaskError


class TaskSettings(Strict):
    """Base of a task's dials: frozen, unknown dials rejected, numbers finite, defaults checked too."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


Settings = TypeVar("Settings", bound=TaskSettings)


def read_settings(model: type[Settings], task: str, settings: Mapping[str, Any]) -> Settings:
    """`settings` as a `model`. Raises `TaskError`: the task, the dial, its value and the nearest valid choice."""
    try:
        return model(**settings)
    except ValidationError as error:
        _, text = describe_validation(error, model)
        raise TaskError(f"{task}: {text.replace('unknown key', 'unknown dial', 1)}") from None


def refuse(task: str, dial: str, value: Any, reason: str, choice: Any) -> NoReturn:
    """Raises the `TaskError` of a dial that does not fit the others; `choice` is its nearest valid value."""
    raise TaskError(f"{task}: {dial} = {value!r}: {reason}; nearest valid is {choice!r}")


def refuse_many(task: str, dial: str, value: int, reason: str, fits: int, length: int, need: int) -> NoReturn:
    """Raises the `TaskError` of more than a sequence of `length` holds: it names the number, the largest that fits and
    the length that the number needs; the length alone where not even one fits."""
    if fits < 1:
        refuse(task, "length", length, f"too short for {dial} = {value}, {reason}", need)
    nearest = f"nearest valid is {fits}, or length = {need}"
    raise TaskError(f"{task}: {dial} = {value!r}: too many for length = {length}, {reason}; {nearest}")
