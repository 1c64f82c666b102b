"""`fastslow bayes`: the exact references, a table over a dial, a table of all tasks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from probes.catalogue import load_catalogue
from probes.cli import main
from probes.cli_bayes import read_axis
from probes.scoring import EvaluationSet, ratio
from probes.settings import CatalogueError

SMALL = {"length": 24, "burn_in": 4, "vocab": 5, "windows": [1, 6]}
SETS = [part for key, value in SMALL.items() for part in ("--set", f"task.{key}={value}")]


def bayes(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["bayes", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[str, list[str]]:
    """Cells by the first one of their row."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]
    return {line[0]: line[1:] for line in lines}


def test_it_prints_what_scoring_says(capsys: pytest.CaptureFixture[str]) -> None:
    task = load_catalogue().make_task("two_timescale", SMALL)
    scores = EvaluationSet(task, 3, "test", 32).score()
    shown = rows(bayes(capsys, "two_timescale", *SETS, "--sequences", "32", "--seed", "3"))
    assert shown["vocab"] == ["5"]
    for name, sums in scores.items():
        nats, excess, accuracy = shown[name]
        assert nats == "{:.4f} ± {:.4f}".format(*ratio(sums.nll, sums.count))
        assert excess == ("0" if name == "bayes" else "{:.4f} ± {:.4f}".format(*sums.excess()))
        assert accuracy == "{:.4f} ± {:.4f}".format(*sums.accuracy())


def test_with_one_regime_no_restriction_on_memory_costs_anything(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("--set", "task.regimes=1", "--set", "task.switch_rate=0.0", "--sequences", "8")
    shown = rows(bayes(capsys, "two_timescale", *SETS, *one))
    for name in ("window_1", "window_6_stationary", "fixed_decay_0.2"):
        assert shown[name][1] == "0.0000 ± 0.0000"
    assert float(shown["unigram"][1].split()[0]) > 0.01


def test_a_sweep_is_a_table_over_the_dial(capsys: pytest.CaptureFixture[str]) -> None:
    text = bayes(capsys, "two_timescale", *SETS, "--sequences", "16", "--sweep", "task.overlap=0.0:1.0:3")
    shown = rows(text)
    assert shown["task.overlap"] == ["0", "0.5", "1", "largest s.e."]
    assert shown["window_1"][0] == "0.0000"
    assert float(shown["window_1"][1]) < float(shown["window_1"][2])
    alone = rows(bayes(capsys, "two_timescale", *SETS, "--sequences", "16", "--set", "task.overlap=0.5"))
    assert alone["window_1"][1].split()[0] == shown["window_1"][1]
    assert "…" not in text


def test_all_tasks_are_in_one_table(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(
        "tasks:\n" + "".join(f"  {name}: {{kind: two_timescale, length: 24, burn_in: 4}}\n" for name in "ab")
    )
    text = bayes(capsys, "--all", "--sequences", "2", "--config", str(config))
    tasks = [line.split()[0] for line in text.splitlines() if re.search(r"\bbayes +\d", line)]
    assert tasks == list(load_catalogue(config).tasks)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("task.a=0.1:1.0:10", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ("task.a=1:9:5", [1, 3, 5, 7, 9]),
        ("task.a=1:2:3", [1.0, 1.5, 2.0]),
        ("task.a=1e-3:2e-3:2", [1e-3, 2e-3]),
        ("task.a=[1, x, null]", [1, "x", None]),
    ],
)
def test_axes(text: str, values: list[Any]) -> None:
    key, read = read_axis(text)
    assert key == "task.a"
    assert read == values
    assert list(map(type, read)) == list(map(type, values))


@pytest.mark.parametrize(
    "text",
    ["task.a", "a=1:2:3", "train.steps=1:2:3", "task.a=1:2", "task.a=1:2:x", "task.a=1:2:1", "task.a=[]", "task.a=3",
     "task.a=1:2:2.5", "task.a=a:b:3", "task.a=[1"],
)  # fmt: skip
def test_wrong_axes_are_named(text: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(f"--sweep {text}: ")):
        read_axis(text)
