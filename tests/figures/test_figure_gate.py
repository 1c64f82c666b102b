"""The gate's figures, from a recorded sweep of two models on two tasks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from figures import FIGURES, gate, gate_switch
from probes.fields import FieldRecorder
from probes.results import frame, write_table
from probes.task import Batch

LENGTH = 40


@pytest.fixture
def sweep(tmp_path):
    """A sweep's folder: gates that fire in the first three tokens of a regime, and one model without gates."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for task, architecture, seed in (
        ("slow", "amor", 0),
        ("slow", "amor", 1),
        ("slow", "gdn", 0),
        ("recall", "amor", 0),
    ):
        tokens = torch.randint(0, 9, (16, LENGTH), generator=generator)
        regimes = torch.arange(LENGTH)[None].expand(16, -1) // 10 % 2
        latents = {"regimes": regimes} if task == "slow" else {}
        targets = torch.where(torch.arange(LENGTH) >= 12, tokens, -100)
        fire = (torch.arange(LENGTH) % 10 < 3).expand(16, -1)
        recorder, folder = FieldRecorder(), f"{task}-{architecture}-{seed}"
        row = {"task": task, "architecture": architecture, "folder": folder, "model_seed": seed, "point": ""}
        row |= {"status": "ok", "chosen": True, "excess": 0.1}
        if architecture == "amor":
            row |= {"metric.gate.rate": 0.3, "metric.gate.0.rate": 0.3, "metric.gate.1.rate": 0.29}
            fields = {
                f"gate.{k}.{part}": value for k in (0, 1) for part, value in (("fire", fire), ("score", fire * 0.5))
            }
            recorder.add(Batch(tokens, targets, latents), fields)
        rows.append(row)
        (tmp_path / "trials" / folder).mkdir(parents=True)
        np.savez(tmp_path / "trials" / folder / "curves.npz", **recorder.curves())
    write_table(frame(rows), tmp_path / "results.parquet")
    return tmp_path


def test_the_heat_map_has_every_position_of_one_sequence(sweep, tmp_path):
    paths = gate.draw(tmp_path / "out", results=sweep, sequence=2, start=5, positions=20)
    assert [path.name for path in paths] == ["gate.png", "gate.svg", "gate.csv"]
    numbers = pd.read_csv(paths[2])
    assert list(numbers.model.unique()) == ["slow, amor", "recall, amor"]
    first = numbers[numbers.model == "slow, amor"]
    assert list(first.position) == list(range(5, 25))
    assert list(first["0.fire"]) == [float(t % 10 < 3) for t in range(5, 25)]
    assert list(first.scored) == [t >= 12 for t in range(5, 25)]
    assert list(first.regime) == [t // 10 % 2 for t in range(5, 25)]


@pytest.mark.parametrize(("positions", "first"), [(20, 12), (28, 12), (35, 5), (64, 0)])
def test_the_excerpt_begins_at_the_first_scored_position_by_default(sweep, tmp_path, positions, first):
    numbers = pd.read_csv(gate.draw(tmp_path / "out", results=sweep, positions=positions)[2])
    for _, panel in numbers.groupby("model"):
        assert list(panel.position) == list(range(first, min(first + positions, LENGTH)))
        assert list(panel.scored) == [t >= 12 for t in panel.position]


def test_what_the_pictures_show_is_said_in_them(sweep, tmp_path):
    said = gate.draw(tmp_path / "out", results=sweep, positions=20)[1].read_text()
    assert "block 0  30% (30%)" in said  # of 12 to 31: 12, 20, 21, 22, 30, 31
    assert "block 1  30% (29%)" in said
    for words in ("in this excerpt, in brackets over all test sequences", "bold where scored", "the regime changes"):
        assert words in said
    said = gate_switch.draw(tmp_path / "out", results=sweep)[1].read_text()
    for words in (
        "mean over all times since a change",
        "two binomial standard errors",
        "first token of the new regime",
    ):
        assert words in said


def test_the_curve_is_the_rate_by_time_since_the_change(sweep, tmp_path):
    paths = gate_switch.draw(tmp_path / "out", results=sweep)
    numbers = pd.read_csv(paths[2])
    fires = numbers[numbers.field == "fire"]
    assert set(fires.architecture) == {"amor"}
    assert set(fires.task) == {"slow"}
    for row in fires.itertuples():
        assert row.mean == (1.0 if row.tokens < 3 else 0.0)
        assert row.overall == pytest.approx(7 / 28)
    assert sorted(fires[fires.block == 1].tokens) == list(range(10))


@pytest.mark.parametrize("left", [0, 40, 400])
def test_damaged_curves_are_named(sweep, tmp_path, left):
    path = sweep / "trials" / "slow-amor-0" / "curves.npz"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=f"{path} is damaged; remove the folder {path.parent}, and its sweep"):
        gate.draw(tmp_path / "out", results=sweep)


@pytest.mark.parametrize(
    ("module", "dials", "message"),
    [
        (gate, {"sequence": 4}, "sequence: 4 is not recorded; there are 4, from 0"),
        (gate, {"start": -1}, "start: -1 is before the first position; nearest: 0"),
        (gate, {"positions": 0}, "positions: 0 leaves nothing to draw; nearest: 1"),
        (gate, {"start": 40}, "start: 40 is behind the last position, 39"),
        (gate, {"architecture": "gdn"}, "architecture: 'gdn' has no recorded gates"),
        (gate_switch, {"task": "recall"}, "no model with gates on a task whose regime changes"),
    ],
)
def test_dials_that_fit_nothing_are_one_line(sweep, tmp_path, module, dials, message):
    with pytest.raises(ValueError, match=message):
        module.draw(tmp_path / "out", results=sweep, **dials)
    assert {FIGURES["gate"], FIGURES["gate_switch"]} == {"figures.gate", "figures.gate_switch"}
