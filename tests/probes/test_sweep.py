"""Trials and sweeps: whole folders, the same numbers after a kill, clear refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import probes
from probes import sweep
from probes.catalogue import load_catalogue
from probes.cli import main
from probes.config import Suite
from probes.results import COLUMNS, read_table
from probes.trial import Labels, Runner, Runtime

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "probes" / "plugin_models.py"
TINY = {
    "task": {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 12, "burn_in": 2, "windows": [1]},
    "train": {"steps": 6, "batch_size": 4, "warmup": 1, "evaluations": 3},
    "evaluate": {"validation_sequences": 8, "test_sequences": 16},
    "arch": {"d_model": 16, "d_ff": 16},
}
TIMES = ["train_seconds", "seconds"]


def tiny_suite(**changes):
    return Suite(
        **{
            "tasks": ["two_timescale"],
            "architectures": ["attention"],
            "learning_rates": [1e-3, 1e-2],
            "smoke": True,
            **TINY,
            **changes,
        }
    )


def own(name):
    return f"model:{PLUGIN}:{name}"


def run_tiny(out, architecture="attention", **sets):
    dials = {name: {**TINY.get(name, {}), **sets.get(name, {})} for name in ("task", "train", "evaluate", "arch")}
    if architecture.startswith("model:"):
        dials["arch"] = {}
    return probes.run("two_timescale", architecture, out=out, sets=dials)


def test_a_trial_is_recorded_whole(tmp_path):
    result = run_tiny(tmp_path)
    assert {path.name for path in result.folder.iterdir()} == {
        "trial.json",
        "result.json",
        "curves.npz",
        "weights.safetensors",
    }
    assert result.row["status"] == "ok"
    assert set(COLUMNS) - set(result.row) == {"chosen", "lr_at_edge"}
    assert result.row["trial"] == result.trial.identity()
    assert result.row["reference.bayes.excess"] == pytest.approx(0, abs=1e-12)
    assert len(result.curves["position_excess"]) == 12
    assert result.curves["train_step"].tolist() == [2, 4, 6]
    assert not list(tmp_path.glob(".partial/*"))


def test_the_recorded_model_scores_as_recorded(tmp_path):
    result = run_tiny(tmp_path)
    loaded = probes.load(result.folder)
    runner = Runner(loaded.trial, Labels("two_timescale", "attention"), Runtime(), tmp_path, None)
    row, _ = runner.score_columns(loaded.model())
    assert row["excess"] == pytest.approx(result.row["excess"], abs=1e-9)
    assert row["test_digest"] == result.row["test_digest"]


def test_the_same_seeds_give_the_same_numbers(tmp_path):
    first, second = run_tiny(tmp_path / "a").row, run_tiny(tmp_path / "b").row
    assert {k: v for k, v in first.items() if k not in TIMES} == {k: v for k, v in second.items() if k not in TIMES}


def test_a_second_run_returns_the_recorded_one(tmp_path):
    first = run_tiny(tmp_path)
    before = (first.folder / "result.json").stat().st_mtime_ns
    assert run_tiny(tmp_path).row == first.row
    assert (first.folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_an_interrupted_trial_goes_on_to_the_same_numbers(tmp_path, stop):
    whole = run_tiny(tmp_path / "whole").row

    class Stop(Exception):
        pass

    def listener(event):
        if event.step == stop:
            raise Stop

    dials = {name: TINY[name] for name in ("task", "train", "evaluate", "arch")}
    with pytest.raises(Stop):
        probes.run("two_timescale", "attention", out=tmp_path / "part", sets=dials, listener=listener)
    assert not list((tmp_path / "part").glob("trials/*"))
    part = run_tiny(tmp_path / "part").row
    assert {k: v for k, v in part.items() if k not in TIMES} == {k: v for k, v in whole.items() if k not in TIMES}


def test_a_trial_that_was_stopped_after_its_last_step_tells_of_it(tmp_path, monkeypatch):
    class Stopped(BaseException):
        pass

    def stop(*_):
        raise Stopped

    with monkeypatch.context() as changed:
        changed.setattr(Runner, "score_columns", stop)
        with pytest.raises(Stopped):
            run_tiny(tmp_path)
    heard = []
    dials = {name: TINY[name] for name in ("task", "train", "evaluate", "arch")}
    probes.run("two_timescale", "attention", out=tmp_path, sets=dials, listener=heard.append)
    assert [(event.step, event.steps) for event in heard] == [(6, 6)]
    assert heard[0].excess > 0


def test_a_model_that_turns_nan_is_a_recorded_row(tmp_path):
    row = run_tiny(tmp_path, own("TurnsNaN")).row
    assert row["status"] == "diverged"
    assert row["error"] == "training loss is nan at step 4"


def test_a_model_that_cannot_run_is_a_recorded_row_and_is_tried_again(tmp_path):
    result = run_tiny(tmp_path, own("Broken"))
    assert result.row["status"] == "failed"
    assert result.row["error"] == "RuntimeError: no such thing"
    assert not (result.folder / "weights.safetensors").exists()
    before = (result.folder / "result.json").stat().st_mtime_ns
    assert (run_tiny(tmp_path, own("Broken")).folder / "result.json").stat().st_mtime_ns != before


def test_a_leak_of_the_target_shows_in_the_row(tmp_path):
    """A model that learns to read the next token is better than Bayes in samples and worse in KL."""
    sets = {"train": {"steps": 60, "lr": 0.1}, "evaluate": {"test_sequences": 256}}
    row = run_tiny(tmp_path, own("Leaking"), **sets).row
    assert abs(row["agreement"]) > 4 * row["agreement_se"]
    honest = run_tiny(tmp_path, own("Bigram"), **sets).row
    assert abs(honest["agreement"]) <= 4 * honest["agreement_se"]
    assert honest["reference.window_1_stationary.margin"] > -2 * honest["reference.window_1_stationary.margin_se"]


def test_a_suite_searches_rates_on_the_first_seed_and_repeats_the_best(tmp_path):
    table = sweep.run(tiny_suite(seeds=[0, 1, 2]), out=tmp_path, name="tiny", workers=1)
    assert len(table) == 4
    searched = table[table.model_seed == 0]
    best = searched.loc[searched.validation_excess.idxmin(), "lr"]
    assert set(table[table.chosen].model_seed) == {0, 1, 2}
    assert set(table[table.chosen].lr) == {best}
    assert table.duplicated("test_digest").sum() == 1
    again = read_table(tmp_path / "tiny")
    pd.testing.assert_frame_equal(again, table, check_dtype=False)


def test_a_grid_is_swept(tmp_path):
    suite = tiny_suite(grid={"task.overlap": [0.5, 1.0]}, learning_rates=[1e-3])
    table = sweep.run(suite, out=tmp_path, name="grid", workers=1)
    assert table["point"].tolist() == ["task.overlap=0.5", "task.overlap=1.0"]
    assert table["dial.overlap"].tolist() == [0.5, 1.0]


def test_workers_give_the_table_of_one_process(tmp_path):
    suite = tiny_suite(seeds=[0, 1])
    one = sweep.run(suite, out=tmp_path / "one", name="tiny", workers=1, sets={})
    two = sweep.run(suite, out=tmp_path / "two", name="tiny", workers=2, sets={})
    assert one.excess.tolist() == two.excess.tolist()
    assert one.trial.tolist() == two.trial.tolist()


def test_another_environment_is_refused_unless_mixed(tmp_path):
    sweep.run(tiny_suite(), out=tmp_path, name="tiny", workers=1)
    for path in tmp_path.glob("tiny/trials/*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "env.torch": "1.0"}))
    with pytest.raises(sweep.SweepError, match=r"torch: 1\.0 against"):
        sweep.run(tiny_suite(), out=tmp_path, name="tiny", workers=1)
    assert len(sweep.run(tiny_suite(), out=tmp_path, name="tiny", workers=1, mix=True)) == 2


def test_one_sweep_at_a_time(tmp_path):
    (tmp_path / "tiny").mkdir()
    with sweep.locked(tmp_path / "tiny"), pytest.raises(sweep.SweepError, match="another process"):
        sweep.run(tiny_suite(), out=tmp_path, name="tiny", workers=1)


def test_every_setting_of_a_trial_is_in_its_identity():
    catalogue = load_catalogue()
    base = sweep.expand(tiny_suite(), catalogue)[0].search[0].trial
    changed = [
        tiny_suite(task={**TINY["task"], "overlap": 0.5}),
        tiny_suite(arch={**TINY["arch"], "d_model": 32}),
        tiny_suite(train={**TINY["train"], "steps": 7}),
        tiny_suite(evaluate={**TINY["evaluate"], "test_sequences": 17}),
        tiny_suite(seeds=[1]),
        tiny_suite(learning_rates=[3e-3]),
    ]
    identities = {sweep.expand(suite, catalogue)[0].search[0].trial.identity() for suite in changed}
    assert len(identities | {base.identity()}) == len(changed) + 1
    assert sweep.expand(tiny_suite(), catalogue)[0].search[0].trial.identity() == base.identity()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": [0, 0]}, "listed twice"),
        ({"learning_rates": [1e-3, 1e-3]}, "listed twice"),
        ({"tasks": ["two_timescale", "two_timescale"]}, "listed twice"),
        ({"seeds": [-1]}, "outside"),
    ],
)
def test_a_suite_lists_nothing_twice(changes, says):
    with pytest.raises(ValueError, match=says):
        tiny_suite(**changes)


def test_unknown_sections_are_refused_from_python(tmp_path):
    with pytest.raises(ValueError, match="unknown section 'trainn'; nearest is 'train'"):
        probes.run("two_timescale", "attention", out=tmp_path, sets={"trainn": {"steps": 2}})
    with pytest.raises(ValueError, match="unknown section 'trainn'; nearest is 'train'"):
        sweep.expand(tiny_suite(), load_catalogue(), {"trainn": {"steps": 2}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "sets", "says"),
    [
        ({"grid": {"train.lr": [1e-3]}}, {}, "grid has train.lr, which learning_rates"),
        ({"train": {**TINY["train"], "lr": 1e-3}}, {}, "train.lr = 0.001 sets the learning rate"),
        ({"seeds": [0, 1], "grid": {"seeds.model_seed": [0, 1]}}, {}, "grid has seeds.model_seed"),
        ({"seeds": [0, 1]}, {"seeds": {"model_seed": 3}}, "seeds.model_seed = 3: the suite's seeds (0, 1) set it"),
        ({"train": {"steps": 2, "warmup": 9}}, {}, "train.warmup = 9 is above train.steps = 2; nearest: 2"),
        (
            {"train": {"steps": 60, "evaluations": 500}},
            {},
            "train.evaluations = 500 is above train.steps = 60; nearest",
        ),
        ({"grid": {"train.steps": [6, 2]}}, {}, "train.evaluations = 3 is above train.steps = 2; nearest: 2"),
        ({}, {"train": {"warmup": 7}}, "train.warmup = 7 is above train.steps = 6; nearest: 6"),
    ],
)
def test_dials_that_contradict_each_other_are_refused(changes, sets, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        sweep.expand(tiny_suite(**changes), load_catalogue(), sets)


def test_what_does_not_contradict_is_swept():
    for changes, sets in (
        ({"grid": {"seeds.model_seed": [0, 1]}}, {}),
        ({"grid": {"seeds.data_seed": [0, 1]}, "seeds": [0, 1]}, {}),
        ({}, {"train": {"lr": 1e-3}}),
        ({}, {"train": {"steps": 1}}),
        ({"train": {"warmup": 3000}, "grid": {"train.steps": [3000, 4000]}}, {}),
        ({"train": {"steps": 2}}, {}),
    ):
        groups = sweep.expand(tiny_suite(**changes), load_catalogue(), sets)
        trials = [job.trial.identity() for group in groups for job in [*group.search, *group.rest]]
        assert len(set(trials)) == len(trials)


def test_a_sweep_stays_in_its_folder(tmp_path):
    for name, near in (("../esc", "'esc'"), ("a/b", "'b'"), ("trials", "'trials_'")):
        with pytest.raises(ValueError, match=f"nearest is {near}"):
            sweep.run(tiny_suite(), out=tmp_path / "out", name=name)
    assert not list(tmp_path.iterdir())


def test_kernels_that_cannot_run_are_refused_from_python(tmp_path):
    with pytest.raises(ValueError, match="kernels: 'fla' needs a CUDA device, this is 'cpu'; nearest: 'chunked'"):
        probes.run("two_timescale", "attention", out=tmp_path, kernels="fla")
    with pytest.raises(ValueError, match="kernels: unknown 'nope'"):
        sweep.run(tiny_suite(), out=tmp_path, kernels="nope")
    assert not list(tmp_path.iterdir())


def test_single_runs_are_loaded_from_their_folder(tmp_path):
    result = run_tiny(tmp_path)
    assert probes.load(tmp_path).table["trial"].tolist() == [result.row["trial"]]


def test_an_edited_plug_in_is_another_trial(tmp_path):
    """Its source is part of the identity; the shipped architectures have none."""
    source = tmp_path / "edited.py"
    identities = []
    for line in ("", "# a comment\n"):
        source.write_text(PLUGIN.read_text() + line)
        suite = tiny_suite(architectures=[f"model:{source}:Bigram"], arch={})
        identities.append(sweep.expand(suite, load_catalogue())[0].search[0].trial.identity())
    assert identities[0] != identities[1]
    assert sweep.expand(tiny_suite(), load_catalogue())[0].search[0].trial.sources == {}


KILLED = """
suites:
  killed:
    tasks: [two_timescale]
    architectures: [attention, mamba2]
    task: {regimes: 2, vocab: 4, overlap: 1.0, switch_rate: 0.1, length: 32, burn_in: 2, windows: [1]}
    arch: {d_model: 16, d_ff: 16}
    train: {steps: 120, batch_size: 8, warmup: 1, evaluations: 12}
    evaluate: {validation_sequences: 8, test_sequences: 16}
    learning_rates: [1.0e-3, 1.0e-2]
    smoke: true
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_table_of_an_unbroken_one(tmp_path):
    """kill -9 in the middle, then the same command: what was finished is kept, nothing is half written."""
    config = tmp_path / "killed.yaml"
    config.write_text(KILLED)

    def command(out):
        words = ["-m", "probes", "sweep", "killed", "--config", str(config), "--out", str(out), "--workers", "2"]
        return [sys.executable, *words]

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True, env=environment)
    broken = tmp_path / "broken"
    process = subprocess.Popen(command(broken), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = broken / "killed" / "trials"
    while process.poll() is None and not (folder.exists() and list(folder.glob("[!.]*"))):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: (path / "result.json").stat().st_mtime_ns for path in folder.glob("[!.]*")}
    assert 0 < len(kept) < 4
    subprocess.run(command(broken), check=True, capture_output=True, env=environment)
    assert all((path / "result.json").stat().st_mtime_ns == stamp for path, stamp in kept.items())
    whole, after = (read_table(tmp_path / part / "killed") for part in ("whole", "broken"))
    pd.testing.assert_frame_equal(whole.drop(columns=TIMES), after.drop(columns=TIMES))


