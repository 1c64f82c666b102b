"""Recorded results as the figures read them: the published table, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

SCHEMA = "1"
"""The version of the results schema that the figures understand."""


def read(folder: str | Path) -> pd.DataFrame:
    """The finished, chosen trials of a sweep's folder.

    FileNotFoundError where the folder has no `results.parquet`; ValueError for another schema version, or where no
    trial has finished.
    """
    path = Path(folder) / "results.parquet"
    if not path.exists():
        raise FileNotFoundError(f"results: {folder} has no results.parquet; record a sweep there first")
    arrow = pq.read_table(path)
    found = (arrow.schema.metadata or {}).get(b"fastslow.schema", b"none").decode()
    if found != SCHEMA:
        raise ValueError(f"results: {folder} has schema {found}, the figures read {SCHEMA}")
    table = arrow.to_pandas()
    table = table[(table.status == "ok") & table.chosen.astype(bool)].reset_index(drop=True)
    if table.empty:
        raise ValueError(f"results: {folder} has no finished trial")
    return table


def curves(folder: str | Path, trial: str) -> dict[str, np.ndarray]:
    """The arrays of one trial of a sweep, by its `folder` in the table: what `curves.npz` holds. ValueError where that
    file is damaged."""
    path = Path(folder) / "trials" / trial / "curves.npz"
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (BadZipFile, EOFError, ValueError):  # ValueError: no archive at all
        raise ValueError(f"{path} is damaged; remove the folder {path.parent}, and its sweep trains it again") from None


def references(table: pd.DataFrame) -> list[str]:
    """Names of the references that the table has columns for."""
    ending = ".excess"
    columns = [name for name in table.columns if name.startswith("reference.") and name.endswith(ending)]
    return [name.removeprefix("reference.").removesuffix(ending) for name in columns]


def definition(folder: str | Path, trial: str) -> dict[str, Any]:
    """What fixes the numbers of one trial of a sweep: task, architecture, recipe, controls and seeds.

    `trial` is the table's column `folder`.
    """
    return json.loads((Path(folder) / "trials" / trial / "trial.json").read_text())
