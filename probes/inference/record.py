"""The record of a benchmark of inference, which a later run goes on with: what is in it is kept, or measured again.

`environment`, `dials` and `rates` are those of the run that wrote it last; `earlier` has those of the runs before,
oldest first, and each row the commit of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = "1"
IDENTITY = ("scale", "model", "gate", "context", "batch")
"""What tells rows apart."""
SAME = ("prefill_rate", "decode_rate", "warmup", "runs", "tokens")
"""Dials that rows of one record share."""


def start(environment: Mapping[str, Any], dials: Mapping[str, Any]) -> dict[str, Any]:
    """An empty record of a run in `environment` with these dials."""
    return {
        "schema": SCHEMA,
        "environment": dict(environment),
        "dials": dict(dials),
        "earlier": [],
        "agreement": [],
        "kernels": [],
        "rows": [],
    }


def resume(record: dict[str, Any], path: Path) -> None:
    """Fills `record` with what is in the one at `path`.

    FileNotFoundError where there is none; ValueError for another schema, another device, or rows that were measured
    with other dials.
    """
    if not path.exists():
        raise FileNotFoundError(f"resume: {path} is not there")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("schema") != SCHEMA:
        raise ValueError(f"resume: {path} has schema {found.get('schema')}, this is {SCHEMA}")
    was, now = (one["environment"].get("device_name") for one in (found, record))
    if was != now:
        raise ValueError(f"resume: {path} was measured on {was!r}, this is {now!r}")
    for name in SAME:
        if found["dials"][name] != record["dials"][name]:
            raise ValueError(f"{name}: {record['dials'][name]}, but the rows of {path} have {found['dials'][name]}")
    commit = found["environment"].get("commit")
    about = {name: found.get(name) for name in ("environment", "dials", "rates")}
    record["earlier"] = [*found.get("earlier", []), about]
    record["agreement"], record["kernels"] = found["agreement"], found["kernels"]
    record["rows"] = [{"commit": commit, **row} for row in found["rows"]]


def identity(row: Mapping[str, Any], names: Sequence[str] = IDENTITY) -> tuple[Any, ...]:
    """What tells a row apart from the others."""
    return tuple(row[name] for name in names)


def put(rows: list[dict[str, Any]], row: dict[str, Any], names: Sequence[str]) -> None:
    """Adds a row, in place of the one that agrees with it in `names`."""
    for index, other in enumerate(rows):
        if identity(other, names) == identity(row, names):
            rows[index] = row
            return
    rows.append(row)
