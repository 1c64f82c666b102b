"""The two figures of Oryx: the numbers they take from a recorded sweep, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from figures import attention_fraction, switch
from figures.oryx_runs import groups, places

LENGTH, BURN_IN = 20, 4
SINGLE = {"attention": {"mode": {"schedule": "attention"}}, "linear": {"mode": {"schedule": "linear"}}}
VARIANTS = {
    **SINGLE,
    "switch_once": {"mode": {"schedule": "switch", "at": 0.5, "first": "linear"}},
    "switch_often": {"mode": {"schedule": "switch", "at": [6, 11], "first": "attention"}},
    "last_10": {"mode": {"schedule": "switch", "at": 0.9, "first": "linear"}},
    "random_50": {"mode": {"schedule": "random_chunks", "attention": 0.5}},
    "query": {"mode": {"schedule": "prompt"}},
    "layer": {"mode": {"schedule": "linear"}, "mode_1": {"schedule": "attention"}},
}
FRACTIONS = dict(zip(VARIANTS, (1.0, 0.0, 0.5, 0.5, 0.1, 0.5, 0.2, 0.5)))
LEVEL = {"attention": 0.1, "linear": 0.3}


def record(folder, *, kind="oryx", variants=VARIANTS, seeds=(0, 1), architectures=("oryx_tm", "oryx_tg")):
    """A sweep's folder whose excess is 0.1 in attention mode and 0.3 in linear mode, plus 0.02 a seed."""
    rows = []
    for name in architectures:
        for seed in seeds:
            trial = f"t-{name}-s{seed}"
            place = folder / "trials" / trial
            place.mkdir(parents=True)
            recipe = {"control": {"mode": {"schedule": "random_chunks"}}}
            definition = {"architecture": {"kind": kind}, "train": recipe, "evaluate": {"variants": variants}}
            (place / "trial.json").write_text(json.dumps(definition))
            count = np.where(np.arange(LENGTH) < BURN_IN, 0, 50)
            arrays = {
                f"variant/{variant}/position_excess": np.where(count > 0, excess(variant) + 0.02 * seed, 0.0)
                for variant in variants
            }
            np.savez(place / "curves.npz", position_count=count, **arrays)
            row = {"status": "ok", "chosen": True, "task": "t", "point": "", "architecture": name, "folder": trial}
            for variant in variants:
                row[f"variant.{variant}.accuracy"] = 1 - FRACTIONS[variant] / 2 + 0.1 * seed
                row[f"variant.{variant}.excess"] = FRACTIONS[variant]
                row[f"variant.{variant}.metric.attention_fraction"] = FRACTIONS[variant]
            rows.append(row)
    table = pa.Table.from_pandas(pd.DataFrame(rows)).replace_schema_metadata({"fastslow.schema": "1"})
    pq.write_table(table, folder / "results.parquet")
    return folder


def excess(variant):
    mode = np.full(LENGTH, "attention" if variant == "attention" else "linear", dtype=object)
    if variant == "switch_once":
        mode[10:] = "attention"
    if variant == "switch_often":
        mode[:] = "attention"
        mode[6:11] = "linear"
    return np.array([LEVEL[name] for name in mode])


def test_switched_curves_follow_the_mode_and_are_not_smoothed_across_a_switch(tmp_path):
    paths = switch.draw(tmp_path / "out", results=record(tmp_path / "sweep"), smooth=5)
    assert [path.name for path in paths] == ["switch.png", "switch.svg", "switch.csv"]
    numbers = pd.read_csv(paths[2])
    assert set(numbers.variant) == {"switch_once", "switch_often"}
    assert numbers.position.min() == BURN_IN
    assert set(numbers.training) == {"chunked training"}
    expected = np.where(numbers["mode"] == "attention", 0.11, 0.31)
    assert numbers.switched.to_numpy() == pytest.approx(expected)
    assert numbers.attention.to_numpy() == pytest.approx(0.11)
    often = numbers[(numbers.variant == "switch_often") & (numbers.architecture == "oryx_tg")].set_index("position")
    assert list(often.index[often["mode"] == "linear"]) == [6, 7, 8, 9, 10]


def test_variants_of_the_switch_figure_can_be_chosen(tmp_path):
    folder = record(tmp_path / "sweep")
    numbers = pd.read_csv(switch.draw(tmp_path / "out", results=folder, variants=["last_10"])[2])
    assert set(numbers.variant) == {"last_10"}
    with pytest.raises(ValueError, match="variants: 'query' is no variant with the schedule 'switch'"):
        switch.draw(tmp_path / "out", results=folder, variants=["query"])


def test_grid_points_of_one_training_are_told_apart(tmp_path):
    folder = record(tmp_path / "sweep", architectures=("oryx_tm",), seeds=(0, 1))
    table = pq.read_table(folder / "results.parquet")
    points = pa.array(["arch.d_model=16", "arch.d_model=32"])
    pq.write_table(table.set_column(table.column_names.index("point"), "point", points), folder / "results.parquet")
    training = [group.training for group in groups(folder)]
    assert training == ["chunked training (arch.d_model=16)", "chunked training (arch.d_model=32)"]


def test_positions_of_switches():
    assert places({"at": [0.25, 7]}, 20) == [5, 7]
    assert places({}, 20) == [10]


def test_fractions_and_families(tmp_path):
    paths = attention_fraction.draw(tmp_path / "out", results=record(tmp_path / "sweep"))
    numbers = pd.read_csv(paths[2])
    mine = numbers[numbers.architecture == "oryx_tm"].set_index("variant")
    assert mine.excess.to_numpy() == pytest.approx(mine.fraction)
    assert "excess over Bayes (nats per token)" in paths[1].read_text()
    assert "layer" not in mine.index
    assert "switch_often" not in mine.index
    assert dict(mine.family) == {
        "attention": "single mode",
        "linear": "single mode",
        "switch_once": "last tokens",
        "last_10": "last tokens",
        "random_50": "random chunks",
        "query": "query and after",
    }
    assert mine.fraction.to_dict() == {name: FRACTIONS[name] for name in mine.index}
    last = mine[mine.family == "last tokens"]
    assert list(last.fraction) == sorted(last.fraction)
    paths = attention_fraction.draw(tmp_path / "out", results=tmp_path / "sweep", score="accuracy")
    mine = pd.read_csv(paths[2]).query("architecture == 'oryx_tm'")
    assert mine.accuracy.to_numpy() == pytest.approx(1.05 - mine.fraction / 2)


def test_two_drawings_are_the_same_bytes(tmp_path):
    folder = record(tmp_path / "sweep", seeds=(0,))
    for figure in (switch, attention_fraction):
        first, second = (figure.draw(tmp_path / name, results=folder) for name in ("a", "b"))
        assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, second))


def test_what_cannot_be_drawn_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="has no Oryx trial"):
        groups(record(tmp_path / "stack", kind="stack"))
    with pytest.raises(ValueError, match="has no Oryx trial of other"):
        groups(record(tmp_path / "sweep"), ["other"])
    with pytest.raises(ValueError, match="no variant with the schedule 'switch'"):
        switch.draw(tmp_path / "out", results=record(tmp_path / "single", variants=SINGLE))
    with pytest.raises(ValueError, match="score: unknown 'acuracy'; known: excess, accuracy"):
        attention_fraction.draw(tmp_path / "out", results=tmp_path / "sweep", score="acuracy")
