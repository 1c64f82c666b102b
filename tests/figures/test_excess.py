"""The excess figure: what it reads, what it writes, and what it refuses."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from figures.excess import _spread, draw


def record(folder, rows, version="1"):
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pandas(pd.DataFrame(rows)).replace_schema_metadata({"fastslow.schema": version})
    pq.write_table(table, folder / "results.parquet")
    return folder


def rows(seeds=(0,)):
    return [
        {
            "status": "ok",
            "chosen": True,
            "task": "t",
            "point": "",
            "architecture": name,
            "excess": 0.1 * (i + 1) + 0.01 * seed,
            "excess_se": 0.005,
            "reference.bayes.excess": 0.0,
            "reference.bayes.is_bound": False,
            "reference.window_1.excess": 0.4,
            "reference.window_1.is_bound": False,
            "reference.floor.excess": 0.05,
            "reference.floor.is_bound": True,
        }
        for i, name in enumerate(["attention", "gdn"])
        for seed in seeds
    ]


def test_numbers_and_pictures_are_written(tmp_path):
    paths = draw(tmp_path / "out", results=record(tmp_path / "sweep", rows()))
    assert [path.name for path in paths] == ["excess.png", "excess.svg", "excess.csv"]
    numbers = pd.read_csv(paths[2]).set_index("name")
    assert numbers.excess["gdn"] == pytest.approx(0.2)
    assert numbers.error["gdn"] == pytest.approx(0.005)
    assert numbers.excess["window_1"] == pytest.approx(0.4)
    assert "bayes" not in numbers.index
    assert "floor" not in numbers.index


def test_several_seeds_show_the_spread_over_seeds(tmp_path):
    paths = draw(tmp_path / "out", results=record(tmp_path / "sweep", rows(seeds=(0, 1, 2))))
    numbers = pd.read_csv(paths[2]).set_index("name")
    assert numbers.excess["attention"] == pytest.approx(0.11)
    assert numbers.error["attention"] == pytest.approx(0.01 / np.sqrt(3))
    assert numbers.error_kind["attention"] == "standard error over seeds"


def test_two_drawings_are_the_same_bytes(tmp_path):
    folder = record(tmp_path / "sweep", rows())
    first, second = (draw(tmp_path / name, results=folder) for name in ("a", "b"))
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, second, strict=True))


def test_what_cannot_be_drawn_is_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"results\.parquet"):
        draw(tmp_path, results=tmp_path / "none")
    with pytest.raises(ValueError, match="schema 9"):
        draw(tmp_path, results=record(tmp_path / "old", rows(), version="9"))
    failed = [{**row, "status": "failed"} for row in rows()]
    with pytest.raises(ValueError, match="no finished trial"):
        draw(tmp_path, results=record(tmp_path / "failed", failed))
    with pytest.raises(ValueError, match="window_2"):
        draw(tmp_path, results=record(tmp_path / "sweep", rows()), references=["window_2"])


def test_labels_are_spread_apart_and_keep_their_order():
    spots = _spread(np.array([0.0, 0.01, 0.02, 1.0]), 0.1)
    assert (np.diff(spots) >= 0.1 - 1e-9).all()
    assert spots[3] == 1.0


def test_the_best_of_a_receptive_field_belongs_to_its_architecture(tmp_path):
    limited = [
        {**row, "reference.receptive_field.excess": 0.07 if row["architecture"] == "gdn" else None} for row in rows()
    ]
    numbers = pd.read_csv(draw(tmp_path / "out", results=record(tmp_path / "sweep", limited))[2])
    (own,) = numbers[numbers.kind == "receptive field"].to_dict("records")
    assert (own["name"], own["excess"]) == ("gdn", pytest.approx(0.07))
    assert "receptive_field" not in set(numbers.name)


def test_a_reference_nearer_to_bayes_than_the_axis_is_named_at_its_edge(tmp_path):
    near = [{**row, "reference.window_64.excess": 3.2e-7, "reference.window_64.is_bound": False} for row in rows()]
    near = [{**row, "reference.window_99.excess": -1e-18, "reference.window_99.is_bound": False} for row in near]
    picture = draw(tmp_path / "out", results=record(tmp_path / "sweep", near))[1].read_text()
    assert "window 64: 3e-07" in picture
    assert "window 99: 0" in picture
    assert "off the axis: nearer to Bayes, with its excess" in picture
    assert "off the axis" not in draw(tmp_path / "out", results=record(tmp_path / "other", rows()))[1].read_text()
