"""The benchmarks run at a tiny shape on a CPU and writes what it says."""

import json
import math

from architectures.kernels import OPERATIONS
from probes.bench import canary, train


def test_the_benchmark_writes_its_numbers_and_a_figure(tmp_path, capsys):
    dials = {"device": "cpu", "precision": "float32", "shapes": ["tiny"], "architectures": ["attention"]}
    train.run(tmp_path, **dials, packs=[1, 2], compiled=False, steps=2)
    report = json.loads((tmp_path / "train.json").read_text())
    (found,) = report["measurements"]
    assert report["environment"]["device"] == "cpu"
    for key in ("eager_ms", "graph_1_ms", "graph_2_ms", "draw_ms"):
        assert found[key] > 0
    assert math.isfinite(found["graph_loss"])
    assert all(verdict["accepted"] for verdict in found["canary"])
    assert (tmp_path / "train.png").stat().st_size > 1000
    assert "graph_2_ms" in capsys.readouterr().out


def test_the_canary_benchmark_judges_every_kind_of_layer(tmp_path, capsys):
    dials = {"device": "cpu", "precisions": ["bf16"], "lengths": [5], "widths": [16], "batch": 2}
    canary.run(tmp_path, **dials)
    verdicts = json.loads((tmp_path / "canary.json").read_text())["verdicts"]
    judged = {verdict["operation"] for verdict in verdicts if verdict["accepted"]}
    assert judged == {"attention", *OPERATIONS}
    assert "accepted" in capsys.readouterr().out
