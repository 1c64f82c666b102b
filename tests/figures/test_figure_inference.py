"""The figure of inference: its numbers are the record's, missing points are left out, and wrong dials are named."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from figures import inference

RECORD = Path(__file__).resolve().parents[2] / "docs" / "recorded" / "inference_h200.json"


def row(model: str, context: int, gate: str | None = None, **values: float) -> dict:
    return {"scale": "180M", "batch": 1, "model": model, "context": context, "gate": gate, "status": "ok", **values}


def write(path: Path, rows: list[dict], schema: str = "1") -> Path:
    path.write_text(json.dumps({"schema": schema, "rows": rows}))
    return path


def test_the_csv_has_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    rows = [
        row("Mamba2", 8192, decode_ms=2.0, decode_bound_ms=1.0, prefill_s=0.1, prefill_bound_s=0.05, prefill_gb=3.0),
        row("Amor-Mamba2", 8192, "dial", decode_ms=3.0, decode_bound_ms=1.5, decode_rate=0.22),
        row("Amor-Mamba2", 8192, "own", decode_ms=4.0, decode_bound_ms=1.5, decode_rate=0.5),
        {**row("Transformer", 8192, decode_bound_ms=9.0, prefill_bound_s=1.0), "status": "out of memory"},
    ]
    path = write(tmp_path / "inference.json", rows)
    paths = inference.draw(tmp_path / "out", results=path, scale="180M")
    assert [p.suffix for p in paths] == [".png", ".svg", ".csv"]
    table = pd.read_csv(paths[2]).set_index("model")
    assert table.decode_ms.to_dict()["Mamba2"] == 2.0
    assert table.loc["Amor-Mamba2", "decode_ms"] == 3.0
    assert pd.isna(table.loc["Transformer", "decode_ms"])
    own = pd.read_csv(inference.draw(tmp_path / "own", results=path, scale="180M", gate="own")[2]).set_index("model")
    assert own.loc["Amor-Mamba2", "decode_rate"] == 0.5


@pytest.mark.parametrize(
    ("dials", "word"), [({"scale": "1.5B"}, "180M"), ({"gate": "shut"}, "dial"), ({"batch": 4}, "nearest: 1")]
)
def test_wrong_dials_are_named(tmp_path: Path, dials: dict, word: str) -> None:
    path = write(tmp_path / "inference.json", [row("Mamba2", 8192, decode_ms=2.0)])
    with pytest.raises(ValueError, match=word):
        inference.draw(tmp_path / "out", **{"results": path, "scale": "180M", **dials})


def test_missing_and_foreign_results(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="bench inference"):
        inference.draw(tmp_path, results=tmp_path / "inference.json")
    with pytest.raises(ValueError, match="schema 0"):
        inference.draw(tmp_path, results=write(tmp_path / "inference.json", [row("Mamba2", 1)], schema="0"))


@pytest.mark.parametrize("scale", ["1.5B", "440M", "180M"])
def test_the_shipped_record_is_drawn(tmp_path: Path, scale: str) -> None:
    table = pd.read_csv(inference.draw(tmp_path, results=RECORD, scale=scale)[2])
    assert len(table) == 10 * (7 if scale == "1.5B" else 3) + 4 * 3  # the paper's models, Oryx
    assert table.decode_ms.notna().all()


@pytest.mark.parametrize(("contexts", "marker"), [([8192], "_"), ([8192, 16384], "")])
def test_a_single_context_shows_its_bound(contexts: list[int], marker: str) -> None:
    rows = [row("Mamba2", context, decode_ms=4.0, decode_bound_ms=1.0) for context in contexts]
    axis = Figure().subplots()
    inference._panel(axis, pd.DataFrame(rows), ["Mamba2"], "decode_ms", "decode_bound_ms")
    [bound] = [line for line in axis.get_lines() if line.get_linestyle() == ":" and len(line.get_xdata())]
    assert list(bound.get_ydata()) == [1.0] * len(contexts)
    assert bound.get_marker() == marker


def test_a_step_of_several_sequences_is_not_a_token(tmp_path: Path) -> None:
    path = write(tmp_path / "inference.json", [row("Mamba2", 8192, decode_ms=4.0) | {"batch": 4}])
    drawn = inference.draw(tmp_path / "out", results=path, scale="180M", batch=4)[1].read_text()
    assert "ms per step" in drawn
    assert "ms per token" not in drawn


def test_a_record_without_peak_memory_is_drawn(tmp_path: Path) -> None:
    known = [row("Mamba2", context, decode_ms=4.0, prefill_s=1.0) | {"prefill_gb": None} for context in (1024, 2048)]
    drawn = inference.draw(tmp_path, results=write(tmp_path / "inference.json", known), scale="180M")
    assert drawn[1].read_text().count("not measured") == 1
