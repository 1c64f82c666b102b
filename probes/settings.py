"""Dials set from outside: `--set task.overlap=1.0`, a suite's `grid`, and their merging into an entry.

Sections: `task`, `arch` (keys are checked when the task or the spec is made), `train`, `evaluate`, `seeds` (keys and
values are checked here).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from probes.config import Evaluation, Seeds, Training
from probes.messages import describe_validation, nearest
from probes.strict_yaml import YamlError, load_value

SECTIONS: dict[str, type[BaseModel] | None] = {
    "task": None,
    "arch": None,
    "train": Training,
    "evaluate": Evaluation,
    "seeds": Seeds,
}


class CatalogueError(ValueError):
    """A name, key or value that the catalogue or `--set` does not know; one line that says which, and what is near.

    `path`: the key in a suite that it is about, where it is about one.
    """

    def __init__(self, text: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path


def parse_sets(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`["task.overlap=1.0", "arch.mixers.sliding.window=8"]` as nested settings by section.

    A value is read as YAML (`1e-3` a number, `[a, b]` a list, `null` None). The last of two equal keys counts.
    Raises `CatalogueError`.
    """
    dotted: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise CatalogueError(f"--set {assignment}: expected SECTION.KEY=VALUE, as in task.overlap=1.0")
        try:
            dotted[key.strip()] = load_value(text)
        except YamlError as error:
            raise CatalogueError(f"--set {assignment}: {error}") from None
    return nest(dotted, "--set ")


def nest(dotted: Mapping[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """`{"train.lr": 1e-3}` as `{"train": {"lr": 1e-3}}`, checked. `prefix` starts each message."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in dotted.items():
        section, *rest = key.split(".")
        if section not in SECTIONS:
            raise CatalogueError(f"{prefix}{key}: unknown section {section!r}{nearest(section, SECTIONS)}")
        if not rest or not all(rest):
            raise CatalogueError(f"{prefix}{key}: expected SECTION.KEY, as in {section}.{example(section)}")
        inner = sections.setdefault(section, {})
        for part in rest[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise CatalogueError(f"{prefix}{key}: {part!r} is set to a value as well as to keys below it")
        inner[rest[-1]] = value
    for section, settings in sections.items():
        check(section, settings, prefix)
    return sections


def by_section(sets: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Settings by section with every section there. Raises `CatalogueError` for an unknown section or key."""
    given = dict(sets or {})
    for section, settings in given.items():
        if section not in SECTIONS:
            raise CatalogueError(f"sets: unknown section {section!r}{nearest(section, SECTIONS)}")
        if not isinstance(settings, Mapping):
            raise CatalogueError(f"sets: {section} = {settings!r}: expected a mapping of dials")
        check(section, settings, "sets: ")
    return {section: dict(given.get(section, {})) for section in SECTIONS}


def check(section: str, settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raises `CatalogueError` if a section with a fixed schema has an unknown key or an impossible value."""
    model = SECTIONS[section]
    if model is None:
        return
    try:
        model(**settings)
    except ValidationError as error:
        path, text = describe_validation(error, model)
        raise CatalogueError(f"{prefix}{section}.{'.'.join(map(str, path))}: {text}") from None


def example(section: str) -> str:
    """A key of the section, for messages."""
    model = SECTIONS[section]
    return next(iter(model.model_fields)) if model else {"task": "overlap", "arch": "d_model"}[section]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; where both hold a mapping, merged key by key. Neither is modified."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
