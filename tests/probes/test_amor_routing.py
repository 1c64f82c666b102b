"""What the recall task of `amor-smoke` must show: attention goes to the queries, and carries the answers."""

from __future__ import annotations

import pytest

from probes.api import run

SETS = {
    "train": {"steps": 350, "batch_size": 32, "lr": 5e-3, "warmup": 20, "supervision": "all", "evaluations": 1},
    "evaluate": {"validation_sequences": 64, "test_sequences": 256},
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["amor_gdn_tiny", "amor_mamba2_tiny"])
def test_queries_fire_and_answer_and_fail_without_the_attention(tmp_path, architecture):
    row = run("copy_delayed", architecture, out=tmp_path, sets=SETS).row
    assert row["status"] == "ok", row["error"]
    assert 0.3 < row["metric.gate.rate"] < 0.55
    assert row["metric.gate.0.rate_scored"] > 0.9
    assert row["accuracy"] > 0.9
    assert row["variant.zeroed.accuracy"] < 0.3
    assert row["variant.zeroed.excess"] > row["excess"] + 1
    assert row["variant.random.excess"] > row["excess"] + 0.5


@pytest.mark.slow
def test_the_backbone_alone_cannot_hold_the_string(tmp_path):
    row = run("copy_delayed", "gdn_tiny", out=tmp_path, sets=SETS).row
    assert row["accuracy"] < 0.3
