"""Sequence models from plain specs. Importing this package does not import torch; building a model does."""

from __future__ import annotations

import importlib
from typing import Any

from .spec import SpecError, resolve

__all__ = ["SpecError", "resolve"]

_LAZY: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'architectures' has no attribute {name!r}")
