"""The printed table of recorded trials: scores, seeds, what a reader must know of them, references, probes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from probes.catalogue import CatalogueError
from probes.cli_common import console, number, places, show_table, table
from probes.cli_gate import print_gates
from probes.cli_modes import print_modes
from probes.cli_readouts import print_readouts
from probes.cli_recipes import keep_apart, left_out
from probes.cli_references import label, print_references, tied, ties_note
from probes.messages import nearest


def print_report(folder: Path, *, search: bool = False) -> None:
    """Prints the table of a recorded sweep, or the scores of a recorded trial, from its folder; with `search` also the
    trials at every learning rate that was tried.

    Raises `CatalogueError` where the folder is neither.
    """
    from probes.results import read_row, read_table, single_runs

    if (folder / "results.parquet").is_file():
        rows = read_table(folder)
        if note := left_out(rows, folder):
            console.print(note, end="\n\n", markup=False)
        print_rows(rows, search=search)
    elif (folder / "result.json").is_file():
        print_rows(pd.DataFrame([read_row(folder)]))
    elif runs := single_runs(folder):
        found = pd.DataFrame(runs)
        keep_apart(found, folder)
        if _choose(found):
            console.print(UNFINISHED, end="\n\n")
        print_rows(found, search=search)
    else:
        recorded = [path.parent for place in (folder, folder.parent) for path in place.glob("*/results.parquet")]
        raise CatalogueError(f"{folder}: no recorded sweep (results.parquet) or trial here{nearest(folder, recorded)}")


def _choose(rows: pd.DataFrame) -> bool:
    """Marks as chosen, in rows of a sweep without its table, each architecture's learning rate that is best on
    validation so far, on the first seed. Whether there was one to choose."""
    from probes.sweep import best_rate

    any_chosen = False
    for _, part in rows.groupby(["task", "architecture", "point"], dropna=False):
        ok = part[part["status"] == "ok"]
        first = ok[ok["model_seed"] == ok["model_seed"].min()]
        if first["lr"].nunique() > 1:
            any_chosen = True
            rows.loc[part.index, "chosen"] = part["lr"] == best_rate(first.to_dict("records"))
        else:
            rows.loc[part.index, "chosen"] = True
    if not any_chosen:
        rows["chosen"] = False
    return any_chosen


UNFINISHED = (
    "This sweep has not ended: the same command goes on with it. Of several learning rates the one is shown that is "
    "best on validation among those that have been tried."
)
SEEDS_TO_RANK = 5
WORST_MATCH = 0.05
"""Relative mismatch of a matched model beyond which a reader is told."""
COLUMNS = ("architecture", "seed", "lr", "nats over bayes", "sampled", "accuracy", "behaves like", "KL", "parameters")
NUMBERS = ("seed", "lr", "nats over bayes", "sampled", "accuracy", "KL", "parameters")


def print_rows(rows: pd.DataFrame, *, search: bool = False) -> None:
    """By task and grid point: the chosen trials, one line each, with `search` those of the learning-rate search, then
    the references on the same sequences."""
    for (task, point), part in rows.groupby(["task", "point"], sort=False, dropna=False):
        chosen = part["chosen"].fillna(False).astype(bool) if "chosen" in part else part["status"] == ""
        shown = part[chosen | (part["status"] != "ok")] if chosen.any() else part
        lines = [_line(row) for _, row in shown.iterrows()]
        title = f"{task} {point}".strip()
        show_table(table(COLUMNS, lines, right=NUMBERS, whole=("behaves like",)), title)
        notes = _notes(shown, part["lr"].nunique())
        if notes:
            console.print(*notes, sep="\n", end="\n\n")
        if search and chosen.any():
            _print_search(part)
        _print_seeds(shown)
        print_references(shown)
        print_gates(shown)
        print_modes(shown)
        print_readouts(shown)


def _line(row: pd.Series) -> list[str]:
    start = [re.sub(r"[^:]*/", "", str(row["architecture"])), str(row["model_seed"]), f"{row['lr']:g}"]
    if row["status"] != "ok":
        return [*start, str(row["status"]), *["–"] * (len(COLUMNS) - 4)]
    near = tied(row)
    return [
        *start,
        number(row["excess"], row["excess_se"]),
        number(row["excess_sampled"], row["excess_sampled_se"]),
        number(row["accuracy"], row["accuracy_se"]),
        label(near),
        number(row.get(f"reference.{row['behaves_like']}.to_model"), digits=places(row["excess_se"])),
        "–" if pd.isna(row["parameters"]) else f"{int(row['parameters']):,}",
    ]


def _notes(rows: pd.DataFrame, rates: int) -> list[str]:
    """What a reader must know of the rows: failures, leaks, a learning rate at the grid's edge, too short a training.

    What is said of several trials is said once.
    """
    said: dict[str, dict[str, list[str]]] = {}
    for _, row in rows.iterrows():
        for note in _notes_of(row, rates):
            said.setdefault(note, {}).setdefault(row["architecture"], []).append(str(row["model_seed"]))
    notes = [
        ", ".join(f"{name} (seed {', '.join(seeds)})" for name, seeds in named.items()) + f": {note}"
        for note, named in said.items()
    ]
    return [*ties_note(rows), *notes]


def _notes_of(row: pd.Series, rates: int) -> Iterable[str]:
    if row["status"] != "ok":
        yield f"{row['status']} at learning rate {row['lr']:g}: {row['error']}"
        return
    if row["error"]:
        yield str(row["error"])
    if not pd.isna(row["agreement"]) and abs(row["agreement"]) > 4 * row["agreement_se"]:
        gap = number(row["agreement"], row["agreement_se"])
        yield f"the sampled excess differs from the mean KL by {gap}: has it seen its targets?"
    margin = row.get("reference.receptive_field.margin")
    if margin is not None and margin < -2 * row["reference.receptive_field.margin_se"]:
        gap = number(-margin, row["reference.receptive_field.margin_se"])
        yield f"better by {gap} than any predictor of its receptive field: does it see beyond it?"
    if row.get("lr_at_edge") is True and rates > 2:  # a choice between two is always an end
        yield "the chosen learning rate is an end of the grid"
    residual = row.get("match_residual")
    if residual is not None and abs(residual) > WORST_MATCH:
        yield f"matched in {row['matched']}, but {residual:+.0%} off: no dial of this model reaches the first's value"
    if row.get("still_improving") is True:
        yield "still improving at its end; more steps would lower its excess"


def _print_search(rows: pd.DataFrame) -> None:
    """Every trial of the search for a learning rate: validation, which chose, beside the test."""
    lines = []
    for _, part in rows.groupby("architecture", sort=False):
        first = part[part["model_seed"] == part["model_seed"].min()].sort_values("lr")
        for _, row in first.iterrows() if first["lr"].nunique() > 1 else ():
            name, seed, lr, *scores = _line(row)
            validation = number(row.get("validation_excess"), digits=places(row.get("excess_se")))
            lines.append([name, seed, lr, "chosen" if row["chosen"] else "", validation, *scores[:3]])
    if lines:
        columns = (*COLUMNS[:3], "", "validation", *COLUMNS[3:6])
        show_table(table(columns, lines, right=(*COLUMNS[1:3], *columns[4:])), "learning rates tried")


def _print_seeds(rows: pd.DataFrame) -> None:
    """Mean and spread over seeds by architecture, best first, where there is more than one seed."""
    ok = rows[rows["status"] == "ok"]
    counts = ok.groupby("architecture")["model_seed"].nunique()
    if ok.empty or counts.max() < 2:
        return
    excess = ok.groupby("architecture")["excess"].agg(["mean", "std", "count"]).sort_values("mean")
    lines = []
    for name, part in excess.iterrows():
        error = float(part["std"] / part["count"] ** 0.5)
        values = (number(value, digits=places(error)) for value in (part["mean"], part["std"], error))
        lines.append([name, str(int(part["count"])), *values])
    columns = ("architecture", "seeds", "mean over seeds", "spread (s.d.)", "s.e. of the mean")
    few = "" if counts.min() >= SEEDS_TO_RANK else f"; a ranking rests on {SEEDS_TO_RANK} seeds or more"
    show_table(table(columns, lines, right=columns[1:]), f"nats over bayes, over seeds{few}")
