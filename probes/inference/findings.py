"""What a record says, as Markdown made from its rows: how far from the bounds, the gate's memory, several sequences.

Each function gives an empty text where the record has nothing to say. Ranges are of contexts from 8K on, the paper's.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from probes.inference.published import CONTEXTS, THROUGHPUT
from probes.inference.report import Row, label, short

FAMILIES = {
    "Transformer": ("Transformer",),
    "Mamba2, Gated DeltaNet": ("Mamba2", "Gated DeltaNet"),
    "their serial and fused hybrids": ("Mamba2 Serial Hybrid", "Gated DeltaNet Serial Hybrid", "Mamba2 Fused Hybrid"),
    "AMOR, native gate": ("Amor-Mamba2", "Amor-Gated DeltaNet"),
    "AMOR, distilled router": ("Amor-Mamba2 + distilled router", "Amor-Gated DeltaNet + distilled router"),
    "Oryx, attention": ("Oryx-TM attention", "Oryx-TG attention"),
    "Oryx, linear": ("Oryx-TM linear", "Oryx-TG linear"),
}
OVER = {"decode_over_bound": "decoding", "prefill_over_bound": "prefill"}
FORMER_LIMIT = 0.1
"""The most that a token of bf16 fell short by where its record has no `rounding` to judge it by."""


def replayed(row: Row) -> bool:
    """Whether the row's prefill is of the code that replays graphs; rows before it do not say so."""
    return "replayed_layers" in row


def _single(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["batch"] == 1 and row["context"] >= CONTEXTS[0] and row["status"] == "ok"]


def _said(sentences: Sequence[str]) -> str:
    return textwrap.fill(" ".join(sentences), 120, break_on_hyphens=False) + "\n" if sentences else ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _range(values: Sequence[float], digits: int = 1) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def distances(rows: Sequence[Row]) -> str:
    """Times its bound that decoding and prefill take, least and most over models, contexts and gates of a family.

    A star: some of these prefills are of the code before graphs.
    """
    part = _single(rows)
    scales = list(dict.fromkeys(row["scale"] for row in part))
    lines = []
    for family, models in FAMILIES.items():
        cells = []
        for over in OVER:
            for scale in scales:
                own = [row for row in part if row["scale"] == scale and row["model"] in models]
                values = [row[over] for row in own if row.get(over) is not None]
                star = "*" if over == "prefill_over_bound" and not all(map(replayed, own)) else ""
                cells.append(_range(values) + star if values else "")
        if any(cells):
            lines.append([family, *cells])
    head = ["times the bound", *(f"{name} {scale}" for name in OVER.values() for scale in scales)]
    return _table(head, lines) if lines else ""


def gate_memory(rows: Sequence[Row]) -> str:
    """The largest ratio of peak prefill memory, native gate over router, by backbone and scale.

    Pairs whose rows are of different commits are left out: what counts as held has changed between them.
    """
    part = [row for row in _single(rows) if row.get("prefill_gb")]
    at = {(row["scale"], row["model"], row["gate"], row["context"]): row for row in part}
    scales = list(dict.fromkeys(row["scale"] for row in part))
    lines = []
    for model in FAMILIES["AMOR, native gate"]:
        cells = []
        for scale in scales:
            pairs = [
                (row, at.get((scale, f"{model} + distilled router", row["gate"], row["context"])))
                for row in part
                if (row["scale"], row["model"]) == (scale, model)
            ]
            ratio, context = max(
                (
                    (one["prefill_gb"] / other["prefill_gb"], one["context"])
                    for one, other in pairs
                    if other is not None and one.get("commit") == other.get("commit")
                ),
                default=(None, 0),
            )
            cells.append("" if ratio is None else f"{ratio:.3f} at {short(context)}")
        if any(cells):
            lines.append([model, *cells])
    return _table(["native gate / router, GB", *scales], lines) if lines else ""


def earlier(rows: Sequence[Row]) -> str:
    """Which prefills are of the code before graphs, at each scale that has any."""
    said = []
    for scale in dict.fromkeys(row["scale"] for row in rows):
        part = [row for row in rows if row["scale"] == scale and row["batch"] == 1 and row.get("prefill_s")]
        new = [row for row in part if replayed(row)]
        if len(new) == len(part):
            continue
        which = []
        for name in dict.fromkeys(map(label, new)):
            mine = [row for row in part if label(row) == name]
            contexts = ", ".join(short(row["context"]) for row in mine if replayed(row))
            which.append(name if all(map(replayed, mine)) else f"{name} at {contexts}")
        but = f"; of the code with them: {', '.join(which)}" if which else ""
        count = f"{len(part) - len(new)} of {len(part)} prefills at {scale}, one sequence"
        said.append(f"{count}, are of the code without graphs{but}.")
    return _said(said)


