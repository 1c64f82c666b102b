from __future__ import annotations

import json

import numpy as np
import pytest

from probes.bench import data


def test_the_peer_draws_the_task():
    drawn = data.loop(50, 40, 4, 64)
    tokens, targets = drawn[:, 0], drawn[:, 1]
    rows, places = np.nonzero(targets != -100)
    assert len(rows) == 50 * 4
    for row, place in zip(rows, places):
        pair = np.flatnonzero(tokens[row, 0:8:2] == tokens[row, place])
        assert len(pair) == 1
        assert targets[row, place] == tokens[row, 2 * pair[0] + 1]


def test_the_benchmark_measures_and_records(tmp_path, capsys):
    dials = {"sequences": 400, "batch_size": 100, "loop_sequences": 100, "threads": 1, "all_tasks": False}
    found = data.run(tmp_path, **dials)
    assert found == json.loads((tmp_path / "bench_data.json").read_text())
    assert found["cpu_speedup"] > 1
    assert "times as fast" in capsys.readouterr().out
    assert set(dials) <= set(data.DIALS)


@pytest.mark.slow
def test_a_sequence_takes_at_most_nine_microseconds_of_a_processor(tmp_path):
    """30 times faster than zoology's loop, of about 270 microseconds a sequence, on each of two cores."""
    found = data.run(tmp_path, sequences=20_000, threads=1, all_tasks=False)
    assert found["mqar_cpu_us"] < 2 * 9
