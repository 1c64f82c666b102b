"""What `run`, `sweep` and `report` say of AMOR's gates, and `run --distil`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from probes.catalogue import load_catalogue, parse_sets
from probes.cli_common import console, number, places, show_table, table

if TYPE_CHECKING:
    from probes.trial import Result

PAPER = "firing rates in training at three scales, 10th to 90th percentile: 33 to 51% (AMOR, arXiv 2602.13215, D.1)"


def print_gates(rows: pd.DataFrame) -> None:
    """Firing rates by block, over all test positions and the scored ones, and the excess under each other trigger."""
    rows = rows[rows["metric.gate.rate"].notna()] if "metric.gate.rate" in rows else rows[:0]
    if rows.empty:
        return
    blocks = _parts(rows, "metric.gate.", ".rate")
    variants = [name for name in _parts(rows, "variant.", ".excess") if f"variant.{name}.metric.gate.rate" in rows]
    lines, scores = [], []
    for _, row in rows.iterrows():
        name = [str(row["architecture"]), str(row["model_seed"])]
        rates = [[_percent(row, f"metric.gate.{block}.{kind}") for block in blocks] for kind in ("rate", "rate_scored")]
        lines.append([*name, *(" ".join(part) for part in rates)])
        digits = places(row.get("excess_se"))
        own = [number(row["excess"], digits=digits), _percent(row, "metric.gate.rate")]
        cells = []
        for other in variants:
            excess = number(row[f"variant.{other}.excess"], digits=digits)
            cells.append(f"{excess} ({_percent(row, f'variant.{other}.metric.gate.rate')})")
        scores.append([*name, f"{own[0]} ({own[1]})", *cells])
    columns = ("architecture", "seed", "% firing, by block", "at scored positions")
    show_table(table(columns, lines, right=columns[1:]), "gates")
    console.print(PAPER, end="\n\n", soft_wrap=True)
    if variants:
        others = ("architecture", "seed", "own gate", *variants)
        title = "nats over bayes of the same weights under other triggers (% firing)"
        show_table(table(others, scores, right=others[1:]), title)


def _parts(rows: pd.DataFrame, prefix: str, ending: str) -> list[str]:
    """NAME of every column `prefix NAME ending` without a dot in NAME, in the table's order."""
    named = [str(column) for column in rows.columns]
    found = [name[len(prefix) : -len(ending)] for name in named if name.startswith(prefix) and name.endswith(ending)]
    return [name for name in found if name and "." not in name]


def _percent(row: pd.Series, column: str) -> str:
    value = row.get(column)
    return "–" if value is None or value != value else f"{100 * value:.0f}"


def refuse_to_distil(architecture: str, sets: list[str], config: Path | None) -> None:
    """Raises `SpecError`, before anything is trained, for a model without a native gate."""
    from probes.distil import require_native_gate

    dials = parse_sets(sets).get("arch")
    require_native_gate(load_catalogue(config).make_spec(architecture, dials, vocab_size=2))


def distil_and_print(result: Result, out: Path, device: str) -> None:
    """Fits routers to a finished AMOR trial and prints what they change. Raises `SpecError` for another model."""
    from probes.distil import distil

    folder, report = distil(result, out, device=device)
    lines = [
        [
            "entropy",
            number(report.excess),
            " ".join(f"{100 * rate:.0f}" for rate in report.firing_rate),
            "",
            f"{report.forward_flops:,.0f}",
        ],
        [
            "router",
            number(report.excess_routed),
            " ".join(f"{100 * rate:.0f}" for rate in report.firing_rate_routed),
            " ".join(f"{100 * share:.1f}" for share in report.agreement),
            f"{report.forward_flops_routed:,.0f}",
        ],
    ]
    columns = ("gate", "nats over bayes", "% firing, by block", "% agreement", "flops a token")
    show_table(table(columns, lines, right=columns[1:]), "distilled router")
    change = number(report.excess_change, report.excess_change_se, 5)
    console.print(f"change {change} nats; {report.parameters_added:,} parameters added", soft_wrap=True)
    console.print(str(folder), soft_wrap=True)
