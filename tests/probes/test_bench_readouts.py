from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from probes.bench import readouts
from probes.catalogue import CatalogueError


def test_the_benchmark_measures_and_records(tmp_path, capsys):
    found = readouts.run(tmp_path, task="two_timescale_small", windows=[1, 8], positions=400, draws=3, sequences=16)
    assert found == json.loads((tmp_path / "bench_readouts.json").read_text())
    assert all(narrow < wide for narrow, wide in found["explained"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if " window " in line] == [["window", "1"], ["window", "8"]] + [
        ["window", "8"]
    ]


def test_the_standard_error_is_the_spread_over_draws(tmp_path):
    """Of a feature that is the same in every draw; what the fit adds is not in the error, and is small."""
    found = readouts.run(tmp_path, task="two_timescale_small", windows=[2], positions=1000, draws=24, sequences=64)
    explained = [one for (one,) in found["explained"]]
    mean = sum(explained) / len(explained)
    spread = (sum((one - mean) ** 2 for one in explained) / (len(explained) - 1)) ** 0.5
    error = sum(one for (one,) in found["explained_se"]) / len(explained)
    assert 0.6 * spread < error < 1.6 * spread


def test_another_kind_of_task_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match="kind two_timescale; nearest is"):
        readouts.run(tmp_path, task="copy")


def test_the_document_says_what_was_recorded():
    docs = Path(__file__).parents[2] / "docs"
    record = json.loads((docs / "recorded/readouts_cpu.json").read_text())
    assert record["dials"] == readouts.DIALS
    explained = np.array(record["explained"])
    errors = np.array(record["explained_se"]).mean(0)
    text = (docs / "tasks.md").read_text()
    for i, width in enumerate(record["dials"]["windows"]):
        one = explained[:, i]
        row = f"| window {width} | {one.mean():.3f} | {one.std(ddof=1):.3f} | {one.min():.3f}, {one.max():.3f} |"
        assert f"{row} {errors[i]:.3f} |" in text
    less = explained[:, 2] - explained[:, 1]
    assert (
        f"same sequences | {less.mean():.4f} | {less.std(ddof=1):.4f} | {less.min():.4f}, {less.max():.4f} | |" in text
    )
