"""Recorded files that are cut off: one line with the path and the remedy, from every command that reads them."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import probes
from probes.cli import main
from probes.results import CorruptRecord, read_table

SETS = {
    "task": {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 12, "burn_in": 2, "windows": [1]},
    "arch": {"d_model": 16, "d_ff": 16},
    "train": {"steps": 2, "batch_size": 4},
    "evaluate": {"validation_sequences": 8, "test_sequences": 8},
}
SUITE = """suites:
  own:
    tasks: [two_timescale]
    architectures: [attention]
    learning_rates: [0.01]
    smoke: true
    task: {regimes: 2, vocab: 4, overlap: 1.0, switch_rate: 0.1, length: 12, burn_in: 2, windows: [1]}
    arch: {d_model: 16, d_ff: 16}
    train: {steps: 2, batch_size: 4}
    evaluate: {validation_sequences: 8, test_sequences: 8}
"""
TRAINED_AGAIN = "and the same command trains it again"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished trial."""
    out = tmp_path_factory.mktemp("recorded")
    probes.run("two_timescale", "attention", out=out, sets=SETS)
    return out


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert out == ""
    assert err.count("\n") == 1
    return err


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    "damage", [lambda path: cut(path), lambda path: path.write_text(""), lambda path: path.write_text("3")]
)
def test_a_damaged_row_is_named_by_the_report(recorded: Path, tmp_path: Path, capsys, damage) -> None:
    folder = shutil.copytree(recorded, tmp_path / "copy")
    (path,) = folder.glob("trials/*/result.json")
    damage(path)
    for given in (folder, path.parent):
        err = fails(capsys, "report", str(given))
        assert err.startswith(f"fastslow: {path} is damaged (")
        assert err.endswith(f"; remove the folder {path.parent}, {TRAINED_AGAIN}\n")
    with pytest.raises(CorruptRecord, match=re.escape(str(path))):
        probes.load(folder)


def test_a_damaged_recipe_is_named(recorded: Path, tmp_path: Path, capsys) -> None:
    folder = shutil.copytree(recorded, tmp_path / "copy")
    (path,) = folder.glob("trials/*/trial.json")
    cut(path)
    assert f"{path} is damaged (" in fails(capsys, "report", str(folder))
    with pytest.raises(CorruptRecord, match=re.escape(str(path))):
        probes.load(path.parent)


def test_a_sweep_names_a_damaged_row_before_anything_else_and_trains_it_again(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("own.yaml").write_text(SUITE)
    words = ["sweep", "own", "--config", "own.yaml", "--workers", "1"]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    capsys.readouterr()
    (path,) = Path("runs/own").glob("trials/*/result.json")
    whole = path.read_bytes()
    cut(path)
    err = fails(capsys, *words)
    assert f"{path} is damaged (" in err
    assert TRAINED_AGAIN in err
    shutil.rmtree(path.parent)
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert "found finished" not in capsys.readouterr().out
    assert len(path.read_bytes()) > len(whole) // 2
    table = cut(Path("runs/own/results.parquet"))
    assert fails(capsys, "report", "runs/own").endswith("; remove it, and the same sweep writes it again\n")
    with pytest.raises(CorruptRecord, match=re.escape(str(table))):
        read_table(Path("runs/own"))
