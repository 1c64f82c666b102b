"""Recipes in one results folder: kept apart where there is no table, counted where a table leaves them out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from probes import cli_common, cli_report, sweep
from probes.cli_recipes import keep_apart, left_out
from probes.config import Suite
from probes.results import write_table


def trial(
    folder: Path, name: str, *, lr: float = 0.1, seed: int = 0, width: int = 8, **train: int
) -> dict[str, object]:
    """A finished trial's folder, and its row."""
    place = folder / "trials" / name
    place.mkdir(parents=True)
    recipe = {
        "task": {"settings": {"length": 3}},
        "architecture": {"mixers": {"gdn": {"head_dim": width}}},
        "train": {"steps": 4, "lr": lr, **train},
        "evaluate": {"control": {}},
    }
    row = {"trial": name, "task": "t", "architecture": "a", "point": "", "folder": name, "model_seed": seed}
    (place / "trial.json").write_text(json.dumps(recipe))
    (place / "result.json").write_text(json.dumps(row))
    return row


def test_recipes_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        [
            trial(tmp_path, "one"),
            trial(tmp_path, "two", steps=8, lr=0.2),
            trial(tmp_path, "three", steps=8),
            trial(tmp_path, "four", width=16),
        ]
    )
    keep_apart(rows, tmp_path)
    assert rows["point"].tolist() == [
        "arch.mixers.gdn.head_dim=8 train.steps=4",
        "arch.mixers.gdn.head_dim=8 train.steps=8",
        "arch.mixers.gdn.head_dim=8 train.steps=8",
        "arch.mixers.gdn.head_dim=16 train.steps=4",
    ]
    same = rows[1:3].assign(point="").reset_index(drop=True)
    keep_apart(same, tmp_path)
    assert same["point"].tolist() == ["", ""]


def test_a_table_of_all_trials_leaves_none_out(tmp_path: Path) -> None:
    table = pd.DataFrame([trial(tmp_path, "one"), trial(tmp_path, "two", lr=0.2)])
    assert left_out(table, tmp_path) == ""
    assert left_out(table, tmp_path / "copied") == ""


@pytest.mark.parametrize(
    ("others", "unfinished", "says"),
    [
        ([{"steps": 8}], 0, "1 finished trial of another recipe in this folder (train.steps=8)."),
        (
            [{"steps": 8}, {"steps": 8, "lr": 0.3}],
            0,
            "2 finished trials of another recipe in this folder (train.steps=8).",
        ),
        (
            [{"width": 16}],
            2,
            "1 finished and 2 unfinished trials of another recipe in this folder (arch.mixers.gdn.head_",
        ),
        ([{"lr": 0.3}, {"seed": 1}], 0, "2 finished trials of another recipe in this folder (train.lr=0.3, seed 1)."),
        ([], 1, "1 unfinished trial of another recipe in this folder."),
    ],
)
def test_trials_of_another_recipe_are_counted(tmp_path: Path, others, unfinished: int, says: str) -> None:
    table = pd.DataFrame([trial(tmp_path, "one")])
    for number, dials in enumerate(others):
        trial(tmp_path, f"other-{number}", **dials)
    for number in range(unfinished):
        checkpoint = tmp_path / ".partial" / f"unfinished-{number}" / "checkpoint.pt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
    assert left_out(table, tmp_path).startswith(f"Not in this table: {says}")


def test_a_report_says_what_its_table_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sweep of another recipe is begun in the folder of one that has ended."""
    text = io.StringIO()
    for module in (cli_report, cli_common):
        monkeypatch.setattr(module, "console", Console(file=text, width=300, highlight=False))
    suite = Suite(
        tasks=["parity"],
        architectures=["attention"],
        learning_rates=[1e-3],
        task={"length": 4},
        arch={"d_model": 8, "d_ff": 8},
        train={"steps": 2, "batch_size": 2, "warmup": 1, "evaluations": 1},
        evaluate={"validation_sequences": 4, "test_sequences": 4},
        smoke=True,
    )
    first = sweep.run(suite, out=tmp_path, name="sweep", workers=1)
    cli_report.print_report(tmp_path / "sweep")
    assert "Not in this table" not in text.getvalue()
    sweep.run(suite, out=tmp_path, name="sweep", workers=1, sets={"train": {"steps": 3}})
    write_table(first, tmp_path / "sweep" / "results.parquet")
    cli_report.print_report(tmp_path / "sweep")
    assert "Not in this table: 1 finished trial of another recipe in this folder (train.steps=3). " in text.getvalue()
