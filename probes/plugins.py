"""Objects named in text: `package.module:Name` or `path/to/file.py:Name`.

What a user names comes after everything that is installed: a folder is appended to the import path, never put first,
so that a `figures/` or `filters/` of the user's own shadows nothing of ours.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from probes.messages import nearest

PREFIXES = ("mixer:", "model:", "task:")
"""What a plug-in's name begins with, by what it is."""


class PluginError(ValueError):
    """A reference that names no object; the message quotes it and says what is missing."""


def append_to_path(folder: Path | str) -> None:
    """Makes the modules of `folder` importable, behind all that is importable already."""
    entry = str(Path(folder).resolve())
    if entry not in sys.path:
        sys.path.append(entry)


def load_module(reference: str) -> ModuleType:
    """Imports `package.module` (the working folder counts, last) or the file `path/to/file.py`.

    Raises `PluginError` if there is no such file or module, or if importing it fails.
    """
    if reference.endswith(".py"):
        return _load_file(Path(reference))
    append_to_path(Path.cwd())
    try:
        return importlib.import_module(reference)
    except ModuleNotFoundError as error:
        if error.name is not None and (reference == error.name or reference.startswith(error.name + ".")):
            raise PluginError(f"no module {reference!r} (looked for {error.name!r} on the import path)") from None
        raise PluginError(f"module {reference!r} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        raise _failed(reference, error) from error


def load_object(reference: str) -> Any:
    """The object that `package.module:Name` or `path/to/file.py:Name` names; dots in `Name` reach inside.

    Raises `PluginError` with the reference and, for a wrong name, the nearest one that the module has.
    """
    module_name, colon, name = reference.rpartition(":")
    if not colon or not module_name or not name:
        raise PluginError(f"{reference!r} is not of the form 'package.module:Name' or 'path/to/file.py:Name'")
    found: Any = load_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(found) if not known.startswith("_")] if hasattr(found, "__dict__") else []
            raise PluginError(f"{module_name!r} has no {name!r}{nearest(part, public)}")
        found = getattr(found, part)
    return found


def source_digests(*data: Any) -> dict[str, str]:
    """SHA-256 of the source file behind every plug-in that is named in plain data, by its name.

    Names are texts such as `mixer:my_mixers.py:Average` anywhere in `data`, keys included. A plug-in whose source
    cannot be found has no entry.
    """
    found: dict[str, str] = {}
    for name in sorted(set(_plug_in_names(data))):
        source = _source_file(name.partition(":")[2].rpartition(":")[0])
        if source is not None and source.is_file():
            found[name] = hashlib.sha256(source.read_bytes()).hexdigest()
    return found


def _plug_in_names(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        if data.startswith(PREFIXES):
            yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _plug_in_names((key, value))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _plug_in_names(value)


def _source_file(module: str) -> Path | None:
    if module.endswith(".py"):
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"no file {str(path)!r}")
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"_fastslow_plugin_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    append_to_path(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"cannot import {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failed(str(path), error) from error
    return module


def _failed(reference: str, error: Exception) -> PluginError:
    where = ""
    if isinstance(error, SyntaxError):
        where = f" (line {error.lineno})"
    elif error.__traceback__ is not None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({Path(last.filename).name}, line {last.lineno})"
    return PluginError(f"{reference}: {type(error).__name__}: {getattr(error, 'msg', error)}{where}")