def test_a_suite_matches_its_architectures_and_says_how_well():
    names, wide = ["attention", "mamba2", "gdn"], {"d_model": 16, "d_ff": 96}
    for by in ("parameters", "forward_flops"):
        groups = sweep.expand(tiny_suite(architectures=names, match=by, arch=wide), load_catalogue())
        assert {group.labels.matched for group in groups} == {by}
        first, *others = groups
        assert first.labels.residual == 0.0
        for group in others:
            assert abs(group.labels.residual) < 0.01
            own_width = group.search[0].trial.architecture["d_ff"]
            assert own_width != first.search[0].trial.architecture["d_ff"]
            row = Runner(group.search[0].trial, group.labels, Runtime(), Path(), None).base_row()
            assert (row["matched"], row["match_residual"]) == (by, group.labels.residual)
            target = Runner(first.search[0].trial, first.labels, Runtime(), Path(), None).base_row()[by]
            assert row[by] / target - 1 == pytest.approx(group.labels.residual)
    assert {group.labels.matched for group in sweep.expand(tiny_suite(), load_catalogue())} == {""}


def test_a_failed_trial_is_not_found_finished(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    suite = tiny_suite(architectures=[own("Bigram"), own("Broken")], learning_rates=[1e-3], arch={})
    Path("own.yaml").write_text(json.dumps({"suites": {"mine": suite.model_dump(exclude_defaults=True)}}))
    for _ in range(2):
        with pytest.raises(SystemExit, match="1"):
            main(["sweep", "mine", "--config", "own.yaml", "--workers", "1"])
        said = capsys.readouterr().out
    assert "1 of 2 trials found finished" in said
    assert "3/2" not in said
