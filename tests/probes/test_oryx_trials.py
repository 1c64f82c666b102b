"""An Oryx trial without settings: chunked training, and both modes and their mixture scored at every evaluation."""

from __future__ import annotations

import json

import numpy as np
import pytest

import probes

SMALL = {
    "task": {"length": 24, "burn_in": 6, "windows": [1]},
    "arch": {"d_model": 16, "layers": 2},
    "evaluate": {"validation_sequences": 32, "test_sequences": 64},
    "train": {"steps": 6, "batch_size": 8, "evaluations": 3, "warmup": 1},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return probes.run("two_timescale_small", "oryx_tm", sets=SMALL, out=tmp_path_factory.mktemp("runs"))


def test_the_recorded_trial_says_how_modes_were_drawn(result):
    mode = json.loads((result.folder / "trial.json").read_text())["train"]["control"]["mode"]
    assert mode == {"schedule": "random_chunks", "attention": 0.25}
    assert set(result.trial.evaluate.variants) == {"attention", "linear", "mixed"}


def test_modes_are_scored_apart_on_test_and_on_validation(result):
    row, curves = result.row, result.curves
    excess = [row[f"variant.{name}.excess"] for name in ("attention", "linear", "mixed")]
    assert len(set(excess)) == 3
    assert np.isfinite(excess).all()
    assert row["excess"] == row["variant.mixed.excess"]
    assert row["variant.attention.metric.attention_fraction"] == 1
    assert row["variant.linear.metric.attention_fraction"] == 0
    for name in ("attention", "linear", "mixed"):
        by_step = curves[f"variant/{name}/validation_excess"]
        assert by_step.shape == (3,)
        assert np.isfinite(by_step).all()
        assert curves[f"variant/{name}/position_excess"].shape == (24,)
    assert np.array_equal(curves["variant/mixed/validation_excess"], curves["validation_excess"])
    assert not np.array_equal(curves["variant/linear/validation_excess"], curves["validation_excess"])


def test_one_mode_everywhere_is_what_its_variant_scores(result, tmp_path):
    """Scoring under the variant as the headline gives the same numbers: same weights, same sequences."""
    sets = {**SMALL, "evaluate": {**SMALL["evaluate"], "control": {"mode": {"schedule": "linear"}}}}
    other = probes.run("two_timescale_small", "oryx_tm", sets=sets, out=tmp_path)
    assert other.row["excess"] == pytest.approx(result.row["variant.linear.excess"], rel=1e-12)
    assert other.row["test_digest"] == result.row["test_digest"]


def test_training_by_sequence_is_another_trial(result, tmp_path):
    sets = {**SMALL, "train": {**SMALL["train"], "control": {"mode": {"schedule": "per_sequence"}}}}
    other = probes.run("two_timescale_small", "oryx_tm", sets=sets, out=tmp_path)
    assert other.row["trial"] != result.row["trial"]
    assert other.row["variant.linear.excess"] != result.row["variant.linear.excess"]
    assert other.trial.evaluate.control["mode"]["schedule"] == "random_chunks"


def test_a_bad_schedule_is_refused_before_the_trial(tmp_path):
    sets = {**SMALL, "train": {**SMALL["train"], "control": {"mode": {"chunck": 3}}}}
    with pytest.raises(ValueError, match=r"^train\.control\.mode\.chunck: random_chunks has no such"):
        probes.run("two_timescale_small", "oryx_tm", sets=sets, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["oryx_tm", "oryx_tg"])
def test_both_modes_learn_more_than_the_memoryless_predictor(architecture, tmp_path):
    """Two standard errors below window(1), as the smoke suite must show, after 300 of its 700 steps."""
    sets = {
        "arch": {"d_model": 32, "init_std": 0.1},
        "train": {"steps": 300, "batch_size": 32, "warmup": 20, "lr": 1e-2, "evaluations": 1},
        "evaluate": {"validation_sequences": 64, "test_sequences": 512},
    }
    row = probes.run("two_timescale_small", architecture, sets=sets, out=tmp_path).row
    for name in ("attention", "linear", "mixed"):
        error = np.hypot(row[f"variant.{name}.excess_se"], row["reference.window_1.excess_se"])
        assert row[f"variant.{name}.excess"] + 2 * error < row["reference.window_1.excess"]
