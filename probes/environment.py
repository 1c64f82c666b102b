"""Where and how a trial ran: recorded beside its result, never part of its identity."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

COMPARED = ("device", "device_name", "precision", "kernels", "threads", "torch", "fastslow", "commit")
"""Trials that differ in one of these are not put into one table unless asked for."""


@cache
def commit() -> str | None:
    """The source's commit: of the checkout that the packages lie in (`+` appended where tracked files are changed),
    else the one that the build recorded, else None."""
    package = Path(__file__).resolve().parent
    root = package.parent
    if (root / ".git").exists() and (root / "pyproject.toml").exists():
        try:
            head = _git(root, "rev-parse", "HEAD").strip()
            return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no").strip() else "")
        except (OSError, subprocess.CalledProcessError):
            pass
    recorded = package / "_commit.txt"
    return recorded.read_text().strip() or None if recorded.exists() else None


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout


def version() -> str:
    """The installed distribution's version; `0+source` where the packages are used without being installed."""
    try:
        return metadata.version("fastslow")
    except metadata.PackageNotFoundError:
        return "0+source"


def describe(device: str, *, precision: str, kernels: str) -> dict[str, Any]:
    """The environment of a run on `device` as plain data."""
    import numpy
    import torch

    cuda = torch.device(device).type == "cuda"
    return {
        "device": torch.device(device).type,
        "device_name": torch.cuda.get_device_name(device) if cuda else _processor(),
        "precision": precision,
        "kernels": kernels,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "fastslow": version(),
        "commit": commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def difference(first: dict[str, Any], second: dict[str, Any]) -> str | None:
    """The first compared field in which two environments differ, as `name: a against b`; None where they agree."""
    for name in COMPARED:
        if first.get(name) != second.get(name):
            return f"{name}: {first.get(name)} against {second.get(name)}"
    return None
