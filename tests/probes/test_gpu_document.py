"""The tables of docs/gpu.md say what was recorded."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
COLUMNS = ("eager_ms", "graph_1_ms", "compiled_1_ms", "graph_16_ms", "compiled_16_ms")
SHAPES = {"B 64, T 64": "small", "B 256, T 256": "wide", "B 64, T 512": "long"}
MODELS = {"attention": "attention", "gated delta rule": "gdn", "Mamba-2": "mamba2"}


def record(name):
    return json.loads((DOCS / "recorded" / name).read_text())


def table(section, number=0):
    """The rows of a table of a section, the first or a later one, cell by cell."""
    text = (DOCS / "gpu.md").read_text().split(f"# {section}\n", 1)[1].split("\n#", 1)[0]
    tables = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    lines = [line.strip("|").split("|") for line in tables[number].splitlines()]
    return [[cell.strip(" *") for cell in line] for line in lines[2:]]


def as_printed(value, cell):
    return f"{value:.{len(cell.partition('.')[2])}f}"


def test_times_of_training_steps():
    measured = [each for run in record("train_h200.json")["runs"] for each in run["measurements"]]
    shape, seen = None, 0
    for row in table("How fast"):
        shape = next((name for start, name in SHAPES.items() if row[0].startswith(start)), shape)
        for key, cell in zip(COLUMNS, row[2:7], strict=True):
            of_it = [
                m[key] for m in measured if (m["shape"], m["architecture"]) == (shape, MODELS[row[1]]) and key in m
            ]
            assert cell in {as_printed(value, cell) for value in of_it}, (row[:2], key, cell)
            seen += 1
    assert seen == 25


def test_aims_that_are_said_to_be_reached_are():
    rows = table("How fast")
    reached = [float(row[6]) <= float(row[7]) for row in rows]
    assert (sum(reached), len(reached)) == (3, 5)
    assert "Three of the five aims are reached" in (DOCS / "gpu.md").read_text()


@pytest.mark.parametrize("architecture", ["attention", "sliding", "mamba2", "gdn", "serial_gdn", "amor_gdn", "oryx_tm"])
def test_packs_agree_with_single_trials(architecture):
    found = record("agreement_h200.json")["runs"][1]["summary"][architecture]
    (row,) = [row for row in table("Packs, precision and several GPUs") if row[0] == architecture]
    excess = found["pack"]["excess"]
    assert row[1] == as_printed(sum(excess) / len(excess), row[1])
    assert row[2] == as_printed(found["pack"]["sd"], row[2])
    assert row[3] == f"{found['alone']['in_sd']:+.2f}"
    assert row[4] == (f"{found['compiled']['in_sd']:+.2f}" if "compiled" in found else "")


def test_precision():
    rows = {row[0]: row[1:] for row in table("Packs, precision and several GPUs", 1)}
    for run in record("precision_cpu.json")["runs"]:
        for architecture, found in run["summary"].items():
            half, full = found["pack"], found["float32"]
            mean, spread, shift, largest = rows.pop(architecture)
            assert mean == as_printed(sum(half["excess"]) / len(half["excess"]), mean)
            assert spread == as_printed(half["sd"], spread)
            assert shift == f"{full['in_sd']:+.3f}"
            each = zip(half["excess"], full["excess"], strict=True)
            assert largest == as_printed(max(abs(one - other) for one, other in each), largest)
    assert not rows


def test_two_devices():
    text = " ".join((DOCS / "gpu.md").read_text().split())
    for run in record("devices_h200.json")["runs"]:
        one, two = (each["whole_seconds"] for each in run["runs"])
        assert f"{one:.1f} s against {two:.1f} s, {run['whole']:.3f}" in text
