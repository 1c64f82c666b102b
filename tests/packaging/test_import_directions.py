"""Who may import whom, read from the sources: filters and architectures nothing of ours, figures only filters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"filters", "architectures", "probes", "figures"}
ALLOWED = {
    "filters": set(),
    "architectures": set(),
    "figures": {"filters"},
    "probes": {"filters", "architectures", "figures"},
}
MODULES = sorted(path.relative_to(ROOT) for part in OURS for path in (ROOT / part).rglob("*.py"))


def imports(source: str, package: str) -> Iterator[tuple[str, int, bool]]:
    """(top-level package, line, whether it is imported as soon as the module is) of every import."""

    def visit(node: ast.AST, eager: bool) -> Iterator[tuple[str, int, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node.lineno, eager
        elif isinstance(node, ast.ImportFrom):
            yield package if node.level else (node.module or "").split(".")[0], node.lineno, eager
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value).split(".")[0], node.lineno, False
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or typing_only
        for child in ast.iter_child_nodes(node):
            yield from visit(child, eager and not inside)

    return visit(ast.parse(source), True)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_in_the_stated_directions(module: Path) -> None:
    package = module.parts[0]
    for name, line, eager in imports((ROOT / module).read_text(encoding="utf-8"), package):
        where = f"{module}:{line} imports {name}"
        if name in OURS - {package}:
            assert name in ALLOWED[package], where
        if package == "figures":
            assert name != "torch", where
        if package == "filters" and eager and name in ("torch", "jax", "jaxlib"):
            assert name in module.stem or (name != "torch" and "jax" in module.stem), where
        assert name not in ("tests", "conftest"), where


def test_the_check_sees_every_form_of_import() -> None:
    source = (
        "import a.b\nfrom c import d\nfrom . import e\ndef f():\n    import g\n    importlib.import_module('h.i')\n"
    )
    found = [(name, eager) for name, _, eager in imports(source, "own")]
    assert found == [("a", True), ("c", True), ("own", True), ("g", False), ("h", False)]


@pytest.mark.parametrize(
    "package", ["filters", "figures", "probes", "probes.catalogue", "probes.cli", "architectures.spec"]
)
def test_what_must_work_without_torch_does_not_import_it(package: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {package}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
