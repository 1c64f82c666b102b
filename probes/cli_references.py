"""What `run`, `sweep` and `report` say of references: which are nearest to a model, and what each scores.

A reference r is at the distance KL(r || model) from a model. Those at the smallest distance, and all not separated from
it, are tied: a model on two tied references says nothing of which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from probes.cli_common import number, show_table, table

TIE_ERRORS = 2.0
"""Standard errors of the paired difference within which two distances are tied."""
TIE_SHARE = 0.01
"""Share of the smallest distance within which another is tied, however well they are told apart."""


def tied(row: pd.Series) -> list[str]:
    """The references that are not separated from the nearest by their distance to the model: Bayes first if it is one
    of them, else the nearest. In a record without paired errors that of the excess stands in for them."""
    nearest = str(row["behaves_like"])
    smallest = row.get(f"reference.{nearest}.to_model")
    if smallest is None or pd.isna(smallest):
        return [nearest] if nearest else []
    found = [nearest]
    for name in _names(row.index, "to_model"):
        errors = (row.get(f"reference.{name}.farther_se"), row.get("excess_se"))
        error = next((value for value in errors if value is not None and not pd.isna(value)), 0.0)
        farther = row[f"reference.{name}.to_model"] - smallest
        if name != nearest and farther <= max(TIE_ERRORS * error, TIE_SHARE * smallest):
            found.append(name)
    first = "bayes" if "bayes" in found else nearest
    return sorted(found, key=lambda name: (name != first, name))


def label(names: list[str]) -> str:
    """The first of tied references, and how many more there are."""
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else "".join(names) or "–"


def ties_note(rows: pd.DataFrame) -> Iterator[str]:
    """What each `NAME +N` of a table stands for, and how ties were judged; nothing where there is none."""
    ok = rows[rows["status"] == "ok"]
    groups = dict.fromkeys(tuple(tied(row)) for _, row in ok.iterrows())
    found = [list(names) for names in groups if len(names) > 1]
    if not found:
        return
    paired = all(f"reference.{n}.farther_se" in ok and ok[f"reference.{n}.farther_se"].notna().all() for n in found[0])
    error = "paired s.e." if paired else "s.e. of the excess (no paired one is recorded)"
    yield f"+N: tied with N others, whose KL to the model is within {TIE_ERRORS:g} {error} or {TIE_SHARE:.0%} of it:"
    for names in found:
        yield f"{label(names)}: {', '.join(names[1:])}"


def print_references(rows: pd.DataFrame) -> None:
    """The references, best first: means over the test sets of the rows, with the standard error over sequences. The
    best predictor of a receptive field is shown for each size, with the architectures that have it."""
    ok = rows[rows["status"] == "ok"]
    if ok.empty:
        return
    key = "test_digest" if "test_digest" in ok else "model_seed"
    lines: list[tuple[float, list[str]]] = []
    sets = ok.drop_duplicates(key)
    for name in _names(ok.columns, "excess"):
        if name != "receptive_field":
            lines += _reference(name, name, sets)
    if "reference.receptive_field.excess" in ok:
        with_field = ok[ok["reference.receptive_field.excess"].notna()]
        for size, part in with_field.groupby("receptive_field"):
            owners = ", ".join(part["architecture"].unique())
            shown = f"receptive_field, {size:.0f} tokens ({owners})"
            lines += _reference("receptive_field", shown, part.drop_duplicates(key))
    lines.sort(key=lambda line: line[0])
    columns = ("reference", "nats over bayes", "accuracy")
    where = f"mean over {len(sets)} test sets" if len(sets) > 1 else "one test set"
    title = f"exact references, {where} ± s.e. over sequences"
    show_table(table(columns, [line for _, line in lines], right=columns[1:]), title)


def _names(columns: pd.Index, field: str) -> list[str]:
    ending = f".{field}"
    named = [str(column) for column in columns]
    return [c[len("reference.") : -len(ending)] for c in named if c.startswith("reference.") and c.endswith(ending)]


def _reference(name: str, shown: str, sets: pd.DataFrame) -> Iterator[tuple[float, list[str]]]:
    """One line, and what it is sorted by; none where the reference is not known. Test sets are independent, so the
    squares of their standard errors add."""
    sets = sets[sets[f"reference.{name}.excess"].notna()]
    if sets.empty:
        return
    mean = float(sets[f"reference.{name}.excess"].mean())
    error = float((sets[f"reference.{name}.excess_se"] ** 2).sum() ** 0.5 / len(sets))
    shown = f"{shown} (bound)" if sets[f"reference.{name}.is_bound"].all() else shown
    excess = number(mean, error) if name != "bayes" else "0"
    yield mean, [shown, excess, number(sets[f"reference.{name}.accuracy"].mean())]
