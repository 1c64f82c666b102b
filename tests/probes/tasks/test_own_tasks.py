"""A user's own task that breaks the contract is told so in one line, before anything is computed from it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import probes
from probes.catalogue import CatalogueError, load_catalogue
from probes.cli import main
from probes.scoring import BeatenBayes, EvaluationSet, ratio, refuse_beaten
from probes.task_check import make_checked
from probes.tasks import TASKS

TASK = """import torch

from probes.task import Batch, Reference, Task, TaskError


class Coin(Task):
    name, version = "coin", 1
    certainty = {"bayes": (0.5, 0.5)}

    def __init__(self, length: int = 4) -> None:
        if length < 1:
            raise TaskError(f"length = {length}: nearest: 1")
        self.settings = {"length": length}
        self.vocab_size, self.length = 2, length

    def dials(self):
        return self.settings

    def draw(self, generator, batch_size):
        return (torch.rand(batch_size, self.length, generator=generator) < 0.5).long()

    def sample(self, generator, batch_size):
        tokens = self.draw(generator, batch_size)
        return Batch(tokens, tokens)

    def references(self):
        return {name: Fixed(p) for name, p in self.certainty.items()}


class Fixed(Reference):
    def __init__(self, p):
        self.log_p = torch.tensor(p, dtype=torch.float64).log()

    def log_prob(self, batch):
        return self.log_p[batch.tokens]

    def log_predictive(self, batch):
        return self.log_p.expand(int(batch.scored.sum()), 2)


class NoBayes(Coin):
    certainty = {"window_1": (0.5, 0.5)}


class Outside(Coin):
    def draw(self, generator, batch_size):
        return super().draw(generator, batch_size) + 1


class Abstract(Task):
    name, version = "abstract", 1


class Restless(Coin):
    def draw(self, generator, batch_size):
        return torch.randint(2, (batch_size, self.length))


class Short(Coin):
    def draw(self, generator, batch_size):
        return super().draw(generator, batch_size)[:, 1:]


class Floats(Coin):
    def draw(self, generator, batch_size):
        return super().draw(generator, batch_size).float()


class Unscored(Coin):
    def sample(self, generator, batch_size):
        tokens = self.draw(generator, batch_size)
        return Batch(tokens, torch.full_like(tokens, -100))


class Listed(Coin):
    def sample(self, generator, batch_size):
        return self.draw(generator, batch_size)


class Sizeless(Coin):
    vocab_size = None

    def __init__(self):
        self.settings, self.length = {}, 4


class Failing(Coin):
    def references(self):
        return {"bayes": {}["absent"]}


class Bare(Coin):
    def references(self):
        return {"bayes": None}


class Mistaken(Coin):
    certainty = {"bayes": (0.9, 0.1), "window_1": (0.5, 0.5)}


class Certain(Coin):
    certainty = {"bayes": (1.0, 0.0)}


class Sure(Coin):
    certainty = {"bayes": (0.5, 0.5), "window_1": (0.0, 1.0)}
"""
FAULTS = {
    "NoBayes": "NoBayes.references has no 'bayes', the exact predictor (it has: window_1)",
    "Outside": "Outside.sample: tokens[0, ",
    "Abstract": "Abstract lacks dials(), references(), sample(), which every task has",
    "Restless": "Restless.sample gives other sequences for the same generator; draw from `generator` alone",
    "Short": "Short.sample: tokens is torch.int64 (64, 3), not torch.int64 (64, 4), as `length` says",
    "Floats": "Floats.sample: tokens is torch.float32 (64, 4), not torch.int64 (64, 4)",
    "Unscored": "Unscored.sample: no position is scored: every target is -100",
    "Listed": "Listed.sample returns a Tensor, not a probes.task.Batch",
    "Sizeless": "Sizeless lacks 'vocab_size', which is to be of type int",
    "Failing": "Failing.references: KeyError: 'absent' (own.py, line ",
    "Bare": "Bare: reference bayes is a NoneType, not a probes.task.Reference",
}
OUTSIDE = "= 2 is outside the vocabulary of 2; nearest: 1"


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("own.py").write_text(TASK)
    return lambda name: f"task:own.py:{name}"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("command", [["bayes"], ["run", "gdn"]])
def test_a_faulty_task_is_told_in_one_line(own, capsys, name, command):
    words = [command[0], own(name), *command[1:]]
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (1, "")
    assert FAULTS[name] in err
    assert name != "Outside" or OUTSIDE in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_sound_task_is_taken_and_its_own_refusals_stay(own, capsys):
    assert load_catalogue().make_task(own("Coin")).vocab_size == 2
    with pytest.raises(ValueError, match="length = 0: nearest: 1"):
        load_catalogue().make_task(own("Coin"), {"length": 0})
    with pytest.raises(CatalogueError, match="TypeError"):
        load_catalogue().make_task(own("Coin"), {"length": "four"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mistaken", "coin: window_1 beats bayes by 0.4"),
        ("Certain", "coin: bayes gives probability 0 to a target that occurs"),
    ],
)
def test_a_bayes_that_is_beaten_is_an_error(own, capsys, name, says):
    with pytest.raises(SystemExit) as ended:
        main(["bayes", own(name)])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_trial_fails_before_its_first_step_where_bayes_is_beaten(own, tmp_path):
    train = {"steps": 2, "batch_size": 2, "evaluations": 1}
    scored = {"validation_sequences": 128, "test_sequences": 4, "readout_positions": 0}
    sets = {"arch": {"d_model": 16}, "train": train, "evaluate": scored}
    result = probes.run(own("Mistaken"), "attention", out=tmp_path / "runs", sets=sets)
    assert result.row["status"] == "failed"
    assert result.row["error"].startswith("BeatenBayes: coin: window_1 beats bayes by 0.")
    assert result.row["train_seconds"] == 0
    assert probes.run(own("Coin"), "attention", out=tmp_path / "runs", sets=sets).row["status"] == "ok"


def test_a_rare_token_outside_the_vocabulary_is_found_when_sequences_are_scored(own):
    task = load_catalogue().make_task(own("Coin"))
    whole = task.sample

    def rarely(generator, batch_size):
        batch = whole(generator, batch_size)
        batch.tokens[200:, 1] = 7
        return batch

    task.sample = rarely
    EvaluationSet(task, 0, "test", 200)
    with pytest.raises(ValueError, match="coin: token 7 is outside the vocabulary of 2"):
        EvaluationSet(task, 0, "test", 201)


def test_a_reference_that_rules_out_what_occurs_is_infinitely_worse_and_no_error(own, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bayes", own("Sure")])
    assert ended.value.code == 0
    assert "inf" in capsys.readouterr().out
    assert ratio(np.array([1.0, math.inf]), np.ones(2)).mean == math.inf


def test_chance_alone_never_beats_bayes(own):
    """A reference that is better on every one of a few sequences is not yet evidence against an exact Bayes."""
    task = load_catalogue().make_task(own("Mistaken"))
    for seed in range(20):
        refuse_beaten(task, EvaluationSet(task, seed, "test", 4).score())
    with pytest.raises(BeatenBayes):
        refuse_beaten(task, EvaluationSet(task, 0, "test", 256).score())


@pytest.mark.parametrize("kind", ["two_timescale", "copy", "markov"])
def test_a_shipped_task_passes_what_is_asked_of_a_users(kind):
    module, name = TASKS[kind].split(":")
    made = getattr(__import__(module, fromlist=[name]), name)
    assert make_checked(made, {}).vocab_size > 0
