"""Named `(B, T)` tensors that go into a model's forward pass beside the tokens, made from plain data.

`train.control` and each entry of `evaluate.variants` map a tensor's name to `{"schedule": NAME, ...parameters}`.
`SCHEDULES[NAME]` is `module:function`, called as `(batch, task, generator, **parameters) -> (B, T)` tensor; one with a
parameter `model` is given the model that the tensor is for. A variant's entry `trigger` is no tensor: see
`probes.triggers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from probes.messages import nearest
from probes.task import Batch, Task

SCHEDULES: dict[str, str] = {
    "attention": "probes.schedules:attention",
    "linear": "probes.schedules:linear",
    "random_chunks": "probes.schedules:random_chunks",
    "per_sequence": "probes.schedules:per_sequence",
    "switch": "probes.schedules:switch",
    "prompt": "probes.schedules:prompt",
    "periodic": "probes.schedules:periodic",
    "reference": "probes.schedules:reference",
    "model_entropy": "probes.schedules:model_entropy",
    "exact_surprise": "probes.controls_exact:surprise",
    "exact_entropy": "probes.controls_exact:entropy",
}
_GIVEN = ("batch", "task", "generator")


class Inapplicable(ValueError):
    """A control that is sound, but that this task or this model cannot have."""


def make_control(
    specification: Mapping[str, Mapping[str, Any]],
    batch: Batch,
    task: Task,
    generator: torch.Generator,
    model: nn.Module | None = None,
) -> dict[str, Tensor] | None:
    """The control tensors of one batch; None where nothing is specified.

    ValueError, one line, for an unknown schedule or parameter, or a value that the schedule refuses; `Inapplicable`
    where the task lacks what the schedule reads.
    """
    if not specification:
        return None
    control = {}
    for name, entry in specification.items():
        where = f"control.{name}"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}: {entry!r} is no mapping with a schedule")
        parameters = {key: value for key, value in entry.items() if key != "schedule"}
        function = _load(where, entry.get("schedule", ""))
        known = inspect.signature(function).parameters
        settable = [key for key in known if key not in (*_GIVEN, "model")]
        for key in parameters:
            if key not in settable:
                raise ValueError(f"{where}.{key}: {entry['schedule']} has no such parameter{nearest(key, settable)}")
        for key in settable:
            if known[key].default is inspect.Parameter.empty and key not in parameters:
                raise ValueError(f"{where}.{key}: {entry['schedule']} needs it")
        if "model" in known:
            if model is None:
                raise ValueError(f"{where}.schedule: {entry['schedule']} needs the model, and there is none here")
            parameters["model"] = model
        try:
            control[name] = function(batch, task, generator, **parameters)
        except Inapplicable as error:
            raise Inapplicable(f"{where}.{error}") from None
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from None
        except TypeError as error:  # a parameter of another type than its default
            given = {key: value for key, value in parameters.items() if key != "model"}
            raise ValueError(f"{where}: {entry['schedule']} does not take {given} ({error})") from None
    return control


def with_defaults(
    spec: Mapping[str, Any], train: Mapping[str, Any], evaluate: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of training and evaluation with the architecture's own controls under what the user set.

    A tensor that the user gives with another schedule replaces the architecture's; otherwise its parameters are laid
    over. Evaluation takes over the parameters of a training schedule of the same name, and the architecture's variants
    those of evaluation. Variants that the user gives are added by name.
    """
    from architectures.spec import default_controls

    defaults = default_controls(spec)
    if not defaults:
        return dict(train), dict(evaluate)
    trained = _laid(defaults["train"], train.get("control", {}))
    control = _laid(_following(defaults["evaluate"], trained), evaluate.get("control", {}))
    variants = {name: _following(variant, control) for name, variant in defaults["variants"].items()}
    return {**train, "control": trained}, {
        **evaluate,
        "control": control,
        "variants": {**variants, **evaluate.get("variants", {})},
    }


def _laid(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(defaults)
    for name, entry in given.items():
        own = defaults.get(name)
        same = own and isinstance(entry, Mapping) and entry.get("schedule", own["schedule"]) == own["schedule"]
        result[name] = {**own, **entry} if own and same else entry
    return result


def _following(control: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    def schedule(name: str) -> Any:
        entry = other.get(name)
        return entry.get("schedule") if isinstance(entry, Mapping) else None

    return {
        name: other[name] if name != "trigger" and entry["schedule"] == schedule(name) else entry
        for name, entry in control.items()
    }


@lru_cache(maxsize=64)
def _load(where: str, schedule: str) -> Any:
    if schedule not in SCHEDULES:
        raise ValueError(f"{where}.schedule: unknown {schedule!r}{nearest(schedule, SCHEDULES)}")
    module, function = SCHEDULES[schedule].split(":")
    return getattr(import_module(module), function)
