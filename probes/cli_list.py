"""`fastslow ls`: what there is. Imports no torch."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from architectures.accounting import row, scale_rows
from probes.catalogue import Catalogue, CatalogueError, load_catalogue
from probes.cli_common import show_table, table
from probes.config import Suite
from probes.messages import nearest
from probes.tasks import TASKS

VOCABULARY = 16
LENGTHS = (1024, 65536)
GROUPS = ("tasks", "architectures", "suites", "figures")


def show(what: str, config: Path | None) -> None:
    """Prints one group, or all. Of figures alone also the dials, for which their modules are imported."""
    if what and what not in GROUPS:
        raise CatalogueError(f"ls {what}: no such list{nearest(what, GROUPS)}")
    catalogue = load_catalogue(config)
    for group in (what,) if what else GROUPS:
        columns, rows, right, note = LISTS[group](catalogue)
        show_table(table(columns, rows, right=right), f"{group} ({note})" if note else group)
    if what == "figures":
        _show_dials()


def _show_dials() -> None:
    """Prints each figure's dials: name, default and meaning."""
    import figures

    rows = []
    for name, module in figures.FIGURES.items():
        loaded = import_module(module)
        for index, (dial, default) in enumerate(loaded.DIALS.items()):
            rows.append([name if index == 0 else "", dial, _default(default), loaded.ABOUT[dial]])
    title = "dials of the figures (--set DIAL=VALUE)"
    show_table(table(["figure", "dial", "default", "meaning"], rows), title)


def _default(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_default, value))}]"
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)


def show_scale(what: str, scale: str) -> None:
    """Prints what the papers' models cost at `scale`, by formula: parameters, decoding state, forward FLOPs."""
    if what not in ("", "architectures"):
        raise CatalogueError(f"--scale {scale}: only architectures have scales; nearest is 'ls architectures'")
    rows = scale_rows(scale)
    lengths = sorted(int(key.rsplit("_", 1)[1]) for key in rows[0] if key.startswith("state_bytes_"))
    states = [f"state {length // 1024}K (MB)" for length in lengths]
    flops = ["exact", "published"]
    cells = [
        [
            row["model"],
            f"{row['parameters'] / 1e6:,.1f}",
            f"{row['active_parameters'] / 1e6:,.1f}",
            *(f"{row[f'state_bytes_{length}'] / 1e6:,.2f}" for length in lengths),
            f"{row['forward_flops'] / 1e9:.2f}",
            f"{row['published_flops'] / 1e9:.2f}",
        ]
        for row in rows
    ]
    columns = ["model", "parameters (M)", "active (M)", *states, *flops]
    title = (
        f"{scale}; GFLOPs a token at {rows[0]['flops_length']} tokens by the exact and the papers' rule; 2-byte caches"
    )
    show_table(table(columns, cells, right=columns[1:]), title)


Listing = tuple[list[str], list[list[str]], list[str], str]
"""Columns, rows, the columns that hold numbers, and a note for the title."""


def _tasks(catalogue: Catalogue) -> Listing:
    """The entries, then the kinds that no entry bears the name of: each is a task with its default dials."""
    rows = []
    for name, entry in catalogue.tasks.items():
        settings = {key: value for key, value in entry.items() if key not in ("kind", "description")}
        rows.append([name, str(entry.get("kind", name)), _settings(settings), _description(entry)])
    for kind, target in TASKS.items():
        if kind not in catalogue.tasks:
            rows.append([kind, kind, "", summary(target.partition(":")[0])])
    return ["name", "kind", "dials", "description"], rows, [], ""


def _architectures(catalogue: Catalogue) -> Listing:
    rows = []
    for name, entry in catalogue.architectures.items():
        layers = entry.get("layers", entry.get("kind", ""))
        counts = row(name, catalogue.make_spec(name, vocab_size=VOCABULARY), lengths=LENGTHS)
        numbers = [counts["parameters"], *(counts[f"state_bytes_{length}"] for length in LENGTHS)]
        cells = ["–" if value is None else f"{value:,}" for value in numbers]
        rows.append([name, str(layers), *cells, _description(entry)])
    numeric = ["parameters", *(f"state at {length // 1024}K" for length in LENGTHS)]
    return ["name", "layers", *numeric, "description"], rows, numeric, f"vocabulary of {VOCABULARY}; state in bytes"


def _suites(catalogue: Catalogue) -> Listing:
    rows = []
    for name, suite in catalogue.suites.items():
        names = [", ".join(suite.tasks), ", ".join(suite.architectures)]
        rows.append([name, *names, str(trials(suite)), suite.description])
    return ["name", "tasks", "architectures", "trials", "description"], rows, ["trials"], ""


def trials(suite: Suite) -> int:
    """How many trials a suite has: the learning-rate search on the first seed, then the other seeds."""
    points = len(suite.tasks) * len(suite.architectures)
    for values in suite.grid.values():
        points *= len(values)
    return points * (len(suite.learning_rates) + len(suite.seeds) - 1)


def _figures(catalogue: Catalogue) -> Listing:
    import figures

    rows = [[name, summary(module)] for name, module in getattr(figures, "FIGURES", {}).items()]
    return ["name", "description"], rows, [], "their dials: fastslow ls figures"


def summary(module: str) -> str:
    """The first sentence of a module's docstring, without its full stop, read without importing the module."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".")


def _description(entry: dict[str, Any]) -> str:
    return str(entry.get("description", ""))


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


LISTS = {"tasks": _tasks, "architectures": _architectures, "suites": _suites, "figures": _figures}
