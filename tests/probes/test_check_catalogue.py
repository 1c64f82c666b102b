"""Every architecture of the catalogue keeps the contract, and `fastslow check` says which one does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from architectures.check import ITEMS, check
from probes.catalogue import load_catalogue
from probes.cli import main

CATALOGUE = load_catalogue()
LOOKS_AHEAD = """
import torch


class Mean(torch.nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x.mean(1, keepdim=True).expand_as(x))
"""


@pytest.mark.parametrize("name", CATALOGUE.architectures)
def test_every_architecture_passes(name: str) -> None:
    results = check(CATALOGUE.make_spec(name, vocab_size=16))
    assert [result.name for result in results] == list(ITEMS)
    assert [result for result in results if result.status != "pass"] == []


def run(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["check", *words])
    return ended.value.code


def test_the_command_passes_a_sound_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sliding", "--task", "two_timescale", "--set", "arch.d_model=16", "--set", "task.vocab=5") == 0
    out = capsys.readouterr().out
    assert "(2, T, 5)" in out
    assert "1 of 1 architectures pass" in out
    assert all(item in out for item in ITEMS)


def test_the_command_fails_one_that_looks_ahead(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("mine.py").write_text(LOOKS_AHEAD)
    assert run("mixer:mine.py:Mean") == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    status = {line[0]: line[1] for line in lines if {"pass", "fail", "skip"} & set(line[1:2])}
    assert status == {
        "shapes": "pass",
        "causality": "fail",
        "gradients": "pass",
        "decoding": "skip",
        "determinism": "pass",
    }
    assert ["0", "of", "1", "architectures", "pass"] in lines
