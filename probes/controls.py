"""Named `(B, T)` tensors that go into a model's forward pass beside the tokens, made from plain data.

`train.control` and each entry of `evaluate.variants` map a tensor's name to `{"schedule": NAME, ...parameters}`.
`SCHEDULES[NAME]` is `module:function`, called as `(batch, task, generator, **parameters) -> (B, T)` tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from probes.messages import nearest
from probes.task import Batch, Task

SCHEDULES: dict[str, str] = {}


def make_control(
    specification: Mapping[str, Mapping[str, Any]], batch: Batch, task: Task, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """The control tensors of one batch; None where nothing is specified. ValueError for an unknown schedule."""
    if not specification:
        return None
    control = {}
    for name, entry in specification.items():
        parameters = dict(entry)
        schedule = parameters.pop("schedule", "")
        if schedule not in SCHEDULES:
            raise ValueError(f"control.{name}.schedule: unknown {schedule!r}{nearest(schedule, SCHEDULES)}")
        module, function = SCHEDULES[schedule].split(":")
        control[name] = getattr(import_module(module), function)(batch, task, generator, **parameters)
    return control
