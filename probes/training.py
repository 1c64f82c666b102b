"""Training of one model on one task: fresh batches, AdamW, warm-up and cosine, clipping; resumable to the bit.

The learning rate at step s of S (from 0), with peak L, warm-up W and final fraction f:

    L (s + 1) / W                                             while s < W
    L (f + (1 - f) (1 + cos(pi (s - W) / max(1, S - W))) / 2)   after
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from architectures import parameter_groups
from probes.config import Training
from probes.controls import make_control
from probes.splits import TrainingStream, split_generator
from probes.task import IGNORED, Batch, Task


class Diverged(RuntimeError):
    """The training loss is no longer finite; `step` says since when."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"training loss is {loss} at step {step}")
        self.step = step


def learning_rate(step: int, train: Training) -> float:
    """The learning rate of one step, counted from 0."""
    if step < train.warmup:
        return train.lr * (step + 1) / train.warmup
    progress = (step - train.warmup) / max(1, train.steps - train.warmup)
    return train.lr * (train.final_lr + (1 - train.final_lr) * (1 + math.cos(math.pi * progress)) / 2)


def evaluation_steps(train: Training) -> list[int]:
    """The numbers of finished steps after which validation is scored; the last is `train.steps`."""
    points = min(train.evaluations, train.steps)
    return sorted({round(train.steps * (i + 1) / points) for i in range(points)})


def training_targets(batch: Batch, supervision: str) -> Tensor:
    """Targets `(B, T)` of the loss: the scored ones, or each position's next token wherever there is one."""
    if supervision == "scored":
        return batch.targets
    targets = torch.full_like(batch.targets, IGNORED)
    targets[:, :-1] = batch.tokens[:, 1:]
    return torch.where(batch.scored, batch.targets, targets)


class Progress(NamedTuple):
    """What is known after an evaluation step."""

    step: int
    loss: float
    """Mean training loss since the evaluation before, nats per supervised position."""


class Trainer:
    """The state of one training run: `advance(until)` trains on, `state()` and `restore()` carry it over a stop."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        train: Training,
        *,
        data_seed: int,
        device: torch.device | str = "cpu",
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.task, self.train, self.device, self.autocast = model, task, train, device, autocast
        self.stream = TrainingStream(task, data_seed, train.batch_size, examples=train.examples, device=device)
        self.control_generator = split_generator(data_seed, "train", "control", device)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(model, train.weight_decay), lr=train.lr, betas=(train.beta1, train.beta2), fused=True
        )
        self.step = 0
        self.metrics: dict[str, float] = {}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """Mean cross-entropy over the supervised positions, nats, and the model's extras."""
        targets = training_targets(batch, self.train.supervision)
        supervised = targets != IGNORED
        control = make_control(self.train.control, batch, self.task, self.control_generator, self.model)
        device_type = torch.device(self.device).type
        with torch.autocast(device_type, dtype=self.autocast, enabled=self.autocast is not None):
            output = self.model(batch.tokens, positions=supervised, control=control)
        return functional.cross_entropy(output.logits.float(), targets[supervised]), output.extras

    def advance(self, until: int, report: Callable[[int], None] | None = None) -> Progress:
        """Trains until `until` steps are done; `report` hears of each. Raises `Diverged` on a non-finite loss."""
        self.model.train()
        total = torch.zeros((), device=self.device)
        first = self.step
        extras: dict[str, Any] = {}
        while self.step < until:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.step, self.train) * group.get("lr_scale", 1.0)
            self.optimizer.zero_grad(set_to_none=True)
            loss, extras = self.loss(self.stream.next())
            value = loss.detach()
            if not math.isfinite(value.item()):
                raise Diverged(self.step, value.item())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip)
            self.optimizer.step()
            total += value
            self.step += 1
            if report is not None:
                report(self.step)
        self.metrics = {name: float(value) for name, value in extras.get("metrics", {}).items()}
        return Progress(self.step, float(total) / max(1, self.step - first))

    def state(self) -> dict[str, Any]:
        """All that a later `restore` needs to go on bit for bit."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "stream": self.stream.state(),
            "control": self.control_generator.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from where `state` was taken."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.restore(state["stream"])
        self.control_generator.set_state(state["control"].cpu())
