"""Arguments out of range, refused in one line that names the argument, its value and the nearest valid choice."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np


def checked_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int in `[least, most]`, without a limit above if `most` is None; booleans are no integers.

    Raises:
        ValueError: anything else.
    """
    valid = f"an integer of at least {least}" if most is None else f"an integer in {least}..{most}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} is {value!r}; it must be {valid}")
    if value < least or (most is not None and value > most):
        nearest = least if most is None or value < least else most
        raise ValueError(f"{name} is {value}; it must be {valid}, the nearest being {nearest}")
    return int(value)


def checked_name(name: str, value: Any, known: Iterable[str]) -> str:
    """`value`, one of `known`.

    Raises:
        ValueError: another, with the nearest.
    """
    known = tuple(known)
    if value in known:
        return str(value)
    near = get_close_matches(str(value), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}{hint}")
