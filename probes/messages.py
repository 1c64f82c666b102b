"""One clear line for an error that a user can cause: the key, its value, the nearest valid choice."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError


def nearest(key: Any, choices: Iterable[Any]) -> str:
    """`; nearest is 'x'`, the whole list where nothing is near, or nothing where there is no choice."""
    known = sorted(map(str, choices))
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    if close:
        return f"; nearest is {close[0]!r}"
    return f"; known: {', '.join(known)}" if known else ""


RESERVED = ("trials",)
"""Folders in which something else is kept beside those of suites."""


def no_folder(name: str) -> str | None:
    """What is wrong with `name` as a suite's folder: one part of a path, neither hidden nor taken; else None."""
    last = "".join(c for c in re.split(r"[/\\]", name)[-1] if c.isprintable()).strip().lstrip(".")
    found = f"{last}_" if last in RESERVED else last
    if name == found:
        return None
    return f"{name!r} is no plain name of a folder, which a suite's results need" + (
        f"; nearest is {found!r}" if found else ""
    )


def describe_validation(error: ValidationError, model: type[BaseModel]) -> tuple[tuple[Any, ...], str]:
    """The path and the description of the first thing wrong with a `model`'s input, unknown keys before others."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = tuple(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return path, f"unknown key {str(path[-1])!r}{nearest(path[-1], model.model_fields)}"
    key = ".".join(map(str, path))
    if fault["type"] == "missing":
        return path, f"key {key!r} is missing"
    reason = fault["msg"][0].lower() + fault["msg"][1:]
    return path, f"{key} = {fault['input']!r}: {reason}{_in_range(fault, model)}"


def _in_range(fault: Any, model: type[BaseModel]) -> str:
    """`; nearest: 1` for a number beyond a bound of its range; nothing for other faults."""
    bound = next((fault["ctx"][name] for name in ("ge", "le") if name in fault.get("ctx", {})), None)
    if bound is not None:
        return f"; nearest: {bound:g}" if isinstance(bound, float) else f"; nearest: {bound}"
    for name, step, side in (("gt", 1, "above"), ("lt", -1, "below")):
        if name in fault.get("ctx", {}):
            bound, kind = fault["ctx"][name], str(model.model_fields[fault["loc"][0]].annotation)
            whole = isinstance(bound, int) and "float" not in kind
            return f"; nearest: {bound + step}" if whole else f"; nearest: just {side} {bound:g}"
    return ""
