"""One line for a name that is not known, with the nearest that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, value: object, known: Iterable[object]) -> str:
    """`what: 'value' is not known; nearest is 'x'` or, where nothing is near, the list of what is known."""
    names = [str(name) for name in known]
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"nearest is {near[0]!r}" if near else f"known: {', '.join(names) or 'none'}"
    return f"{what}: {value!r} is not known; {hint}"
