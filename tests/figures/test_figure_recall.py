"""Chapters 15 and 16 from the exact readers: values of the book, and what holds for any dials."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures import _readers as readers
from figures import _trained, copying_bound, discriminative_regime, length_robustness, selection_inflation
from figures.results import SCHEMA

# The state-space book, chapters 15 and 16: measured with 8 seeds.
PUBLISHED_L90 = {0.97: 16, 0.99: 32, 0.999: 128, 1.0: 256}
PUBLISHED_AUC = {0.97: 0.4727, 0.99: 0.6234, 0.999: 0.8305, 1.0: 0.9227}
PUBLISHED_INFLATION = {2: 0.57, 16: 1.7547, 64: 2.3383}


def test_slots_peak_where_the_book_says():
    numbers = discriminative_regime.table(16, 64, np.array([16, 32, 64, 128, 512]), 64, 2)
    gap = numbers[(numbers.reader == "slots") & (numbers["size"] == 64)].set_index("load").gap
    assert gap.idxmax() == 64
    assert gap.max() == 0.75
    assert gap[16] == 0
    assert round(gap[512], 4) == 0.0938


def test_the_outer_product_degrades_later_and_softly():
    numbers = discriminative_regime.table(16, 64, np.array([32, 64, 128, 256, 512]), 64, 8)
    soft = numbers[numbers.reader == "outer product"]
    large = soft[soft["size"] == 64].set_index("load")
    assert large.gap.idxmax() == 256
    assert large.accuracy[128] > readers.slot_accuracy(np.array([128.0]), 64)[0]
    assert all(before >= after for before, after in pairwise(large.accuracy))


def test_length_robustness_of_the_fading_reader():
    separations = np.array(length_robustness.DIALS["separations"])
    numbers = length_robustness.table([0.97, 0.99, 0.999, 1.0], separations, 8, 64, 8)
    fresh = numbers[numbers.between == "pairs"].groupby("decay")
    assert fresh.L90.first().to_dict() == PUBLISHED_L90
    # eight targets and eight seeds: a point of the curve has a standard error of up to 1/16
    for decay, auc in fresh.AUC.first().items():
        assert auc == pytest.approx(PUBLISHED_AUC[decay], abs=0.015)
    control = numbers[numbers.between == "blanks"]
    assert (control.accuracy == 1).all()


@given(
    decay=st.sampled_from([0.9, 0.97, 0.999, 1.0]),
    number=st.integers(1, 60),
    blanks=st.integers(1, 300),
    seed=st.integers(0, 1000),
)
def test_blanks_leave_every_answer_as_it_was(decay, number, blanks, seed):
    pairs = readers.draw_pairs(number, min(8, number), 16, 16, seed)
    before = readers.outer_product_scores(pairs, 16, decay)
    after = readers.outer_product_scores(pairs, 16, decay, blanks)
    np.testing.assert_allclose(after, before * decay**blanks, rtol=1e-15)
    assert np.array_equal(before.argmax(1), after.argmax(1))


def test_fresh_pairs_do_change_answers():
    near = readers.draw_pairs(8, 8, 16, 16, 0)
    far = readers.draw_pairs(400, 8, 16, 16, 0)
    assert readers.outer_product_accuracy(near, 16, 0.97) > 0.9
    assert readers.outer_product_accuracy(far, 16, 0.97) < 0.5


def test_the_scores_are_the_sum_over_pairs():
    pairs = readers.draw_pairs(7, 3, 6, 5, 1)
    expected = np.zeros((3, 5))
    for query in range(3):
        for age, (key, value) in enumerate(zip(pairs.keys[::-1], pairs.values[::-1])):
            expected[query, value] += 0.9 ** (2 * age) * (pairs.keys[query] @ key)
    np.testing.assert_allclose(readers.outer_product_scores(pairs, 5, 0.9), expected, rtol=1e-12, atol=1e-15)


def test_l90_and_auc_by_hand():
    separations = np.array([1, 2, 4, 8])
    accuracy = np.array([1.0, 0.9, 0.5, 0.95])
    assert readers.l90(separations, accuracy) == 8
    assert readers.l90(separations[:3], accuracy[:3]) == 2
    assert readers.auc_over_octaves(separations, accuracy) == pytest.approx((0.95 + 0.7 + 0.725) / 3)
    assert math.isnan(readers.auc_over_octaves(separations[:1], accuracy[:1]))


def test_selection_inflation():
    numbers = selection_inflation.table([1, 2, 16, 64], 4000, 0).set_index("count")
    assert numbers.exact[1] == pytest.approx(0, abs=1e-12)
    assert numbers.exact[2] == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    for count, measured in PUBLISHED_INFLATION.items():
        assert numbers.exact[count] == pytest.approx(measured, abs=0.015)
        assert abs(numbers.simulated[count] - numbers.exact[count]) < 4.5 * numbers.error[count]
        assert numbers.exact[count] < numbers.bound[count]


@given(bits=st.integers(1, 64), length=st.integers(1, 64), vocabulary=st.integers(2, 32))
def test_a_ring_buffer_never_passes_the_copying_bound(bits, length, vocabulary):
    bound = readers.copying_accuracy_bound(bits, length, vocabulary)
    assert readers.ring_buffer_accuracy(bits, np.array([length]), vocabulary)[0] <= bound + 1e-9
    assert 1 / vocabulary <= bound <= 1
    lossless = readers.copied_tokens(np.array([1]), bits, vocabulary)[0]
    assert (bound == 1) == (length <= lossless + 1e-9)


def test_copied_tokens():
    assert readers.copied_tokens(np.array([64]), 32, 16)[0] == 512


@pytest.mark.parametrize(
    ("module", "dials"),
    [
        (discriminative_regime, {"loads": [4, 8], "seeds": 2}),
        (length_robustness, {"separations": [1, 2], "seeds": 1}),
        (selection_inflation, {"draws": 10}),
        (copying_bound, {}),
    ],
)
def test_figures_are_written(module, dials, tmp_path):
    paths = module.draw(tmp_path, **dials)
    assert [path.suffix for path in paths] == [".png", ".svg", ".csv"]
    assert all(path.stat().st_size for path in paths)
    assert len(pd.read_csv(paths[2]))
    assert set(dials) <= set(module.DIALS)


def recorded(tmp_path, rows):
    """A sweep's folder with these rows, in the published form."""
    known = {"status": "ok", "chosen": True, "point": "", "task": "t", "task_kind": "mqar"}
    arrow = pa.Table.from_pandas(pd.DataFrame([{**known, **row} for row in rows]))
    pq.write_table(arrow.replace_schema_metadata({"fastslow.schema": SCHEMA}), tmp_path / "results.parquet")
    return tmp_path


