"""What `run`, `sweep` and `report` say of linear probes: how much of each exact belief every layer tells."""

from __future__ import annotations

import pandas as pd

from probes.cli_common import number, places, show_table, table


def print_readouts(rows: pd.DataFrame) -> None:
    """A table a belief, one line a trial and layer; nothing where none was probed."""
    probed: dict[str, list[int]] = {}
    for column in map(str, rows.columns):
        if column.startswith("readout.") and column.endswith(".explained"):
            _, belief, layer, _ = column.split(".")
            probed.setdefault(belief, []).append(int(layer.removeprefix("layer_")))
    for belief, layers in probed.items():
        lines = [line for _, row in rows.iterrows() for line in _lines(row, belief, sorted(layers))]
        columns = ("architecture", "seed", "layer", "nats from the posterior", "explained")
        if lines:
            show_table(table(columns, lines, right=("seed", *columns[3:])), f"linear probes for the {belief}")


def _lines(row: pd.Series, belief: str, layers: list[int]) -> list[list[str]]:
    prefix = f"readout.{belief}.layer_"
    own = [layer for layer in layers if not pd.isna(row.get(f"{prefix}{layer}.explained"))]
    lines = []
    for layer in own:
        name = "embedding" if layer == own[0] else "final norm" if layer == own[-1] else str(layer)
        error = row.get(f"{prefix}{layer}.explained_se")
        explained = number(row[f"{prefix}{layer}.explained"], error)
        nats = number(row[f"{prefix}{layer}.kl"], digits=places(error))
        lines.append([str(row["architecture"]), str(row["model_seed"]), name, nats, explained])
    return lines
