"""Hypothesis profiles: `ci` (derandomised), `dev` and `nightly`, chosen by HYPOTHESIS_PROFILE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: threads of two workers wait for each other

os.environ.pop("COLUMNS", None)  # pytest-xdist sets 80, whatever the terminal

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # strategies and oracles are imported by their names

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=50, print_blob=True, **COMMON)
settings.register_profile("dev", max_examples=100, **COMMON)
settings.register_profile("nightly", max_examples=10_000, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU its compilers and libraries warn of themselves, which is no error of ours."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))