def test_trained_models_stand_on_the_same_axes(tmp_path):
    rows = []
    for architecture, high in (("attention", 1.0), ("gdn", 0.5)):
        for load in (4, 8):
            for seed in (0, 1):
                rows.append(
                    {
                        "architecture": architecture,
                        "accuracy": high + 0.01 * seed - load / 100,
                        "excess": 1 - high + 0.1 * seed,
                        "point": f"task.pairs={load}",
                        "dial.load": load,
                        "dial.string": load,
                        "slice.gap_octave.1.accuracy": high,
                        "slice.gap_octave.3.accuracy": high / 2,
                    }
                )
    results = recorded(tmp_path, rows)
    found = _trained.accuracy_by(results, "load")
    assert found.model.tolist() == ["attention", "attention", "gdn", "gdn"]
    assert found.x.tolist() == [4, 8, 4, 8]
    assert found.accuracy.tolist() == pytest.approx([0.965, 0.925, 0.465, 0.425])
    assert found.error.tolist() == pytest.approx([0.005] * 4)
    assert _trained.accuracy_by(results, "gap_octave").x.tolist() == [2, 8, 2, 8]
    chosen = _trained.selections(results)
    assert chosen["count"].tolist() == [2] * 4
    assert chosen.simulated.tolist() == pytest.approx([1 / math.sqrt(2)] * 4)
    with pytest.raises(ValueError, match="no dial and no slice 'depth'"):
        _trained.accuracy_by(results, "depth")
    for module in (discriminative_regime, length_robustness, selection_inflation, copying_bound):
        paths = module.draw(tmp_path / "figures", results=results)
        assert "attention" in paths[2].read_text() or module is selection_inflation


def test_kinds_of_tasks_are_not_mixed(tmp_path):
    rows = [
        {"architecture": "gdn", "accuracy": 0.1 * index, "excess": 1.0, "task_kind": kind, "dial.load": 4}
        for index, kind in enumerate(("copy", "mqar"))
    ]
    assert _trained.accuracy_by(recorded(tmp_path, rows), "load").model.tolist() == ["gdn on copy", "gdn on mqar"]
