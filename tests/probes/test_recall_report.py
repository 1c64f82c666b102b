"""Tables without training: all tasks, two memories over the load, and the regime of a state's size."""

from __future__ import annotations

import time

import pytest

from probes.catalogue import load_catalogue
from probes.cli import main
from probes.recall_report import compare, regime_columns, robustness_columns, values
from probes.tasks import create

CATALOGUE = load_catalogue()
RECALL = [name for name in CATALOGUE.tasks if CATALOGUE.task_entry(name)["kind"] != "two_timescale"]


@pytest.mark.parametrize("name", RECALL)
def test_every_entry_of_the_catalogue_has_its_references(name):
    task = CATALOGUE.make_task(name)
    started = time.process_time()
    found = {value.reference: value for value in values(task, 4)}
    assert time.process_time() - started < 20
    assert found["bayes"].excess == 0
    assert all(value.excess >= -1e-9 for value in found.values() if not value.is_bound and value.error is None)
    assert any(name.startswith("window") for name in found)
    assert found["chance"].log_loss >= found["bayes"].log_loss


def test_zoology_and_mad_presets():
    shapes = {name: (task.length, task.pairs) for name in RECALL if name[:5] == "mqar_" and name[5].isdigit()
              for task in [CATALOGUE.make_task(name)]}  # fmt: skip
    assert sorted(shapes.values()) == [(64, 4), (128, 8), (256, 16), (512, 64)]
    for name in shapes:
        task = CATALOGUE.make_task(name)
        assert (task.vocab_size, task.keys, task.values, task.first_key) == (8192, 4095, 4096, 1)
    mad = {name: CATALOGUE.make_task(name) for name in RECALL if name.startswith("mad_")}
    # Poli et al. (2024), MAD: the baseline settings of the six tasks
    assert {name: task.length for name, task in mad.items()} == {
        "mad_recall": 128,
        "mad_fuzzy": 128,
        "mad_noisy": 128,
        "mad_selective_copy": 256,
        "mad_compression": 32,
        "mad_memorization": 32,
    }
    assert (mad["mad_recall"].keys, mad["mad_recall"].values) == (8, 8)
    assert (mad["mad_noisy"].keys, mad["mad_noisy"].noise) == (8, 0.2)
    assert (mad["mad_fuzzy"].keys, mad["mad_fuzzy"].values) == (7, 8)
    assert (mad["mad_selective_copy"].string, mad["mad_selective_copy"].symbols) == (16, 14)
    assert (mad["mad_memorization"].keys, mad["mad_memorization"].vocab_size) == (127, 256)
    assert mad["mad_compression"].symbols == 15


def test_the_gap_of_two_memories():
    # the state-space book, chapter 15: 16 and 64 slots
    rows, peak = compare(16, 64)
    gaps = {row.load: row.gap for row in rows}
    assert (peak.load, peak.gap) == (64, 0.75)
    assert gaps[16] == 0
    assert round(gaps[512], 4) == 0.0938
    assert max(gaps.values()) == peak.gap
    assert {row.load: row.regime for row in rows}[16] == "both hold all"
    rows, peak = compare(16, 64, later=8)
    assert (peak.load, peak.gap) == (56, 1 - 8 / 56)
    assert max(row.gap for row in rows) == peak.gap


def test_compare_on_the_command_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bayes", "mqar", "--compare", "16,64"])
    assert ended.value.code in (0, None)
    out = capsys.readouterr().out
    assert "the gap peaks at 64 pairs: 0.75" in out
    assert "0.0938" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bayes", "mqar", "--compare", "64,16"], "--compare 64,16: two sizes of memory, the smaller first"),
        (["bayes", "mqar", "--compare", "many"], "--compare many: expected two numbers of pairs, as in 16,64"),
        (["bayes", "copy", "--compare", "16,64"], "--compare 16,64: 'copy' is no mqar task; nearest is 'mqar'"),
        (["bayes", "--all", "--compare", "16,64"], "bayes takes either"),
    ],
)
def test_wrong_comparisons_are_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_regime_of_a_state():
    task = create("copy", {"string": 100, "vocab_size": 18})
    assert regime_columns(task, 10) == {"regime.load": 100, "regime.slots": 20, "regime.inside": True}
    assert not regime_columns(task, 1000)["regime.inside"]
    assert regime_columns(task, None) == {}
    assert regime_columns(create("memorization", {}), 100) == {}
    assert regime_columns(create("markov", {}), 100) == {}


def test_robustness_of_a_row():
    row = {
        "accuracy": 1.0,
        "slice.gap_octave.1.accuracy": 1.0,
        "slice.gap_octave.2.accuracy": 0.95,
        "slice.gap_octave.4.accuracy": 0.35,
        "slice.gap_octave.4.count": 3,
        "slice.pair.0.accuracy": 0.0,
        "evaluation.length_x2.accuracy": 0.9,
        "evaluation.length_x4.accuracy": 0.5,
    }
    assert robustness_columns(row) == {
        "robustness.gap.L90": 4.0,
        "robustness.gap.AUC": pytest.approx((0.975 + 2 * 0.65) / 3),
        "robustness.length.L90": 2.0,
        "robustness.length.AUC": pytest.approx((0.95 + 0.7) / 2),
    }
    assert robustness_columns({"accuracy": 0.5}) == {}
