"""What the commands print of AMOR's gates."""

from __future__ import annotations

import json

import pytest

from probes.cli import main
from probes.distil import Settings

TINY = [
    "task.length=24",
    "task.burn_in=8",
    "task.windows=[1, 4]",
    "arch.blocks=2",
    "train.steps=3",
    "train.batch_size=4",
    "train.evaluations=1",
    "evaluate.validation_sequences=4",
    "evaluate.test_sequences=4",
    "evaluate.readout_positions=0",
]
SETS = [part for dial in TINY for part in ("--set", dial)]


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main([*words])
    return stop.value.code


def test_a_run_prints_firing_rates_other_triggers_and_the_distilled_router(tmp_path, capsys, monkeypatch):
    few = Settings(fit_positions=512, calibration_positions=256, epochs=1)
    monkeypatch.setattr("probes.distil.Settings", lambda: few)
    assert run("run", "two_timescale", "amor_gdn_tiny", *SETS, "--distil", "--out", str(tmp_path)) in (0, None)
    text = capsys.readouterr().out
    assert "% firing, by block" in text
    assert "33 to 51%" in text
    for variant in ("zeroed", "random_router", "random", "always"):
        assert variant in text
    assert "distilled router" in text
    (report,) = tmp_path.glob("distilled/*/report.json")
    assert len(json.loads(report.read_text())["agreement"]) == 2


def test_a_model_without_a_native_gate_is_refused_before_it_is_trained(tmp_path, capsys):
    for words in (["gdn_tiny"], ["amor_gdn_tiny", "--set", "arch.trigger=always"]):
        code = run("run", "two_timescale", *words, "--distil", "--out", str(tmp_path))
        captured = capsys.readouterr()
        assert code not in (0, None)
        assert "distil: needs an AMOR model with the entropy trigger" in captured.err
        assert not list(tmp_path.iterdir())
