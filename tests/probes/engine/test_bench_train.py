"""The benchmarks run at a tiny shape on a CPU and writes what it says."""

import json
import math

import pytest

from architectures import SpecError
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


def test_a_named_kernel_is_the_one_timed(tmp_path):
    dials = {"device": "cpu", "precision": "float32", "shapes": ["tiny"], "architectures": ["gdn"], "packs": [1]}
    train.run(tmp_path, **dials, kernels={"short_conv_silu": "plain"}, compiled=False, eager=False, steps=2)
    report = json.loads((tmp_path / "train.json").read_text())
    (found,) = report["measurements"]
    assert found["graph_kernels_used"] == {"gated_delta": "chunked", "short_conv_silu": "plain"}
    assert report["environment"]["kernels"] == '{"short_conv_silu": "plain"}'
    with pytest.raises(SpecError, match="unknown 'tritton'; nearest: 'triton'"):
        train.run(tmp_path, **dials, kernels={"short_conv_silu": "tritton"})


def test_the_canary_benchmark_judges_every_kind_of_layer(tmp_path, capsys):
    dials = {"device": "cpu", "precisions": ["bf16"], "lengths": [5], "widths": [16], "batch": 2}
    canary.run(tmp_path, **dials)
    verdicts = json.loads((tmp_path / "canary.json").read_text())["verdicts"]
    judged = {verdict["operation"] for verdict in verdicts if verdict["accepted"]}
    assert judged == {"attention", *OPERATIONS}
    assert "accepted" in capsys.readouterr().out
    canary.run(tmp_path, **dials, architectures=["gdn"], kernels={"gated_delta": "plain"})
    verdicts = json.loads((tmp_path / "canary.json").read_text())["verdicts"]
    assert [verdict["operation"] for verdict in verdicts] == ["short_conv_silu"]
