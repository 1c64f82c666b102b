"""The controls of a trial, checked before its first step: names, dials, and whether the task and the model can have
them. Schedules are tried on a few sequences of the task."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from architectures import SpecError
from architectures.oryx_spec import control_names
from probes.config import Evaluation, Training
from probes.controls import Inapplicable, make_control
from probes.messages import nearest
from probes.task import Batch, Task
from probes.triggers import check_trigger, needs_tokens

SEQUENCES = 2
"""Sequences on which the schedules are tried."""


class ControlError(ValueError):
    """A schedule or a trigger that cannot be; one line. `path` is the key that it is about, as in a suite."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path = tuple(text.partition(": ")[0].split("."))


class Checker:
    """Checks the controls of one architecture's trials on one task."""

    def __init__(self, task: Task, spec: Mapping[str, Any]) -> None:
        self.task, self.spec = task, spec
        self.batch: Batch | None = None

    def check(self, train: Training, evaluate: Evaluation) -> dict[str, Inapplicable | None]:
        """By variant, why this task or model cannot have it; None where it can.

        Raises `ControlError` for what could run on no task, and for a control of training or of the headline that
        this task or model cannot have.
        """
        for section, control in (("train", train.control), ("evaluate", evaluate.control)):
            try:
                if "trigger" in control:
                    raise ValueError("control.trigger: a trigger is lent to variants alone; nearest is 'variants'")
                self._tensors(control)
            except ValueError as error:
                raise ControlError(f"{section}.{error}") from None
        found = {}
        for name, control in evaluate.variants.items():
            try:
                found[name] = self.inapplicable(control, evaluate.control)
            except ValueError as error:
                raise ControlError(f"evaluate.variants.{name}.{str(error).removeprefix('control.')}") from None
        return found

    def inapplicable(self, variant: Mapping[str, Any], headline: Mapping[str, Any]) -> Inapplicable | None:
        """Why this task or model cannot have a variant; None where it can, and for a trigger that a model without
        gates leaves out. ValueError for what no task can have."""
        tensors = {name: entry for name, entry in variant.items() if name != "trigger"}
        kind = str(self.spec.get("kind", "stack"))
        try:
            if "trigger" not in variant:
                self._tensors(tensors)
            elif ":" not in kind:  # a plug-in's own gates have their own triggers
                params = check_trigger(variant["trigger"], self.spec["d_model"])
                if kind != "amor":
                    return None
                if needs_tokens(params) and self.spec["head"]["kind"] != "tokens":
                    trigger = params["kind"]
                    return Inapplicable(f"trigger.kind: {trigger!r} needs next-token logits, head.kind is not tokens")
                self._tensors({**headline, **tensors}, params)
        except Inapplicable as error:
            return error
        return None

    def _tensors(self, control: Mapping[str, Any], trigger: Mapping[str, Any] | None = None) -> None:
        """Makes the tensors for a few sequences, and sees that the model knows them, and finds those that it needs."""
        kind = self.spec.get("kind", "stack")
        if kind == "oryx":
            known = control_names(self.spec["modes"])
            for name in control:
                if name not in known:
                    raise Inapplicable(f"control.{name}: this model reads no such tensor{nearest(name, known)}")
        own = self.spec["trigger"] if kind == "amor" else {}
        reads, where = (own, "control") if trigger is None else (trigger, "trigger.name")
        if reads.get("kind") == "control" and reads["name"] not in control:
            given = f" (given: {', '.join(control)})" if control else ""
            raise SpecError(f"{where}: the trigger reads the tensor {reads['name']!r}, which is not given{given}")
        if control:
            make_control(control, self._few(), self.task, torch.Generator().manual_seed(0), self._unsure)  # type: ignore[arg-type]

    def _few(self) -> Batch:
        if self.batch is None:
            self.batch = self.task.sample(torch.Generator().manual_seed(0), SEQUENCES)
        return self.batch

    def _unsure(self, tokens: Tensor, **_: Any) -> SimpleNamespace:
        """Stands for the model where a schedule asks one."""
        return SimpleNamespace(logits=torch.zeros(*tokens.shape, self.task.vocab_size))


def refuse_useless(found: list[dict[str, Inapplicable | None]]) -> None:
    """Raises `ControlError` for a variant that none of the checked trials can have."""
    for name in dict.fromkeys(name for one in found for name in one):
        reasons = [one[name] for one in found if name in one]
        if all(reason is not None for reason in reasons):
            raise ControlError(f"evaluate.variants.{name}.{str(reasons[0]).removeprefix('control.')}")
