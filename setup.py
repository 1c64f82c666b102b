"""Records the commit that a distribution is built from, for the results of an installed copy."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
RECORD = Path("probes", "_commit.txt")


def commit() -> str | None:
    """The checkout's commit, or the one that the sdist recorded, or None."""
    if (ROOT / ".git").exists():
        try:
            words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
            return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None
    return (ROOT / RECORD).read_text().strip() if (ROOT / RECORD).exists() else None


def record(folder: str) -> None:
    found = commit()
    if found:
        path = Path(folder, RECORD)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found + "\n")


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            record(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        record(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
