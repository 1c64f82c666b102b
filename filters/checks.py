"""Arguments out of range, refused in one line that names the argument, its value and the nearest valid choice."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


def real_array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """`value` copied to float64.

    Raises:
        ValueError: nothing that has one number an entry, or complex numbers, whose imaginary part would be lost.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind != "c":
            return np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no array of numbers: {error}") from None
    raise ValueError(f"{name} is complex; its entries must be real")


def checked_finite(name: str, array: NDArray[np.float64]) -> None:
    """A ValueError for the first entry of `array` that is nan or infinite."""
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"{name}{where} is {array[tuple(where)]}; it must be finite")
