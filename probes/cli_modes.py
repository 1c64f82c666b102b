"""What `run`, `sweep` and `report` say of Oryx's modes: each variant's fraction of attention, excess and accuracy."""

from __future__ import annotations

import pandas as pd

from probes.cli_common import number, show_table, table


def print_modes(rows: pd.DataFrame) -> None:
    """One line a trial and variant, the least attention first; nothing where no trial has modes."""
    ending = ".metric.attention_fraction"
    names = [
        str(column).removeprefix("variant.").removesuffix(ending)
        for column in rows.columns
        if str(column).startswith("variant.") and str(column).endswith(ending)
    ]
    names = [name for name in names if rows[f"variant.{name}{ending}"].notna().any()]
    if not names:
        return
    lines = []
    for _, row in rows.iterrows():
        if all(pd.isna(row[f"variant.{name}{ending}"]) for name in names):
            continue
        for name in sorted(names, key=lambda name: (row[f"variant.{name}{ending}"], name)):
            lines.append(
                [
                    str(row["architecture"]),
                    str(row["model_seed"]),
                    name,
                    f"{100 * row[f'variant.{name}{ending}']:.0f}",
                    number(row[f"variant.{name}.excess"], row[f"variant.{name}.excess_se"]),
                    number(row[f"variant.{name}.accuracy"]),
                ]
            )
    columns = ("architecture", "seed", "mode", "% attention", "nats over bayes", "accuracy")
    show_table(table(columns, lines, right=("seed", *columns[3:])), "by mode, the same weights on the same sequences")
