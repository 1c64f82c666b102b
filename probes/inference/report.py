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
    """All tables as Markdown."""
    parts = []
    for title, head, lines in tables(rows):
        block = [f"**{title}**", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        block += ["| " + " | ".join(line) + " |" for line in lines]
        parts.append("\n".join(block))
    return "\n\n".join(parts) + "\n"


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
