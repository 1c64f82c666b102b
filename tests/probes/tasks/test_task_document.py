"""docs/tasks.md has a section for every kind, and names what the catalogue has."""

from __future__ import annotations

from pathlib import Path

from probes.catalogue import load_catalogue
from probes.tasks import TASKS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_every_kind_has_a_section():
    headings = [line[3:] for line in TEXT.splitlines() if line.startswith("## ")]
    named = {kind for heading in headings for kind in heading.split(" and ")}
    assert set(TASKS) <= named


def test_presets_of_papers_are_explained():
    catalogue = load_catalogue()
    presets = [name for name in catalogue.tasks if name.startswith(("mad_", "needle_r", "needle_long", "mqar_5"))]
    assert len(presets) > 8
    for name in presets:
        assert f"`{name}`" in TEXT, name
