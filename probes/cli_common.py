"""What the commands share: the console, tables, numbers with errors, and errors as one line."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import ValidationError
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from probes.plugins import PluginError
from probes.settings import CatalogueError
from probes.strict_yaml import YamlError

console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120, highlight=False)
errors = Console(stderr=True, highlight=False)

ROUNDING = 1e-10
"""Standard errors up to this are those of a value without any, in float64."""
MOST_PLACES = 7
"""Digits after the point beyond which a small number with its error is written with an exponent."""

_LAZY_ERRORS = (
    ("architectures.errors", "SpecError"),
    ("filters.fast_slow", "NotHurwitz"),
    ("filters.hmm", "ImpossibleObservation"),
    ("filters.hmm", "ModelError"),
    ("filters.hmm", "TokenError"),
    ("probes.controls_check", "ControlError"),
    ("probes.executor", "WorkerDied"),
    ("probes.results", "CorruptRecord"),
    ("probes.scoring", "BeatenBayes"),
    ("probes.splits_check", "SplitOverlap"),
    ("probes.sweep", "SweepError"),
    ("probes.task", "TaskError"),
)
"""Classes of modules that a command may or may not load."""


def import_user_errors() -> tuple[type[BaseException], ...]:
    """The errors that a user can cause. Those of modules that have not been imported cannot have been raised."""
    found: list[type[BaseException]] = [CatalogueError, PluginError, YamlError, ValidationError, OSError]
    for module, name in _LAZY_ERRORS:
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def one_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        return f"{error.title}.{'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def places(error: float | None, least: int = 4) -> int:
    """Digits after the point that show two significant ones of a standard error; `least` where none is known, or where
    it is no more than rounding."""
    return max(least, 1 - math.floor(math.log10(error))) if error and ROUNDING < error < math.inf else least


def number(value: float | None, error: float | None = None, digits: int = 4) -> str:
    """`0.02461 ± 0.00030`: two significant digits of the error, `digits` after the point or more. A dash for what is
    not known."""
    if value is None or value != value:
        return "–"
    digits = places(error, digits)
    if error and digits > MOST_PLACES and abs(value) < 1e-4:
        return f"{value:.1e} ± {error:.1e}"
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no minus sign on what rounds to nothing
    return text if error is None or error != error else f"{text} ± {error:.{digits}f}"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), whole: Iterable[str] = ()
) -> Table:
    """A plain table; the columns named in `right` hold numbers. Numbers, the first column and those named in `whole`
    are never wrapped."""
    numeric = set(right)
    uncut = {*numeric, *whole, *columns[:1]}
    cells = [[str(cell) for cell in row] for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        width = max(cell_len(text) for text in (column, *(row[index] for row in cells))) if column in uncut else None
        side: Literal["left", "right"] = "right" if column in numeric else "left"
        made.add_column(column, justify=side, no_wrap=column in uncut, min_width=width, overflow="fold")
    for row in cells:
        made.add_row(*map(Text, row))
    return made


def show_table(made: Table, title: str = "", to: Console | None = None) -> None:
    """Prints a table under its title, wider than the terminal where a number would be cut otherwise."""
    to = to or console
    if title:
        to.print(Text(title, style="bold"), soft_wrap=True)
    least = to.measure(made, options=to.options.update(max_width=10_000)).minimum
    to.print(made, width=max(to.width, least), crop=False)
