"""What is decided once for all trials of one program: which kernels agree with their definitions here, and whether
the step is compiled.

A program is an architecture at a batch shape and precision. Its canary runs the model on a batch of the task and judges
every kernel at the shapes seen (`architectures.kernels.canary`). The step of its first trial, as it will be run, is
judged by its gradients (`probes.engine.gradients`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from architectures.kernels import canary
from probes.config import Trial
from probes.controls import make_control
from probes.engine import gradients
from probes.engine.adam import Update, update
from probes.engine.step import Loss, StepTrainer, supervised_loss
from probes.files import whole_file
from probes.results import write_json
from probes.splits import split_generator
from probes.task import Batch
from probes.trial import Runner

Compile = Literal["auto", "on", "off"]

COMPILING = 20.0
"""Seconds that compiling a program takes, about, on an H200's host and without a cache; see docs/gpu.md."""
SAVED = 1.6e-10
"""Seconds that it saves of a step in a full pack, per token, channel and layer, measured at B 64, T 512, d 128."""


def program(trial: Trial, precision: str) -> str:
    """A key for trials that run the same operations at the same shapes."""
    recipe = (trial.train.batch_size, trial.train.supervision, trial.train.control)
    return json.dumps([trial.task, trial.architecture, recipe, precision], sort_keys=True)


class Programs:
    """The decisions so far on one device. `steps`: training steps to come, by program."""

    def __init__(self, device: torch.device, folder: Path, compiling: Compile = "auto") -> None:
        self.device, self.folder, self.compiling = device, folder, compiling
        self.steps: dict[str, int] = {}
        self.verdicts: dict[str, list[canary.Verdict]] = {}
        self.gradients: dict[str, gradients.Verdict] = {}
        self._compiled: tuple[Loss, Update] | None = None

    def expect(self, trial: Trial, precision: str) -> None:
        """Counts a trial to come."""
        key = program(trial, precision)
        self.steps[key] = self.steps.get(key, 0) + trial.train.steps

    def check(self, runner: Runner, model: nn.Module) -> list[canary.Verdict]:
        """The canary of the trial's program, once; its verdicts are kept in `canary-DEVICE.json`."""
        key = program(runner.trial, runner.runtime.precision)
        trial = runner.trial
        generator = split_generator(trial.seeds.data_seed, "train", "canary", self.device)
        batch = runner.task.sample(generator, trial.train.batch_size)
        control = make_control(trial.train.control, batch, runner.task, generator, model)

        def once() -> None:
            run_once(model, batch, runner.autocast, control)

        if key not in self.verdicts:
            self.verdicts[key] = canary.settle(once, runner.runtime.kernels)
            self._write()
        # So that every model of a program is compiled in the same state, its kernels chosen and noted.
        once()
        return self.verdicts[key]

    def judge(self, runner: Runner, trainer: StepTrainer) -> gradients.Verdict | None:
        """The verdict on the gradients of the trial's program, judged once; None where memory did not suffice."""
        key = program(runner.trial, runner.runtime.precision)
        if key not in self.gradients:
            try:
                self.gradients[key] = gradients.judge(trainer)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return None
            self._write()
        return self.gradients[key]

    def unsound(self, trial: Trial, precision: str) -> str:
        """Why the program must not be trained with these kernels; empty where nothing is known against it."""
        verdict = self.gradients.get(program(trial, precision))
        return "" if verdict is None or verdict.accepted else verdict.line()

    def _write(self) -> None:
        seen: dict[str, dict[str, Any]] = {}
        for verdicts in self.verdicts.values():
            seen.update({verdict.line(): verdict.as_dict() for verdict in verdicts})
        name = str(self.device).replace(":", "")
        with whole_file(self.folder / f"canary-{name}.json", durable=False) as temporary:
            steps = [{"program": json.loads(key), **found.as_dict()} for key, found in self.gradients.items()]
            report = {"device": _device_name(self.device), "verdicts": list(seen.values()), "gradients": steps}
            write_json(temporary, report)

    def functions(self, runner: Runner) -> tuple[Loss, Update]:
        """The loss function of a trial's step and the update of its parameters, compiled where that pays."""
        if self.device.type != "cuda" or self.compiling == "off":
            return supervised_loss, update
        if self.compiling == "auto" and self.saving(runner) < COMPILING:
            return supervised_loss, update
        if self._compiled is None:
            self._compiled = compiled()
        canary.tag_caches()
        return self._compiled

    def saving(self, runner: Runner) -> float:
        """Seconds that compiling is expected to save over all trials of the program."""
        trial = runner.trial
        layers = trial.architecture.get("layers", 1)
        count = layers if isinstance(layers, int) else len(layers)
        size = trial.train.batch_size * runner.task.length * trial.architecture.get("d_model", 0) * count
        return self.steps.get(program(trial, runner.runtime.precision), 0) * size * SAVED


def run_once(
    model: nn.Module, batch: Batch, autocast: torch.dtype | None, control: dict[str, Tensor] | None = None
) -> None:
    """A forward pass as in training, by which kernels are chosen and seen; the model's buffers, as the statistics of
    gates, are put back."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    controls = {} if control is None else {"control": control}
    with torch.no_grad(), torch.autocast(batch.tokens.device.type, dtype=autocast, enabled=autocast is not None):
        model(batch.tokens, positions=batch.scored, **controls)
        for buffer, value in before:
            buffer.copy_(value)


OPTIONS: dict[str, Any] = {"online_softmax": False}
"""The compiler's, for a step: the loss over a large vocabulary takes less time in two passes over the logits of a row,
which stay in the cache, than in one with twice the exponentials."""


def compiled(options: dict[str, Any] | None = None) -> tuple[Loss, Update]:
    """`supervised_loss`, for static shapes, and `update` under torch.compile; one program's trials share the code.

    `options` are the compiler's beside `OPTIONS`, for measurements.
    """
    canary.tag_caches()
    torch._dynamo.config.recompile_limit = 512
    torch._dynamo.config.accumulated_recompile_limit = 4096
    chosen = {**OPTIONS, **(options or {})}
    return torch.compile(supervised_loss, dynamic=False, options=chosen), torch.compile(update)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
