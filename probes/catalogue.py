"""The catalogue: tasks, architectures and suites by name, from the shipped `tasks.yaml` and a user's own file.

Reading it imports neither torch nor a task; `make_task` and `make_spec` do. Strict: an unknown key is an error that
gives the file, the line and the nearest known key.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from probes.config import Suite
from probes.messages import describe_validation, nearest, no_folder
from probes.plugins import PluginError, load_object
from probes.settings import SECTIONS, CatalogueError, merged, nest, parse_sets
from probes.strict_yaml import Document, YamlError, load_document
from probes.tasks import TASKS

if TYPE_CHECKING:
    from probes.task import Task

__all__ = ["SHIPPED", "Catalogue", "CatalogueError", "load_catalogue", "parse_sets"]

SHIPPED = Path(__file__).with_name("tasks.yaml")
GROUPS = ("tasks", "architectures", "suites")
MODEL_PREFIXES = ("mixer:", "model:", "fla:")
SMALLEST_LR_GRID = 4


@dataclass(frozen=True)
class Catalogue:
    """Named entries as plain data (`description` included), and the file that each one comes from."""

    tasks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    architectures: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    suites: Mapping[str, Suite] = field(default_factory=dict)
    origins: Mapping[tuple[str, str], Document] = field(default_factory=dict)

    def make_task(self, name: str, sets: Mapping[str, Any] | None = None) -> Task:
        """The task of an entry, of a kind with its defaults, or of a plug-in (`task:package.module:Name`).

        Raises `CatalogueError` for an unknown name or dial, or a plug-in that is no task (`probes.task_check`), and
        `TaskError` for dials that no sequence can satisfy.
        """
        from probes.task import Task, TaskError

        entry = self.task_entry(name)
        kind = entry.pop("kind")
        settings = merged(entry, sets or {})
        try:
            made = load_object(TASKS.get(kind, kind.removeprefix("task:")))
        except PluginError as error:
            raise CatalogueError(f"{self._where('tasks', name, 'kind')}: {error}") from None
        if not (isinstance(made, type) and issubclass(made, Task)):
            raise CatalogueError(f"{self._where('tasks', name, 'kind')}: {kind!r} is no subclass of probes.task.Task")
        parameters = inspect.signature(made).parameters.values()
        known = [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            for key in settings:
                if key not in known:
                    place = f"task {name!r}" if key in (sets or {}) else self._where("tasks", name, key)
                    raise CatalogueError(f"{place}: unknown dial {key!r} of {kind!r}{nearest(key, known)}")
        for parameter in parameters:
            if parameter.kind in _BY_NAME and parameter.default is parameter.empty and parameter.name not in settings:
                raise CatalogueError(f"{self._where('tasks', name)}: dial {parameter.name!r} of {kind!r} must be given")
        try:
            if not kind.startswith("task:"):
                return made(**settings)
            from probes.task_check import make_checked

            return make_checked(made, settings)
        except PluginError as error:
            raise CatalogueError(f"{self._where('tasks', name, 'kind')}: {error}") from error
        except TaskError as error:
            for key in entry:
                if key not in (sets or {}) and _names(str(error), key):
                    raise TaskError(f"{self._where('tasks', name, key)}: {error}") from None
            raise

    def task_entry(self, name: str) -> dict[str, Any]:
        """The entry as data, with its `kind`, without its description. Raises `CatalogueError`."""
        if name in self.tasks:
            entry = {key: value for key, value in self.tasks[name].items() if key != "description"}
            return {"kind": entry.pop("kind", name), **entry}
        if name in TASKS or name.startswith("task:"):
            return {"kind": name}
        raise CatalogueError(f"unknown task {name!r}{nearest(name, [*self.tasks, *TASKS])}")

    def make_spec(
        self,
        name: str,
        sets: Mapping[str, Any] | None = None,
        *,
        vocab_size: int,
        head: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The resolved spec of an entry, or of a plug-in (`mixer:...`, `model:...`, `fla:...`) in a default stack.

        `head`: the head that a task declares, None for next-token logits. Raises `CatalogueError`.
        """
        from architectures.spec import SpecError, resolve

        spec = merged(self.architecture_entry(name), sets or {}) | {"vocab_size": vocab_size}
        if head is not None:
            spec["head"] = dict(head)
        try:
            return resolve(spec)
        except SpecError as error:
            place = f"architecture {name!r}" if sets else self._where("architectures", name, *_spec_path(error))
            raise CatalogueError(f"{place}: {error}") from None

    def architecture_entry(self, name: str) -> dict[str, Any]:
        """The entry as data, without its description. Raises `CatalogueError`."""
        if name in self.architectures:
            return {key: value for key, value in self.architectures[name].items() if key != "description"}
        if name.startswith("model:"):
            return {"kind": name}
        if name.startswith(MODEL_PREFIXES):
            return {"layers": f"[{name}]*2"}
        raise CatalogueError(f"unknown architecture {name!r}{nearest(name, self.architectures)}")

    def suite(self, name: str) -> Suite:
        """Raises `CatalogueError` for an unknown name."""
        if name not in self.suites:
            raise CatalogueError(f"unknown suite {name!r}{nearest(name, self.suites)}")
        return self.suites[name]

    def blame(self, suite: str, error: ValueError) -> str:
        """The message of an error, led by the line of the suite whose dial it names, if it names one."""
        found = self.suite(suite)
        section, *keys = getattr(error, "path", None) or ("",)
        if keys:
            given = getattr(found, section).get(keys[0])
            grid = [key for key in found.grid if key.startswith(f"{section}.{keys[0]}")]
            if grid or (given is not None and (not isinstance(given, Mapping) or keys[1:2] == [] or keys[1] in given)):
                place = ("grid", grid[0]) if grid else (section, *keys)
                return f"{self._where('suites', suite, *place)}: {error}"
        paths = [(section, key) for section in ("task", "arch") for key in getattr(found, section)]
        paths += [("grid", key) for key in found.grid]
        for path in paths:
            if _names(str(error), path[1].rpartition(".")[2]):
                return f"{self._where('suites', suite, *path)}: {error}"
        return str(error)

    def _where(self, group: str, name: str, *path: Any) -> str:
        """`file:line: name`, or what the name stands for where it is no entry."""
        if (group, name) in self.origins:
            return f"{self.origins[group, name].where(group, name, *path)}: {name}"
        return f"{group[:-1]} {name!r}"


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_catalogue(config: Path | str | None = None) -> Catalogue:
    """The shipped catalogue, with the entries of the file `config` added; a name that both have is `config`'s.

    Raises `CatalogueError`: file, line, key, nearest known key.
    """
    documents = [_read(SHIPPED, "tasks.yaml")]
    if config is not None:
        documents.append(_read(Path(config), str(config)))
    entries: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    origins: dict[tuple[str, str], Document] = {}
    for document in documents:
        for group, named in document.data.items():
            for name, entry in named.items():
                entries[group][name] = entry
                origins[group, name] = document
    suites = {name: _suite(name, entry, origins["suites", name], entries) for name, entry in entries["suites"].items()}
    catalogue = Catalogue(entries["tasks"], entries["architectures"], suites, origins)
    for name in catalogue.architectures:
        catalogue.make_spec(name, vocab_size=2)
    return catalogue


