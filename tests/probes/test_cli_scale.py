"""`fastslow ls architectures --scale`: the papers' models with their counts, without torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def ls(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-m", "probes", "ls", *args], capture_output=True, text=True, env=env)


def test_the_table_has_the_papers_counts() -> None:
    done = ls("architectures", "--scale", "1.5B")
    assert done.returncode == 0, done.stderr
    line = next(
        line for line in done.stdout.splitlines() if line.split()[:1] == ["Amor-Mamba2"] and "router" not in line
    )
    assert line.split() == ["Amor-Mamba2", "1,537.4", "1,537.4", "101.50", "3,247.23", "4.74", "4.35"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--scale", "1.5"), "scale: unknown '1.5'; nearest: '1.5B'"),
        (("tasks", "--scale", "1.5B"), "only architectures have scales; nearest is 'ls architectures'"),
    ],
)
def test_bad_scales_are_one_line(args: tuple[str, ...], message: str) -> None:
    done = ls(*args)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_needs_no_torch() -> None:
    code = (
        "import sys\nfrom probes.cli_list import show_scale\nshow_scale('architectures', '440M')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
