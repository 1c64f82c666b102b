"""Figures and benchmarks keep the contract that the command relies on, and take their dials from `--set`."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

import probes.bench
from figures import FIGURES
from probes.cli import main
from probes.cli_figures import benchmark
from probes.cli_list import summary

BENCHES = {found.name: f"probes.bench.{found.name}" for found in iter_modules(probes.bench.__path__)}
FAKE = '''
"""Writes its dials."""
DIALS = {"overlap": 0.4, "widths": [1, 2]}


def draw(out, *, overlap=0.4, widths=(1, 2)):
    path = out / "fake.txt"
    path.write_text(f"{overlap} {widths}")
    return [path]
'''


MODULES = [*((name, "draw") for name in FIGURES.values()), *((name, "run") for name in BENCHES.values())]


@pytest.mark.parametrize(("module", "function"), MODULES)
def test_dials_are_the_keyword_arguments_with_their_defaults(module: str, function: str) -> None:
    """None stands for a list in `DIALS`; a function may also take all dials as `**dials`."""
    loaded = importlib.import_module(module)
    out, *dials = inspect.signature(getattr(loaded, function)).parameters.values()
    assert out.name == "out"
    assert summary(module)
    if any(dial.kind is dial.VAR_KEYWORD for dial in dials):
        return
    assert {dial.name for dial in dials} == set(loaded.DIALS)
    for dial in dials:
        assert dial.default is None or dial.default == loaded.DIALS[dial.name]


@pytest.mark.parametrize("name", FIGURES)
def test_every_dial_of_a_figure_has_its_line(name: str) -> None:
    loaded = importlib.import_module(FIGURES[name])
    assert list(loaded.ABOUT) == list(loaded.DIALS)
    assert all(text and len(text) <= 100 for text in loaded.ABOUT.values())


def test_the_dials_of_figures_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.cli_common.console.width", 200)
    with pytest.raises(SystemExit, match="0"):
        main(["ls", "figures"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "attention_fraction results runs/oryx-smoke a sweep's folder" in lines
    assert "score excess excess (nats over Bayes) or accuracy" in lines
    assert "start null the first of them; null for the first scored one" in lines
    assert "bits [2, 8, 16, 32] bits that a coordinate of the state holds" in " ".join(lines)
    with pytest.raises(SystemExit, match="0"):
        main(["figures", "--help"])
    assert "fastslow ls figures" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fake_figure.py").write_text(FAKE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr("figures.FIGURES", {"fake": "fake_figure"})
    return tmp_path


def figures(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["figures", *words])
    return ended.value.code


def test_dials_are_set_with_or_without_their_section(fake: Path) -> None:
    assert figures("fake", "--set", "task.overlap=1.0", "--set", "widths=[4, 8.5]", "--out", "drawn") == 0
    assert (fake / "drawn" / "fake.txt").read_text() == "1.0 [4, 8.5]"


@pytest.mark.parametrize(
    ("figure", "dial", "message"),
    [
        ("gate", "start=x", "gate's start is a whole number, or null"),
        ("gate", "task=3", "gate's task is text, or null"),
        ("excess", "references=window_1", "excess's references is a list, or null"),
        ("excess", "references=[3]", "excess's references is a list, or null"),
        ("selection_inflation", "results=[a]", "selection_inflation's results is text, or null"),
    ],
)
def test_a_dial_without_a_default_has_its_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: str, dial: str, message: str
) -> None:
    assert figures(figure, "--set", dial, "--out", str(tmp_path / "out")) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_all_are_drawn_into_the_default_folder(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures() == 0
    assert (fake / "runs" / "figures" / "fake.txt").read_text() == "0.4 (1, 2)"
    assert capsys.readouterr().out.strip() == "runs/figures/fake.txt"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fake", "--set", "overlp=1"), "fake has no dial 'overlp'; nearest is 'overlap'"),
        (("fake", "--set", "overlap"), "expected DIAL=VALUE"),
        (("fake", "--set", "widths=3"), "fake's widths is a list, as [1, 2]"),
        (("fake", "--set", "widths=[a]"), "fake's widths is a list, as [1, 2]"),
        (("fake", "--set", "overlap=high"), "fake's overlap is a number, as 0.4"),
        (("fake", "--set", "overlap=["), "is not a YAML value"),
        (("--set", "overlap=1"), "name the figure whose dial this is"),
    ],
)
def test_wrong_dials_are_named(
    fake: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert figures(*words) == 1
    assert message in capsys.readouterr().err
    assert not (fake / "runs").exists()


def test_a_figure_without_its_results_is_named_and_the_others_are_drawn(
    fake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("figures.FIGURES", {"excess": "figures.excess", "fake": "fake_figure"})
    assert figures() == 1
    out, err = capsys.readouterr()
    assert err.startswith("fastslow: excess is not drawn: results: runs/smoke has no results.parquet; ")
    assert out.strip() == "runs/figures/fake.txt"


@pytest.mark.parametrize(
    ("name", "sets", "said"),
    [
        ("canary", ["device=cpuu"], "canary's device=cpuu: no such device; nearest is 'cpu'"),
        ("train", ["device=cpu", "shapes=[small, smal]"], "unknown shapes 'smal'; nearest is 'small'"),
        ("train", ["device=cpu", "precision=bf17"], "unknown precision 'bf17'; nearest is 'bf16'"),
        ("train", ["device=cpu", "packs=[0]"], "packs is at least 1, not 0"),
        ("train", ["device=cpu", "steps=-3"], "steps is at least 1, not -3"),
        ("canary", ["device=cpu", "precisions=[fp8]"], "unknown precisions 'fp8'"),
        ("canary", ["device=cpu", "lengths=[0]"], "lengths is at least 1, not 0"),
        ("canary", ["device=cpu", "architectures=[gdn, gdm]"], "gdm"),
        ("agreement", ["device=cpu", "alone=5", "seeds=1"], "alone: 5 of 1 seeds; nearest is 1"),
        ("agreement", ["device=cpu", "compiled=[gdm]"], "compiled: 'gdm' is none of the architectures"),
        ("devices", ["devices=cpu"], "expected a list, as [cuda:0, cuda:1]"),
        ("devices", ["devices=[cpu, cpuu]"], "devices=cpuu: no such device"),
    ],
)
def test_a_benchmark_refuses_a_bad_dial_before_it_writes(tmp_path, name, sets, said):
    with pytest.raises(ValueError) as raised:
        benchmark(name, out=tmp_path, sets=sets)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
