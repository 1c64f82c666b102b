"""Recipes that share a results folder: what sets their trials apart, and which of them a table leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

MOST_DIALS = 6
"""Dials of other recipes that are named."""


def recipe_of(folder: Path) -> dict[str, str]:
    """The dials of a trial by its folder, `SECTION.KEY` to the value as JSON; its seeds left out."""
    from probes.results import read_json

    trial = read_json(folder / "trial.json")
    sections = {
        "task": trial["task"]["settings"],
        "arch": trial["architecture"],
        "train": trial["train"],
        "evaluate": trial["evaluate"],
    }
    return {key: json.dumps(value, sort_keys=True) for key, value in _flat(sections)}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def keep_apart(rows: pd.DataFrame, folder: Path) -> None:
    """Puts into the point of each row what sets its recipe apart from others of its task and architecture in `folder`,
    the learning rate and the seeds left out."""
    recipes = [recipe_of(folder / "trials" / name) for name in rows["folder"]]
    for recipe in recipes:
        del recipe["train.lr"]
    for _, part in rows.groupby(["task", "architecture", "point"], dropna=False):
        own = [recipes[index] for index in part.index]
        dials = dict.fromkeys(key for recipe in own for key in recipe)
        apart = [key for key in dials if len({recipe.get(key) for recipe in own}) > 1]
        for index in part.index:
            said = [f"{key}={recipes[index][key]}" for key in apart if key in recipes[index]]
            rows.loc[index, "point"] = " ".join([str(rows.loc[index, "point"] or ""), *said]).strip()


def left_out(table: pd.DataFrame, folder: Path) -> str:
    """What a reader of a sweep's table must know of trials in `folder` that are not in it; empty if there are none."""
    from probes.results import single_runs

    listed = set(table["trial"])
    finished = [row for row in single_runs(folder) if row["trial"] not in listed]
    unfinished = [path for path in folder.glob(".partial/*/checkpoint.pt") if path.parent.name not in listed]
    counts = [f"{len(found)} {kind}" for kind, found in (("finished", finished), ("unfinished", unfinished)) if found]
    if not counts:
        return ""
    trials = "trial" if len(finished) + len(unfinished) == 1 else "trials"
    dials = list(dict.fromkeys(_other_dials(finished, table, folder / "trials")))
    named = ", ".join(dials[:MOST_DIALS]) + (", ..." if len(dials) > MOST_DIALS else "")
    return (
        f"Not in this table: {' and '.join(counts)} {trials} of another recipe in this folder"
        f"{f' ({named})' if named else ''}. The command of that recipe goes on with it and puts its own table in place "
        "of this one."
    )


def _other_dials(finished: list[dict[str, Any]], table: pd.DataFrame, trials: Path) -> Iterator[str]:
    """The dials of trials whose values no trial of the table with their task and architecture has."""
    recorded = {name: recipe_of(trials / name) for name in table["folder"] if (trials / name / "trial.json").is_file()}
    for row in finished:
        alike = table[(table["task"] == row["task"]) & (table["architecture"] == row["architecture"])]
        if alike.empty:
            yield f"{row['architecture']} on {row['task']}"
            continue
        own = recipe_of(trials / row["folder"])
        known = [recorded[name] for name in alike["folder"] if name in recorded]
        other = [key for key, value in own.items() if all(recipe.get(key) != value for recipe in known)]
        if dials := [key for key in other if key != "train.lr"] or other:
            yield from (f"{key}={own[key]}" for key in dials)
        else:
            yield f"seed {row['model_seed']}"
