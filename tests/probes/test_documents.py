"""What README.md and CONTRIBUTING.md show is run: their commands, their files, their YAML, their Python."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from probes.catalogue import load_catalogue
from probes.cli import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TINY = [
    "train.steps=2",
    "train.evaluations=1",
    "evaluate.validation_sequences=4",
    "evaluate.test_sequences=4",
    "evaluate.readout_positions=0",
]
SMALL_SECTIONS = (
    '{"steps": 2, "evaluations": 1}, '
    '"evaluate": {"validation_sequences": 4, "test_sequences": 4, "readout_positions": 0}'
)
TINY_SUITE = """
tasks:
  two_timescale: {length: 24, burn_in: 8, windows: [1, 4]}
suites:
  smoke:
    tasks: [two_timescale]
    architectures: [attention]
    train: {steps: 2, batch_size: 2, evaluations: 1}
    evaluate: {validation_sequences: 4, test_sequences: 4, readout_positions: 0}
    learning_rates: [1e-3]
    smoke: true
"""


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def commands(document: str) -> list[list[str]]:
    """The command lines of a document's shell blocks, comments left out."""
    lines = [line for body in blocks(document, "sh") for line in body.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def tiny(words: list[str]) -> list[str]:
    """The same command on less: the last `--set` of a dial counts."""
    if words[0] == "run":
        return [*words, "--config", "tiny.yaml", *(part for dial in TINY for part in ("--set", dial))]
    if words[0] == "bayes":
        return [*words, "--config", "tiny.yaml", "--sequences", "4"]
    if words[0] == "sweep":
        return [*words, "--config", "tiny.yaml", "--workers", "2"]
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with the files that the documents show, and a small catalogue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("tiny.yaml").write_text(TINY_SUITE)
    for document in ("README.md", "CONTRIBUTING.md"):
        for body in blocks(document, "python"):
            name = re.match(r"# (\w+\.py)\n", body)
            if name:
                Path(name[1]).write_text(body)
    return tmp_path


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_commands_run(document: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("figures.FIGURES", {"excess": "figures.excess"})
    shown = [words[1:] for words in commands(document) if words[0] == "fastslow"]
    assert shown
    for words in shown:
        with pytest.raises(SystemExit) as ended:
            main(tiny(words))
        assert ended.value.code == 0, words
    if document == "README.md":
        assert (folder / "runs" / "figures" / "excess.png").stat().st_size > 0
        assert {path.name for path in (folder / "runs" / "smoke").iterdir()} >= {"results.parquet", "trials"}


@pytest.mark.parametrize("dial", ["vocab=4", "vocab=11", "length=5"])
def test_the_tasks_example_follows_its_own_dials(folder: Path, dial: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bayes", "task:my_tasks.py:Repeat", "--set", f"task.{dial}", "--sequences", "4"])
    assert ended.value.code == 0


def test_every_other_command_is_a_target_of_the_makefile() -> None:
    others = [words for document in ("README.md", "CONTRIBUTING.md") for words in commands(document)]
    others = [words for words in others if words[0] != "fastslow"]
    assert others
    for words in others:
        assert words[0] == "make"
        done = subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_example_of_a_catalogue_is_one(tmp_path: Path) -> None:
    from probes.sweep import expand

    (example,) = blocks("README.md", "yaml")
    path = tmp_path / "example.yaml"
    path.write_text(example)
    catalogue = load_catalogue(path)
    (suite,) = set(catalogue.suites) - set(load_catalogue().suites)
    groups = expand(catalogue.suite(suite), catalogue)
    assert len(groups) == len(catalogue.suite(suite).architectures) * 2


def test_the_python_example_runs(folder: Path) -> None:
    with pytest.raises(SystemExit):
        main(tiny(["sweep", "smoke"]))
    examples = [body for body in blocks("README.md", "python") if not body.startswith("# ")]
    assert examples
    for example in examples:
        small = example.replace('{"steps": 200}', SMALL_SECTIONS).replace('"gdn",', '"gdn", config="tiny.yaml",')
        assert small != example
        exec(compile(small, "README.md", "exec"), {})


def test_the_tables_of_settings_are_complete() -> None:
    from probes.config import Evaluation, Suite, Training

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for section, model in (("`train`", Training), ("`evaluate`", Evaluation), ("suite", Suite)):
        (row,) = re.findall(rf"^\| {section} \| (.*) \|$", text, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(model.model_fields)


def test_the_documented_columns_are_in_the_schema() -> None:
    from probes.results import COLUMNS, PATTERNS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| columns |") : text.index("## Python")]
    named = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    ]
    assert len(named) > 20
    families = {pattern.split(".")[0] for pattern in PATTERNS}
    for name in named:
        first, _, rest = name.partition(".")
        assert (first in families) if rest else (name in COLUMNS), name
