"""docs/oryx.md: its example runs, and its tables list what there is."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import yaml

from architectures import resolve
from figures import FIGURES
from probes.catalogue import load_catalogue
from probes.config import Evaluation, Training
from probes.controls import SCHEDULES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "oryx.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_decodes_to_the_full_pass():
    (code,) = blocks("python")
    found = {}
    torch.manual_seed(0)
    exec(compile(code, "oryx.md", "exec"), found)
    torch.testing.assert_close(found["last"], found["logits"][:, 63], atol=1e-5, rtol=1e-5)


def test_every_schedule_is_in_the_table():
    listed = set(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE))
    names = {name for cell in listed for name in re.findall(r"`(\w+)`", cell)}
    assert {name for name, target in SCHEDULES.items() if target.startswith("probes.schedules:")} <= names


def test_fields_have_the_defaults_of_the_table():
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \| `?([\w ]+?)`? \| `?([\w ]+?)`? \|", TEXT, re.MULTILINE)
    specs = [resolve({"kind": "oryx", "vocab_size": 2, "mixer": mixer}) for mixer in ("mamba2", "gdn")]
    checked = 0
    for first, second, *shown in rows:
        for field in filter(None, (first, second)):
            for spec, text in zip(specs, shown, strict=True):
                if field in spec:
                    value = spec[field][0] if isinstance(spec[field], list) else spec[field]
                    assert str(value) == text, field
                    checked += 1
    assert checked == 18


def test_its_settings_and_names_exist():
    (text,) = blocks("yaml")
    settings = yaml.safe_load(text)
    Training(**settings["train"])
    Evaluation(**settings["evaluate"])
    catalogue = load_catalogue()
    assert "oryx-smoke" in catalogue.suites
    assert {"oryx_tm", "oryx_tg"} <= set(catalogue.architectures)
    assert {"switch", "attention_fraction"} <= set(FIGURES)
