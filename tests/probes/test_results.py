"""The published schema: what a row may hold, and that a table comes back as it was written."""

import math

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probes
from probes.results import COLUMNS, CURVES, PATTERNS, frame, read_row, read_table, write_json, write_table

SETS = {
    "task": {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 40, "burn_in": 32, "windows": [1]},
    "arch": {"d_model": 16, "d_ff": 16},
    "train": {"steps": 2, "batch_size": 4},
    "evaluate": {"validation_sequences": 8, "test_sequences": 8},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return probes.run("two_timescale", "sliding", out=tmp_path_factory.mktemp("out"), sets=SETS)


def test_every_column_is_in_the_schema(result):
    prefixes = tuple(pattern.split(".")[0] + "." for pattern in PATTERNS)
    assert not [name for name in result.row if name not in COLUMNS and not name.startswith(prefixes)]


def test_every_curve_is_in_the_schema(result):
    known = {part.strip().split("/")[0] for names in CURVES for part in names.split(",")}
    assert {name.split("/")[0] for name in result.curves} <= known


def test_a_sliding_model_has_the_window_of_its_receptive_field(result):
    assert result.row["receptive_field"] == 7
    assert result.row["reference.receptive_field.margin_se"] > 0


def test_the_distance_from_each_reference_is_beside_that_of_the_nearest(result):
    nearest = result.row["behaves_like"]
    distance = {
        name: result.row[f"reference.{name}.to_model"]
        for name in ("bayes", "window_1", "window_1_stationary", "unigram", "fixed_decay_0.2", "receptive_field")
    }
    assert distance[nearest] == min(distance.values())
    assert result.row[f"reference.{nearest}.farther"] == result.row[f"reference.{nearest}.farther_se"] == 0
    for name in set(distance) - {nearest}:
        assert result.row[f"reference.{name}.farther"] == pytest.approx(distance[name] - distance[nearest])
        assert result.row[f"reference.{name}.farther_se"] > 0


def test_a_table_comes_back_as_it_was_written(result, tmp_path):
    table = frame([{**result.row, "chosen": True, "lr_at_edge": False}])
    write_table(table, tmp_path / "results.parquet")
    again = read_table(tmp_path)
    pd.testing.assert_frame_equal(again, table, check_dtype=False)
    assert list(table.columns[: len(COLUMNS)]) == list(COLUMNS)


def test_a_failed_row_beside_a_finished_one_keeps_the_types(result):
    failed = {name: result.row.get(name) for name in ("trial", "folder", "task", "architecture", "lr")}
    table = frame([{**result.row, "chosen": True, "lr_at_edge": False}, {**failed, "status": "failed"}])
    assert table.excess.dtype == "float64"
    assert table["status"].tolist() == ["ok", "failed"]
    assert table.parameters.isna().tolist() == [False, True]


def test_another_schema_version_is_refused(tmp_path):
    table = pa.table({"excess": [0.1]}).replace_schema_metadata({"fastslow.schema": "0"})
    pq.write_table(table, tmp_path / "results.parquet")
    with pytest.raises(ValueError, match="results schema 0"):
        read_table(tmp_path)


def test_numbers_without_a_word_in_json_come_back(tmp_path):
    write_json(tmp_path / "result.json", {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 1.5, "e": "text"})
    assert read_row(tmp_path) == {"a": math.inf, "b": -math.inf, "c": None, "d": 1.5, "e": "text"}
