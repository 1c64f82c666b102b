"""The catalogue's table: what it counts is the models', what it times is positive, and it is written whole."""

from __future__ import annotations

import json

import pytest
import torch

from architectures import build, state_bytes
from probes.bench import architectures as bench
from probes.catalogue import load_catalogue


def test_table_of_two(tmp_path, capsys):
    rows = bench.run(tmp_path, only="griffin", length=12, batch=2, rounds=1, vocab=7)
    assert [row["model"] for row in rows] == ["attention", "griffin"]
    written = json.loads((tmp_path / "architectures.json").read_text())
    assert written["rows"] == rows
    assert rows[0]["steps_of_attention"] == 1.0
    assert rows[1]["steps_of_attention"] == pytest.approx(rows[1]["step_seconds"] / rows[0]["step_seconds"])
    model = build(load_catalogue().make_spec("griffin", vocab_size=7))
    assert rows[1]["parameters"] == sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        assert rows[1]["state_bytes_1024"] == state_bytes(model.init_state(1, 1024))
    assert "griffin" in capsys.readouterr().out
