"""The measurements in the layout of AMOR's tables 11 to 13, and where AMOR overtakes the hybrids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TITLES = {
    "prefill_s": "Prefill latency (s)",
    "prefill_gb": "Peak prefill memory (GB)",
    "decode_ms": "Decode latency (ms/token)",
}
DIGITS = {"prefill_s": 3, "prefill_gb": 2, "decode_ms": 3}

Row = Mapping[str, Any]


def label(row: Row) -> str:
    """A line's name: the model, and its gates where they decide by themselves."""
    return row["model"] + (", own gate" if row["gate"] == "own" else "")


def short(context: int) -> str:
    """`8K` for 8192."""
    return f"{context // 1024}K" if context % 1024 == 0 else str(context)


def cell(row: Row | None, quantity: str) -> str:
    """The number, times its bound where it has one, and the paper's in brackets; `OOM` where memory ran out."""
    if row is None:
        return ""
    if quantity not in row or row[quantity] is None:
        return "OOM" if row["status"] != "ok" else "–"
    over = row.get({"prefill_s": "prefill_over_bound", "decode_ms": "decode_over_bound"}.get(quantity, ""))
    paper = row["published"].get(quantity)
    parts = [f"{row[quantity]:.{DIGITS[quantity]}f}"]
    if over is not None:
        parts.append(f"{over:.1f}x")
    if paper is not None:
        parts.append(f"({paper:g})")
    return " ".join(parts)


def tables(rows: Sequence[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and lines of a table for each scale, batch and quantity."""
    made = []
    for scale, batch in dict.fromkeys((row["scale"], row["batch"]) for row in rows):
        part = [row for row in rows if (row["scale"], row["batch"]) == (scale, batch)]
        contexts = sorted({row["context"] for row in part})
        at = {(label(row), row["context"]): row for row in part}
        for quantity, title in TITLES.items():
            lines = [
                [name, *(cell(at.get((name, context)), quantity) for context in contexts)]
                for name in dict.fromkeys(label(row) for row in part)
            ]
            made.append((f"{title}, {scale}, batch {batch}", ["model", *map(short, contexts)], lines))
    return made


def markdown(rows: Sequence[Row]) -> str:
    """The tables of each scale for one sequence, the scales after the first folded away; then several sequences.

    A cell of these has prefill, peak memory, a step, and in brackets tokens a second.
    """
    single = [row for row in rows if row["batch"] == 1]
    parts = []
    for number, scale in enumerate(dict.fromkeys(row["scale"] for row in single)):
        blocks = [_markdown(*made) for made in tables([row for row in single if row["scale"] == scale])]
        if number:
            blocks = [f"<details>\n<summary>The same at {scale}</summary>", *blocks, "</details>"]
        parts += blocks
    several = [row for row in rows if row["batch"] > 1]
    for scale in dict.fromkeys(row["scale"] for row in several):
        parts.append(_markdown(*batches([row for row in several if row["scale"] == scale])))
    return "\n\n".join(parts) + "\n"


def batches(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]]]:
    """Title, head and lines of the table of several sequences at one scale."""
    contexts = sorted({row["context"] for row in rows})
    at = {(label(row), row["batch"], row["context"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(label(row) for row in rows):
        for batch in sorted({row["batch"] for row in rows if label(row) == name}):
            cells = [_together(at.get((name, batch, context))) for context in contexts]
            lines.append([name, str(batch), *cells])
    title = f"Several sequences, {rows[0]['scale']}: prefill (s) / peak memory (GB) / decoding (ms a step)"
    return title, ["model", "batch", *map(short, contexts)], lines


def _together(row: Row | None) -> str:
    if row is None:
        return ""
    speed = f" ({1e3 * row['batch'] / row['decode_ms']:.0f}/s)" if row.get("decode_ms") else ""
    return " / ".join(cell(row, quantity) for quantity in TITLES) + speed


def _markdown(title: str, head: list[str], lines: list[list[str]]) -> str:
    table = [f"**{title}**", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(table + ["| " + " | ".join(line) + " |" for line in lines])


def crossovers(rows: Sequence[Row], quantity: str = "decode_ms") -> list[dict[str, Any]]:
    """For each scale, batch and AMOR model: between which contexts it overtakes each hybrid of its backbone.

    `last_slower` and `first_faster` are contexts; None: faster, or slower, at all of them.
    """
    found = []
    at = {(row["scale"], row["batch"], label(row), row["context"]): row.get(quantity) for row in rows}
    for scale, batch, name in dict.fromkeys((row["scale"], row["batch"], label(row)) for row in rows):
        if not name.startswith("Amor-"):
            continue
        backbone = name.removeprefix("Amor-").split(" + ")[0].split(",")[0]
        for rival in (f"{backbone} Serial Hybrid", f"{backbone} Fused Hybrid"):
            pairs = [
                (context, value, at.get((scale, batch, rival, context)))
                for (s, b, n, context), value in at.items()
                if (s, b, n) == (scale, batch, name)
            ]
            known = sorted((context, value < other) for context, value, other in pairs if value and other)
            if not known:
                continue
            slower = [context for context, faster in known if not faster]
            after = [context for context, faster in known if faster and context > max(slower, default=0)]
            found.append(
                {
                    "scale": scale,
                    "batch": batch,
                    "model": name,
                    "rival": rival,
                    "last_slower": max(slower, default=None),
                    "first_faster": min(after, default=None),
                }
            )
    return found


def crossing(rows: Sequence[Row]) -> str:
    """The crossovers of one sequence's decoding at the rates of the dial as a Markdown table, a column a scale.

    Empty where there is no pair to compare.
    """
    found = [one for one in crossovers(rows) if one["batch"] == 1 and not one["model"].endswith(", own gate")]
    if not found:
        return ""
    scales = list(dict.fromkeys(one["scale"] for one in found))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for one in found:
        lines.setdefault((one["model"], one["rival"]), {})[one["scale"]] = _crossed(one)
    head = ["AMOR", "against", *scales]
    table = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for names, said in lines.items():
        table.append("| " + " | ".join([*names, *(said.get(scale, "") for scale in scales)]) + " |")
    return "\n".join(table) + "\n"


def _crossed(one: Mapping[str, Any]) -> str:
    slower, faster = one["last_slower"], one["first_faster"]
    if slower is None:
        return "faster at all contexts measured"
    if faster is None:
        return "slower at all contexts measured"
    return f"between {short(slower)} and {short(faster)}"
