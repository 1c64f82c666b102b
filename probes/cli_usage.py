"""Wrong usage of the command: each message names the nearest command, option or number."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

from probes.messages import nearest


def between(low: int, high: int | None = None) -> Callable[[int | None], int | None]:
    """Checks a whole number of the command line. `typer.BadParameter` outside of `low..high`."""

    def check(value: int | None) -> int | None:
        if value is not None and value < low:
            raise typer.BadParameter(f"{value} is below {low}; nearest is {low}")
        if value is not None and high is not None and value > high:
            raise typer.BadParameter(f"{value} is above {high}; nearest is {high}")
        return value

    return check


def describe_usage(error: Any) -> str:
    """The message of typer's own error; for an unknown command or option with the nearest, or the list of them."""
    message, context = str(error.format_message()), getattr(error, "ctx", None)
    command = re.match(r"No such command '([^']*)'", message)
    option = re.match(r"No such option:? '?(-[^\s']*)", message)
    if context is None:
        return message
    if command:
        return f"{command[0]}{nearest(command[1], context.command.commands)}"
    if option:
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        return f"No such option: {option[1]}{nearest(option[1], [*known, '--help'])}"
    return message
