"""A wheel built by way of the sdist runs anywhere: its catalogue inside, hidden by nothing around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("filters", "architectures", "probes", "figures", "tests")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "Makefile", "LICENSE", "README.md", "tasks.yaml")


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, source / file)
    author = ("-c", "user.name=author", "-c", "user.email=author@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-q", "--no-verify", "-m", "A commit")):
        assert run("git", *words, cwd=source).returncode == 0
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", source / "dist", source, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((source / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second environment that sees the packages of this one, with the wheel installed in it."""
    folder = tmp_path_factory.mktemp("second")
    assert run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder).returncode == 0
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "first.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    python = folder / "bin" / "python"
    install = ("install", "--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check")
    done = run(sys.executable, "-m", "pip", "--python", python, *install, wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def test_the_wheel_holds_every_module_and_the_catalogue(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("probes/tasks.yaml") == (ROOT / "tasks.yaml").read_bytes()
    packaged = {name for name in names if name.endswith(".py")}
    assert packaged == {str(path.relative_to(ROOT)) for part in PARTS[:-1] for path in (ROOT / part).rglob("*.py")}
    assert {f"{part}/py.typed" for part in PARTS[:-1]} <= names


@pytest.mark.parametrize("command", [("fastslow",), ("python", "-m", "probes")], ids=["script", "module"])
@pytest.mark.parametrize("crowded", [False, True], ids=["empty folder", "folder with packages of its own"])
def test_the_installed_command_lists(scripts: Path, tmp_path: Path, command: tuple[str, ...], crowded: bool) -> None:
    if crowded:
        for part in ("figures", "filters", "architectures"):
            (tmp_path / part).mkdir()
            (tmp_path / part / "__init__.py").write_text("raise RuntimeError('the wrong package was imported')\n")
    done = run(scripts / command[0], *command[1:], "ls", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("two_timescale", "attention", "smoke"):
        assert name in done.stdout
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == ({"figures", "filters", "architectures"} if crowded else set())


def test_the_wheel_records_the_commit_that_it_was_built_from(wheel: Path) -> None:
    head = run("git", "rev-parse", "HEAD", cwd=wheel.parents[1]).stdout
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("probes/_commit.txt").decode() == head


def test_the_installed_command_says_its_version(scripts: Path, tmp_path: Path) -> None:
    done = run(scripts / "fastslow", "--version", cwd=tmp_path)
    assert done.stdout == "fastslow 0.1.0\n", done.stderr


def test_the_wheel_sees_its_own_packages_and_not_the_checkout(scripts: Path, tmp_path: Path) -> None:
    places = "import filters, architectures, probes, figures as f; print(f.__file__, probes.__file__, filters.__file__)"
    done = run(scripts / "python", "-c", places, cwd=tmp_path)
    assert all(str(scripts.parent) in place for place in done.stdout.split()), done.stdout + done.stderr
