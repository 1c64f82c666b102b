"""Variants, triggers and schedules are checked before the first step, and one that fails costs nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import probes
from probes import controls, sweep
from probes.catalogue import load_catalogue
from probes.cli import main
from probes.config import Suite
from probes.controls_check import ControlError
from probes.results import read_row

TINY = {
    "arch": {"d_model": 16},
    "train": {"steps": 2, "batch_size": 4, "warmup": 1, "evaluations": 1},
    "evaluate": {"validation_sequences": 8, "test_sequences": 8, "readout_positions": 0},
}
ORACLE = {"trigger": {"kind": "control", "name": "s", "firing_rate": "native"}, "s": {"schedule": "exact_surprise"}}


def run(out, task="copy_small", architecture="amor_gdn_tiny", train=None, **evaluate):
    sets = {"train": {**TINY["train"], **(train or {})}, "evaluate": {**TINY["evaluate"], **evaluate}}
    if architecture.startswith("oryx"):
        sets["arch"] = {"d_model": 16, "layers": 2}
    return probes.run(task, architecture, out=out, sets=sets)


FAULTS = [
    ("amor_gdn_tiny", {"trigger": {"kind": "margn"}}, "trigger.kind: unknown 'margn'; nearest: 'margin'"),
    ("amor_gdn_tiny", {"trigger": "margn"}, "trigger: unknown 'margn'; nearest: 'margin'"),
    ("amor_gdn_tiny", {"trigger": 3}, "trigger: 3 is neither a name nor a mapping"),
    ("amor_gdn_tiny", {"trigger": {"kind": "position", "evry": 3}}, "trigger: unknown 'evry'; nearest: 'every'"),
    ("amor_gdn_tiny", {"trigger": {"kind": "always", "firing_rate": 0.5}}, "'always' has no threshold"),
    ("amor_gdn_tiny", {"trigger": {"kind": "margin", "firing_rate": "natve"}}, "neither a rate in [0, 1]"),
    ("amor_gdn_tiny", {"trigger": {"kind": "control", "name": "s"}}, "trigger.name: the trigger reads the tensor 's'"),
    ("gdn_tiny", {"trigger": "margn"}, "trigger: unknown 'margn'; nearest: 'margin'"),
    ("oryx_tm", {"mode": {"schedule": "swich"}}, "mode.schedule: unknown 'swich'; nearest is 'switch'"),
    ("oryx_tm", {"mode": {"schedule": "switch", "at": "end"}}, "mode: switch does not take {'at': 'end'}"),
    ("oryx_tm", {"mode_7": {"schedule": "linear"}}, "mode_7: this model reads no such tensor; nearest is 'mode_"),
    ("oryx_tm", {"mode": {"schedule": "exact_entropy"}}, "mode.schedule: 'exact_entropy' needs a task with an exact"),
    ("oryx_tm", {"mode": {"schedule": "reference", "name": "windw_1", "threshold": 1}}, "unknown reference 'windw_1'"),
]


@pytest.mark.parametrize(("architecture", "variant", "says"), FAULTS)
def test_a_faulty_variant_is_refused_before_anything_runs(tmp_path, architecture, variant, says):
    with pytest.raises(ControlError) as caught:
        run(tmp_path, architecture=architecture, variants={"a": variant})
    assert str(caught.value).startswith("evaluate.variants.a.")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("architecture", "section", "control", "says"),
    [
        ("oryx_tm", "train", {"mode": {"schedule": "random"}}, "train.control.mode.schedule: unknown 'random'"),
        ("oryx_tm", "evaluate", {"mdoe": {"schedule": "linear"}}, "evaluate.control.mdoe: this model reads no such"),
        ("gdn_tiny", "train", {"s": {"schedule": "exact_surprise"}}, "needs a task with an exact filter"),
        ("amor_gdn_tiny", "evaluate", {"trigger": "always"}, "evaluate.control.trigger: a trigger is lent to variants"),
    ],
)
def test_a_faulty_control_is_refused_before_anything_runs(tmp_path, architecture, section, control, says):
    given = {"train": {"control": control}} if section == "train" else {"control": control}
    with pytest.raises(ControlError) as caught:
        run(tmp_path, architecture=architecture, **given)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


SUITE = """suites:
  late:
    tasks: [copy_small]
    architectures: [amor_gdn_tiny]
    learning_rates: [1.0e-3]
    smoke: true
    evaluate:
      variants:
        every: {trigger: {kind: position, every: 2}}
        a:
          trigger:
            kind: margn
"""


def test_a_suite_is_told_the_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("late.yaml").write_text(SUITE)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "late", "--config", "late.yaml"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (1, "")
    assert err.startswith("fastslow: late.yaml:12: late: evaluate.variants.a.trigger.kind: unknown 'margn'; nearest: ")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_variant_that_a_task_cannot_have_is_left_out_for_that_task(tmp_path):
    suite = Suite(
        tasks=["copy_delayed", "two_timescale_small"],
        architectures=["amor_gdn_tiny"],
        learning_rates=[1e-3],
        smoke=True,
        train=TINY["train"],
        evaluate={**TINY["evaluate"], "variants": {"oracle": ORACLE}},
    )
    table = sweep.run(suite, out=tmp_path, name="oracles", workers=1)
    assert table["status"].tolist() == ["ok", "ok"]
    assert table["error"].tolist() == ["", ""]
    assert table["variant.oracle.excess"].isna().tolist() == [True, False]
    assert table["variant.always.excess"].notna().all()
    with pytest.raises(ControlError, match=r"oracle\.s.schedule: 'exact_surprise' needs a task with an exact filter"):
        sweep.expand(suite.model_copy(update={"tasks": ["copy_delayed"]}), load_catalogue())


def test_a_variant_that_fails_costs_only_itself(tmp_path, monkeypatch):
    """The headline, the other variants and the weights are kept, and the row says what failed."""

    def fail_when_scored(batch, task, generator):
        if len(batch) > 2:
            raise RuntimeError("no such memory")
        return torch.zeros_like(batch.tokens)

    monkeypatch.setattr("probes.schedules.fail_when_scored", fail_when_scored, raising=False)
    monkeypatch.setitem(controls.SCHEDULES, "fails", "probes.schedules:fail_when_scored")
    result = run(tmp_path, architecture="oryx_tm", variants={"bad": {"mode": {"schedule": "fails"}}})
    row = read_row(result.folder)
    assert row["status"] == "ok"
    assert row["error"] == "variant bad not scored: RuntimeError: no such memory"
    assert row["excess"] > 0
    assert row["variant.linear.excess"] > 0
    assert "variant.bad.excess" not in row
    result.model()
