"""The recorded run of inference: it has what was to be shown, and the document says what it says."""

from __future__ import annotations

import json
from pathlib import Path

from probes.inference import findings, report
from probes.inference.models import cases

DOCS = Path(__file__).resolve().parents[3] / "docs"


def recorded() -> dict:
    return json.loads((DOCS / "recorded" / "inference_h200.json").read_text())


def test_the_document_shows_the_record() -> None:
    record, text = recorded(), (DOCS / "inference.md").read_text()
    assert report.markdown(record["rows"]) in text
    assert report.crossing(record["rows"]) in text
    for part in findings.parts(record):
        assert part in text
    assert record["crossovers"] == report.crossovers(record["rows"])


def test_the_documents_sentences_have_the_records_numbers() -> None:
    rows, text = recorded()["rows"], " ".join((DOCS / "inference.md").read_text().split())
    at = {(row["scale"], row["model"], row["gate"], row["batch"], row["context"]): row for row in rows}

    def of(scale: str, model: str, context: int, gate: str | None = None, batch: int = 1) -> dict:
        return at[scale, model, gate, batch, context]

    native, routed = (of("180M", f"Amor-Mamba2{end}", 8192, "dial") for end in ("", " + distilled router"))
    held = native["prefill_gb"], routed["prefill_gb"]
    assert f"Amor-Mamba2 at 180M and 8K, {held[0]:.2f} GB against {held[1]:.2f}:" in text
    logits = (2**24 // 128256) * 128256 * 2 / 1e9
    assert f"{logits:.3f} GB less, by count {(held[0] - logits) / held[1]:.2f} times the router's" in text
    plain, times = of("180M", "Mamba2", 8192), (native["prefill_s"], routed["prefill_s"])
    assert (
        f"with the router takes {1e3 * times[1]:.0f} ms where Mamba2 alone takes {1e3 * plain['prefill_s']:.0f},"
        in text
    )
    pieces = 2 * 3 * -(-4096 // (2**24 // 128256))  # chunks, blocks, pieces of a chunk
    each = 1e3 * (times[0] - times[1]) / pieces
    said = f"{1e3 * times[0]:.0f}: each of {pieces} pieces of 130 positions costs {each:.2f} ms"
    assert f"with the native gate {said}" in text
    linear, attention = (of("1.5B", f"Oryx-TM {mode}", 131072)["prefill_gb"] for mode in ("linear", "attention"))
    assert f"takes {linear:.2f} GB in the one and {attention:.2f} GB in the other" in text
    layers = {"180M": 12, "440M": 24, "1.5B": 24}
    launching = [1e3 * of(s, "Oryx-TM linear", 8192)["prefill_s"] / (2 * n) for s, n in layers.items()]
    assert (
        "take Oryx-TM {:.1f} ms a layer and chunk at 130M, {:.1f} at 380M and {:.1f} at 1.4B".format(*launching) in text
    )
    slow, fast = (of("1.5B", "Mamba2", context)["prefill_s"] for context in (131072, 98304))
    assert f"{slow:.1f} s for 128K and {fast:.1f} s for 96K" in text
    before, after = (of("1.5B", "Amor-Gated DeltaNet + distilled router", 131072, gate) for gate in ("dial", "own"))
    assert not findings.replayed(before)
    assert findings.replayed(after)
    assert f"{before['prefill_s']:.2f} s and {before['prefill_gb']:.2f} GB at the dial's rate before" in text
    assert f"{after['prefill_s']:.2f} s and {after['prefill_gb']:.2f} GB at the gate's own" in text
    assert f"Mamba2 at 16 is {of('1.5B', 'Mamba2', 8192, batch=16)['decode_over_bound']:.1f} times its bound" in text


def test_the_record_has_what_was_to_be_shown() -> None:
    record = recorded()
    assert "/" not in "".join(str(run["dials"].get("resume")) for run in (record, *record["earlier"]))
    assert {(row["scale"], row["model"]) for row in record["rows"]} == {
        (case.group, case.label) for scale in ("180M", "440M", "1.5B") for case in cases(scale)
    }
    for row in record["rows"]:
        assert row["status"] == "ok"
        assert row["state_bytes"] == row["counted_bytes"]
        if (row["scale"], row["batch"]) == ("1.5B", 1) and row["model"].startswith("Amor-Mamba2"):
            assert row["context"] < 8192 or row["decode_over_bound"] < 2
    assert {found["model"] for found in record["agreement"]} == {case.label for case in cases("180M")}
    for found in record["agreement"]:
        assert found["agrees"]
        assert found["state_bytes"] == found["counted_bytes"]
        if found["dtype"] == "float32":
            assert found["equal"] == found["tokens"]
        else:
            limit = findings.FORMER_LIMIT if found["rounding"] is None else 2 * found["rounding"]
            assert found["shortfall"] <= limit


def test_findings_by_hand() -> None:
    def row(model: str, context: int = 8192, batch: int = 1, **values) -> dict:
        about = {"scale": "440M", "gate": "dial" if "Amor" in model else None, "status": "ok", "commit": "a"}
        return about | {"model": model, "context": context, "batch": batch, "prefill_s": 1.0} | values

    rows = [
        row("Mamba2", decode_over_bound=1.5, prefill_over_bound=3.0, decode_ms=2.0, decode_bound_ms=1.0),
        row("Mamba2", 16384, decode_over_bound=1.75, prefill_over_bound=4.0, replayed_layers=24),
        row("Mamba2", 3072, decode_over_bound=9.0),  # below the paper's contexts
        row("Mamba2", batch=5, decode_over_bound=3.0, decode_ms=6.0, decode_bound_ms=2.0),
        row("Amor-Mamba2", prefill_gb=2.1),
        row("Amor-Mamba2 + distilled router", prefill_gb=2.0),
        row("Amor-Mamba2", 16384, prefill_gb=9.0, commit="b"),  # not of its pair's code
        row("Amor-Mamba2 + distilled router", 16384, prefill_gb=2.0),
        row("Transformer", prefill_s=None),  # out of memory
    ]
    assert "| Mamba2, Gated DeltaNet | 1.5 to 1.8 | 3.0 to 4.0* |\n" in findings.distances(rows)
    assert "| Amor-Mamba2 | 1.050 at 8K |\n" in findings.gate_memory(rows)
    assert "| Mamba2 440M 8K | 5 | 1.5x | 3.0x | 1.00 | 0.250 |\n" in findings.several(rows)
    assert "6 of 7 prefills at 440M" in findings.earlier(rows)
    assert "Mamba2 at 16K." in findings.earlier(rows)
    found = {"model": "A", "dtype": "bfloat16", "tokens": 65, "equal": 60, "shortfall": 0.1}
    said = findings.tokens([found | {"rounding": 0.2}, found | {"model": "B", "shortfall": 0.05, "rounding": None}])
    assert "1 models that is at most 0.50 times" in said
    assert "not recorded (B): at most 0.050" in " ".join(said.split())
    assert findings.parts({"rows": [], "agreement": []}) == []
    assert report.crossing(rows[:1]) == ""
