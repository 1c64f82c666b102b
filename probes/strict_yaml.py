"""YAML as `yaml.safe_load` reads it, with the line of every key, and no key twice.

One reading differs: `1e-3` is a number, as in YAML 1.2 and in Python, where YAML 1.1 makes it a string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Key = tuple[Any, ...]


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


class YamlError(ValueError):
    """A text that is no YAML, or has a key twice; the message starts with `file:line:`."""


@dataclass(frozen=True)
class Document:
    """A parsed file. `lines` maps the path of a key (a tuple of keys and list indices) to its line, from 1."""

    source: str
    data: Any
    lines: dict[Key, int] = field(default_factory=dict)

    def where(self, *path: Any) -> str:
        """`file:line` of the key at `path`, or of the nearest enclosing one that has a line."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.source}:{self.lines[path[:length]]}"
        return self.source


def load_value(text: str) -> Any:
    """One value, as on the right of `key: value`. Raises `YamlError`."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise YamlError(f"{text!r} is not a YAML value: {getattr(error, 'problem', None) or error}") from None


def load_document(path: Path, source: str | None = None) -> Document:
    """The file at `path`, named `source` in messages. Raises `YamlError`, and `OSError` if it cannot be read."""
    source = source or str(path)
    loader = _Loader(path.read_text(encoding="utf-8"))
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(source, None)
        _reject_duplicates(node, source, set())
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise YamlError(f"{source}{line}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlError(f"{source}: {error}") from None
    finally:
        loader.dispose()
    lines: dict[Key, int] = {}
    _record(node, (), lines)
    return Document(source, data, lines)


def _reject_duplicates(node: yaml.Node, source: str, visited: set[int]) -> None:
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise YamlError(
                        f"{source}:{line}: key {key.value!r} is given twice (first on line {seen[key.value]})"
                    )
                seen[key.value] = line
            _reject_duplicates(value, source, visited)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if item is node:
                raise YamlError(f"{source}:{item.start_mark.line + 1}: a list that contains itself")
            _reject_duplicates(item, source, visited)


def _record(node: yaml.Node, path: Key, lines: dict[Key, int]) -> None:
    """Merges (`<<`) are flattened into their mapping by construction, so each key is found where it is used."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = (
                yaml.load(key.value, _Loader) if isinstance(key, yaml.ScalarNode) and key.style is None else key.value
            )
            inner = (*path, name)
            lines[inner] = key.start_mark.line + 1
            _record(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _record(item, (*path, index), lines)
