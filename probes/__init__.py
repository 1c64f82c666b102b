"""Tasks with exact baselines, the training and scoring of small models on them, and the command line.

`probes.run(task, architecture, ...)` and `probes.load(folder)` are the command line's work from Python; importing
this package loads neither torch nor a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.api import Sweep as Sweep
    from probes.api import load as load
    from probes.api import run as run

__all__ = ["Sweep", "load", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from probes import api

        return getattr(api, name)
    raise AttributeError(f"module 'probes' has no attribute {name!r}")