def _read(path: Path, source: str) -> Document:
    try:
        document = load_document(path, source)
    except YamlError as error:
        raise CatalogueError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise CatalogueError(f"cannot read {source}: {reason}") from None
    if document.data is None:
        return Document(source, {})
    if not isinstance(document.data, dict):
        raise CatalogueError(f"{source}: expected a mapping with the keys {', '.join(GROUPS)}")
    for group, named in document.data.items():
        where = document.where(group)
        if group not in GROUPS:
            raise CatalogueError(f"{where}: unknown key {str(group)!r}{nearest(group, GROUPS)}")
        if not isinstance(named, dict):
            raise CatalogueError(f"{where}: {group} is a mapping from names to entries")
        for name, entry in named.items():
            _check_entry(group, name, entry, document)
    return document


def _names(message: str, key: str) -> bool:
    """Whether a message is about `key`: `... unknown dial 'key'; ...` or `...: key = value: ...`."""
    return re.search(rf"(?<!\w){re.escape(key)}(?:'| = |: )", message) is not None


def _spec_path(error: ValueError) -> tuple[str, ...]:
    """The keys that a spec's error names: `mixers.local: unknown 'windw'` is about `mixers.local.windw`."""
    key, _, text = str(error).partition(": ")
    named = re.match(r"unknown '([^']*)'", text)
    return (*(part for part in key.removeprefix("spec").split(".") if part), *(named.groups() if named else ()))


