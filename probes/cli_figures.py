"""`fastslow figures` and `fastslow bench`: modules that draw or measure, each with its own dials."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import iter_modules
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer

from probes.cli_common import console, show_table, table
from probes.cli_list import summary
from probes.device_names import check_device
from probes.messages import nearest
from probes.settings import CatalogueError
from probes.strict_yaml import YamlError, load_value


def draw(name: str, *, out: Path, sets: list[str]) -> None:
    """Draws one figure, or all with their default dials, and prints the files written.

    Where all are drawn, one whose recorded results are not there is named and left out, and the exit is 1. Raises
    `CatalogueError` for an unknown figure or dial, and where `out` is the package that holds the figures.
    """
    import figures

    known: Mapping[str, str] = vars(figures).get("FIGURES", {})
    if name and name not in known:
        raise CatalogueError(f"unknown figure {name!r}{nearest(name, known)}")
    if sets and not name:
        raise CatalogueError(f"--set {sets[0]}: name the figure whose dial this is{nearest('', known)}")
    package = Path(figures.__file__ or "").resolve().parent
    if out.resolve() == package or package in out.resolve().parents:
        raise CatalogueError(f"--out {out}: that is the package of figures; nearest is 'runs/figures'")
    missing = 0
    for chosen in (name,) if name else known:
        module = importlib.import_module(known[chosen])
        dials = _dials(chosen, sets, module.DIALS, get_type_hints(module.draw))
        out.mkdir(parents=True, exist_ok=True)
        try:
            paths = module.draw(out, **dials)
        except FileNotFoundError as error:
            if name:
                raise
            print(f"fastslow: {chosen} is not drawn: {error}", file=sys.stderr)
            missing += 1
            continue
        for path in paths:
            console.print(str(path), soft_wrap=True)
    if missing:
        raise typer.Exit(1)


def benchmark(name: str, *, out: Path, sets: list[str]) -> None:
    """Runs one benchmark, or lists them. Raises `CatalogueError` for an unknown one, or a dial that it lacks."""
    import probes.bench

    known = {found.name: f"probes.bench.{found.name}" for found in iter_modules(probes.bench.__path__)}
    if not name:
        show_table(table(["name", "description"], [[key, summary(module)] for key, module in known.items()]))
        return
    if name not in known:
        raise CatalogueError(f"unknown benchmark {name!r}{nearest(name, known)}")
    module = importlib.import_module(known[name])
    dials = _dials(name, sets, module.DIALS)
    _check(name, dials, module)
    module.run(out, **dials)


FROM_ZERO = ("alone", "seed", "warmup", "patience")
"""Whole numbers of benchmarks that may be 0."""


def _check(name: str, dials: Mapping[str, Any], module: Any) -> None:
    """Raises `CatalogueError` for a value that no run of the benchmark can take, before it begins: a device that is not
    here, a count below 1, a name that is none of the module's `CHOICES`."""
    given = {**module.DIALS, **dials}
    for key in ("device", "devices"):
        devices = given.get(key)
        if isinstance(devices, str) and key == "devices":
            raise CatalogueError(f"--set {key}={devices}: expected a list, as [cuda:0, cuda:1]")
        for device in [devices] if isinstance(devices, str) else devices or []:
            check_device(str(device), f"{name}'s {key}=")
    for key, value in dials.items():
        for one in value if isinstance(value, list) else [value]:
            if type(one) is int and one < 1 and key not in FROM_ZERO:
                raise CatalogueError(f"--set {key}={json.dumps(value)}: {name}'s {key} is at least 1, not {one}")
            choices = getattr(module, "CHOICES", {}).get(key)
            if choices is not None and one is not None and one not in choices:
                raise CatalogueError(f"--set {key}={json.dumps(value)}: unknown {key} {one!r}{nearest(one, choices)}")


def _dials(
    name: str, sets: list[str], known: Mapping[str, Any], hints: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`["task.overlap=1.0"]` or `["overlap=1.0"]` as `{"overlap": 1.0}`; a dial without a default is checked against
    its type in `hints`."""
    dials = {}
    for assignment in sets:
        key, equals, text = assignment.partition("=")
        key = key.strip().removeprefix("task.")
        if not equals:
            raise CatalogueError(f"--set {assignment}: expected DIAL=VALUE")
        if key not in known:
            raise CatalogueError(f"--set {assignment}: {name} has no dial {key!r}{nearest(key, known)}")
        try:
            dials[key] = load_value(text)
        except YamlError as error:
            raise CatalogueError(f"--set {assignment}: {error}") from None
        default = known[key]
        wanted = _mismatch(dials[key], _example((hints or {}).get(key)) if default is None else default)
        if wanted:
            choice = ", or null" if default is None else f", as {json.dumps(default)}"
            raise CatalogueError(f"--set {assignment}: {name}'s {key} is {wanted}{choice}")
    return dials


def _example(hint: Any) -> Any:
    """A value of the first of the types in `int | None`, `list[str] | None` and their like; None for any other."""
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if get_origin(kind) is list:
            return [_example(*get_args(kind))]
        if kind in (int, float, str):
            return kind()
    return None


def _mismatch(value: Any, default: Any) -> str:
    """What kind of value is expected, where `value` is of another kind than the default; empty where it fits."""
    if default is None or value is None:
        return ""
    if isinstance(default, (list, tuple)):
        first = default[0] if default else None
        first = float(first) if type(first) is int else first  # a list of whole numbers may stand for any numbers
        fits = isinstance(value, list) and value and not any(_mismatch(item, first) for item in value)
        return "" if fits else "a list"
    for kind, name in ((bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "text")):
        if isinstance(default, kind):
            numeric = kind is float and isinstance(value, int) and not isinstance(value, bool)
            return "" if type(value) is kind or numeric else name
    return ""
