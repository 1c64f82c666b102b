"""Sequence models from plain specs. Importing this package does not import torch; building a model does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .published import published_spec
from .receptive import receptive_field
from .spec import SpecError, resolve

if TYPE_CHECKING:
    from .construct import build
    from .context import Context, Output
    from .initialise import parameter_groups
    from .mixers.base import state_bytes

__all__ = [
    "Context",
    "Output",
    "SpecError",
    "build",
    "parameter_groups",
    "published_spec",
    "receptive_field",
    "resolve",
    "state_bytes",
]

_LAZY = {
    "build": ".construct",
    "Context": ".context",
    "Output": ".context",
    "parameter_groups": ".initialise",
    "state_bytes": ".mixers.base",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
