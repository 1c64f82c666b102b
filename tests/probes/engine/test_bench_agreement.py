"""The benchmarks of agreement and of several devices at a tiny size on a CPU."""

import json

import pytest

from probes.bench import agreement, devices


def test_trials_of_a_pack_agree_with_the_same_alone(tmp_path, capsys):
    dials = {
        "device": "cpu",
        "precision": "float32",
        "other_precision": "bf16",
        "settings": {"regimes": 2, "vocab": 4, "length": 12, "burn_in": 2, "windows": [1]},
        "compiled": ["attention"],
        "arch": {"d_model": 16},
        "seeds": 3,
        "alone": 2,
        "train": {"steps": 12, "batch_size": 4, "warmup": 2, "evaluations": 2},
        "sequences": 16,
    }
    agreement.run(tmp_path, **dials)
    report = json.loads((tmp_path / "agreement.json").read_text())
    assert set(report["seconds"]) == {"pack", "alone", "compiled", "bf16"}
    for name in agreement.DIALS["architectures"]:
        row = report["summary"][name]
        assert row["pack"]["sd"] > 0
        assert row["pack"]["status"] == row["alone"]["status"] == row["bf16"]["status"] == ["ok"]
        assert (row["pack"]["engine"], row["alone"]["engine"]) == (["steps"], ["eager"])
        assert row["alone"]["in_sd"] == pytest.approx(0, abs=0.05)
        assert row["alone"]["first_losses"] < 1e-5
        assert [len(row[way]["excess"]) for way in ("pack", "alone")] == [3, 2]
        assert abs(row["pack"]["gap"]) < 1
    assert [name for name, row in report["summary"].items() if "compiled" in row] == ["attention"]
    assert "alone gdn" in capsys.readouterr().out


@pytest.mark.slow
def test_twice_the_trials_on_twice_the_devices(tmp_path, capsys):
    dials = {
        "devices": ["cpu", "cpu"],
        "trials": 2,
        "task": {"regimes": 2, "vocab": 4, "length": 12, "burn_in": 2, "windows": [1]},
        "arch": {"d_model": 16},
        "train": {"steps": 6, "batch_size": 4, "evaluations": 2},
        "evaluate": {"validation_sequences": 8, "test_sequences": 8, "readout_positions": 0},
    }
    devices.run(tmp_path, **dials)
    report = json.loads((tmp_path / "devices.json").read_text())
    assert [(run["devices"], run["ok"]) for run in report["runs"]] == [(1, 2), (2, 4)]
    assert report["whole"] == report["runs"][1]["whole_seconds"] / report["runs"][0]["whole_seconds"]
    assert report["runs"][0]["excess"] == report["runs"][1]["excess"][:2]
    assert "times" in capsys.readouterr().out