def spread(rows: Sequence[Row]) -> str:
    """How far the runs behind a number lie apart, largest over smallest."""
    said = []
    for name, column in (("prefills", "prefill_runs_s"), ("decodings", "decode_runs_ms")):
        runs = [row[column] for row in rows if len(row.get(column) or ()) > 1]
        if runs:
            apart = sorted(max(times) / min(times) for times in runs)
            half = apart[len(apart) // 2]
            said.append(
                f"Repeated {name} differ by a factor of {half:.3f} in the middle row, {apart[-1]:.2f} at worst."
            )
    return _said(said)


def firing(rows: Sequence[Row]) -> str:
    """Where gates fire that are left to themselves."""
    own = [row for row in rows if row["gate"] == "own" and row.get("decode_rate") is not None]
    if not own:
        return ""
    prompt, after = (_range([100 * row[name] for row in own], 0) for name in ("prefill_rate", "decode_rate"))
    return _said([f"Gates left to themselves fire at {prompt}% of a prompt and {after}% of what follows."])


def decoding(rows: Sequence[Row]) -> str:
    """How near to its bytes AMOR's Mamba-2 decodes at 1.5B, the range over contexts and gates."""
    said = []
    for name, model in (("native gate", "Amor-Mamba2"), ("distilled router", "Amor-Mamba2 + distilled router")):
        part = [row for row in _single(rows) if (row["scale"], row["model"]) == ("1.5B", model)]
        values = [row["decode_over_bound"] for row in part if row.get("decode_over_bound")]
        if values:
            said.append(f"{_range(values, 2)} times with the {name}")
    return _said([f"Amor-Mamba2's decoding at 1.5B takes its bytes bound {', '.join(said)}."] if said else [])


def tokens(agreement: Sequence[Mapping[str, Any]]) -> str:
    """How greedy tokens compared with the full forward pass."""
    said = []
    exact = [one for one in agreement if one["dtype"] == "float32"]
    if exact:
        equal = sum(one["equal"] == one["tokens"] for one in exact)
        said.append(f"In float32 {equal} of {len(exact)} models have all {exact[0]['tokens']} tokens equal.")
    half = [one for one in agreement if one["dtype"] != "float32"]
    if half:
        equals = _range([one["equal"] for one in half], 0)
        said.append(
            f"In bf16 {equals} of {half[0]['tokens']} are; no logit falls short by more than {_short(half):.3f}."
        )
    judged = [one for one in half if one.get("rounding")]
    if judged:
        worst = max(one["shortfall"] / one["rounding"] for one in judged)
        said.append(f"In {len(judged)} models that is at most {worst:.2f} times what rounding does to the full pass.")
    rest = [one for one in half if one.get("rounding") is None]
    if rest:
        said.append(
            f"The rounding of {len(rest)} was not recorded ({', '.join(one['model'] for one in rest)}): at most "
            f"{_short(rest):.3f}, where {FORMER_LIMIT} was let through."
        )
    return _said(said)


def _short(agreement: Sequence[Mapping[str, Any]]) -> float:
    return max(one["shortfall"] for one in agreement)


def several(rows: Sequence[Row]) -> str:
    """What further sequences cost a step: ms each beside one sequence at the same context, and times the bound."""
    part = [row for row in rows if row.get("decode_ms") and row["gate"] != "own"]
    single = {(row["scale"], row["model"], row["context"]): row for row in part if row["batch"] == 1}
    lines = []
    for row in (row for row in part if row["batch"] > 1):
        alone = single.get((row["scale"], row["model"], row["context"]))
        if alone is not None:
            each = (row["decode_ms"] - alone["decode_ms"]) / (row["batch"] - 1)
            bound = (row["decode_bound_ms"] - alone["decode_bound_ms"]) / (row["batch"] - 1)
            over = [f"{one['decode_over_bound']:.1f}x" for one in (alone, row)]
            name = f"{row['model']} {row['scale']} {short(row['context'])}"
            lines.append([name, str(row["batch"]), *over, f"{each:.2f}", f"{bound:.3f}"])
    head = ["decoding", "batch", "one", "all", "ms for each further sequence", "its bytes, ms"]
    return _table(head, lines) if lines else ""


def throughput(rows: Sequence[Row], scale: str = "1.5B", context: int = 3072) -> str:
    """Tokens a second of one sequence after `context` tokens, beside the paper's table 10."""
    lines = [
        [row["model"], f"{1e3 / row['decode_ms']:.0f}", str(THROUGHPUT[row["model"]])]
        for row in rows
        if (row["scale"], row["context"], row["batch"]) == (scale, context, 1)
        and row["gate"] != "own"
        and row.get("decode_ms")
        and row["model"] in THROUGHPUT
    ]
    return _table(["model", "here", "paper"], lines) if lines else ""


def parts(record: Mapping[str, Any]) -> list[str]:
    """All of a record's texts, those that say something."""
    rows = record["rows"]
    told = (distances, earlier, decoding, gate_memory, spread, firing, several, throughput)
    return [text for text in (*(tell(rows) for tell in told), tokens(record["agreement"])) if text]