def _check_entry(group: str, name: Any, entry: Any, document: Document) -> None:
    where = document.where(group, name)
    if not isinstance(name, str) or not name or ":" in name:
        raise CatalogueError(f"{where}: {name!r} is no name of an entry (text without a colon)")
    if group == "suites" and (wrong := no_folder(name)):
        raise CatalogueError(f"{where}: {wrong}")
    if not isinstance(entry, dict):
        raise CatalogueError(f"{where}: {name} is a mapping of settings, not {entry!r}")
    for key in entry:
        if not isinstance(key, str):
            raise CatalogueError(f"{document.where(group, name, key)}: {name}: key {key!r} is not text")
    if group == "tasks":
        kind = entry.get("kind", name)
        if not isinstance(kind, str) or not (kind in TASKS or kind.startswith("task:")):
            place = document.where(group, name, "kind")
            raise CatalogueError(f"{place}: {name}: unknown kind {kind!r}{nearest(kind, TASKS)}")


def _suite(name: str, entry: dict[str, Any], document: Document, entries: dict[str, dict[str, Any]]) -> Suite:
    def fail(path: tuple[Any, ...], text: str) -> CatalogueError:
        return CatalogueError(f"{document.where('suites', name, *path)}: {name}: {text}")

    try:
        suite = Suite(**entry)
    except ValidationError as error:
        raise fail(*describe_validation(error, Suite)) from None
    for group, known in (("tasks", entries["tasks"]), ("architectures", entries["architectures"])):
        prefixes = ("task:",) if group == "tasks" else MODEL_PREFIXES
        choices = [*known, *TASKS] if group == "tasks" else list(known)
        for index, item in enumerate(getattr(suite, group)):
            if item not in choices and not item.startswith(prefixes):
                raise fail((group, index), f"unknown {group[:-1]} {item!r}{nearest(item, choices)}")
    for section in ("train", "evaluate"):
        model = SECTIONS[section]
        assert model is not None
        try:
            model(**getattr(suite, section))
        except ValidationError as error:
            path, text = describe_validation(error, model)
            raise fail((section, *path), text) from None
    for key, values in suite.grid.items():
        if not values:
            raise fail(("grid", key), f"axis {key!r} has no values")
        for index, value in enumerate(values):
            try:
                nest({key: value}, "grid ")
            except CatalogueError as error:
                raise fail(("grid", key, index), str(error)) from None
    for index, rate in enumerate(suite.learning_rates):
        if not rate > 0:
            raise fail(("learning_rates", index), f"learning rate {rate} is not positive")
    if found := suite.contradiction():
        raise fail(*found)
    if len(suite.learning_rates) < SMALLEST_LR_GRID and not suite.smoke:
        text = f"learning_rates has {len(suite.learning_rates)} points; {SMALLEST_LR_GRID} or more unless smoke: true"
        raise fail(("learning_rates",), text)
    return suite
