"""One trial's training step as device operations alone: nothing in it waits for the host or depends on its numbers.

The same step as `probes.training.Trainer`: batch, forward, mean cross-entropy at the supervised positions, backward,
clipping, AdamW. What the host does there lives on the device here: the step's number, a table of the schedule's
learning rates, and the losses, copied out when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from architectures import parameter_groups
from probes.config import Training
from probes.engine.adam import FlatAdamW, Update, numbers, update
from probes.engine.feed import Feed, Refused, Supervised
from probes.engine.lane import WARM_UP, Lane
from probes.task import IGNORED, Task
from probes.training import Diverged, Progress, learning_rate

COMPARED = 3
"""Steps that a graph and the launches it was captured from are run for, from one state, before it is used."""
AGREES = 1e-2
"""Relative difference of their losses that is let through: kernels with atomic sums differ from run to run."""

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]


def supervised_loss(
    model: nn.Module,
    tokens: Tensor,
    index: Tensor | None,
    target: Tensor,
    control: dict[str, Tensor] | None,
    autocast: torch.dtype | None,
) -> tuple[Tensor, dict[str, Any]]:
    """Mean cross-entropy over the supervised positions, nats, and what the model reports of itself. `index`, `target`
    as `at` and `target` of `Supervised`."""
    with torch.autocast(tokens.device.type, dtype=autocast, enabled=autocast is not None):
        if control is None:
            output = model(tokens, positions=index)
        else:
            output = model(tokens, positions=index, control=control)
    loss = functional.cross_entropy(output.logits.flatten(0, -2).float(), target, ignore_index=IGNORED)
    return loss, output.extras.get("metrics", {})


class StepTrainer:
    """The state of one training run on a device, with the interface of `Trainer` for checkpoints.

    `restore` first if there is a checkpoint, then `prepare`, then `lane.run()` once a step and `collect` every
    `window` steps or sooner.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        train: Training,
        *,
        data_seed: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        loss: Loss = supervised_loss,
        adam: Update = update,
        window: int = 32,
        capture: bool = True,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.model, self.task, self.train, self.device, self.autocast = model, task, train, device, autocast
        self.data_seed, self.window, self.loss_function = data_seed, window, loss
        betas = (train.beta1, train.beta2)
        groups = parameter_groups(model, train.weight_decay)
        self.optimizer = FlatAdamW(groups, betas=betas, clip=train.clip, update=adam)
        length = train.steps + WARM_UP + 1
        self.places = torch.empty(length, 2, dtype=torch.int64, device=device)
        """The slot of each step's batch and the place of its loss: looked up, since every small kernel counts."""
        self.numbers = numbers([learning_rate(step, train) for step in range(length)], betas).to(device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(window, device=device)
        self.reported: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.step = 0
        self.collected = 0
        self.total, self.since = 0.0, 0
        self.feed: Feed | None = None
        self.stream_state: dict[str, Tensor] | None = None
        self.control_state: Tensor | None = None
        self.seen: Tensor | None = None
        """The tokens of the last step, where the step itself found them."""
        self.lane = Lane(self.work, device, capture=capture, stream=stream)

    def work(self) -> None:
        """The step."""
        assert self.feed is not None
        place = self.places.index_select(0, self.clock)[0]
        given = self.feed.read(place[:1])
        self.optimizer.zero_grad()
        self.seen = given.tokens
        loss, reported = self.loss_function(
            self.model, given.tokens, given.at, given.target, given.control, self.autocast
        )
        self.reported = {k: v.detach() if isinstance(v, Tensor) else v for k, v in reported.items()}
        loss.backward()
        self.optimizer.step(self.numbers.index_select(0, self.clock)[0], self.step + 1)
        self.losses.index_copy_(0, place[1:], loss.detach().view(1))
        self.clock.add_(1)

    def prepare(self, feed: Feed) -> None:
        """Sets the source of batches, and captures the step where the device can."""
        self.feed = feed
        self.model.train()
        self.clock.fill_(self.step)
        steps = torch.arange(len(self.places), device=self.device)
        self.places.copy_(torch.stack([feed.slot_of(steps), steps % self.window], dim=1))
        self.collected = self.step
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.lane.capture(self._save)
        if self.lane.graph is not None:
            self._compare()

    def _compare(self) -> None:
        """Raises `Refused` unless the graph's first losses are those of the same steps launched one by one."""
        assert self.feed is not None
        self.feed.draw(self.step + COMPARED)
        self.feed.lane.wait()
        graph, found = self.lane.graph, []
        seen, reported = self.seen, self.reported
        for kind in (graph, None):
            restore = self._save()
            self.lane.graph = kind
            for _ in range(COMPARED):
                self.lane.run()
            self.lane.wait()
            found.append([self.losses[step % self.window].item() for step in range(self.step, self.step + COMPARED)])
            restore()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.lane.graph = graph
        if self.device.type == "cuda":
            self.seen, self.reported = seen, reported  # the graph's own tensors
        for one, other in zip(*found, strict=True):
            if not math.isclose(one, other, rel_tol=AGREES) and math.isfinite(other):
                raise Refused(f"the graph's losses {found[0]} differ from those of its steps {found[1]}")

    def gradients(self) -> tuple[list[Tensor], Supervised]:
        """The gradient of every parameter at the next step, before clipping, and its batch; nothing is changed."""
        assert self.feed is not None
        self.feed.draw(self.step + 1)
        self.feed.lane.wait()
        restore = self._save()
        self.lane.run()
        self.lane.wait()
        found = [view.clone() for view in self.optimizer.views(self.optimizer.gradients)]
        restore()
        given = self.feed.read(self.places[self.step, :1])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return found, given

    def _save(self) -> Callable[[], None]:
        buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        put_back = self.optimizer.save()

        def restore() -> None:
            put_back()
            for buffer, value in buffers:
                buffer.copy_(value)
            self.clock.fill_(self.step)

        return restore

    def close(self) -> None:
        """Lets the graph and its memory go. The model stays."""
        self.lane.graph = None
        self.optimizer.close()
        self.reported, self.seen = {}, None

    def advance(self) -> None:
        """Launches one step."""
        self.lane.run()
        self.step += 1

    def collect(self) -> None:
        """Waits for the steps launched and takes over their losses. Raises `Diverged` at the first not finite."""
        self.lane.wait()
        values = self.losses.cpu().tolist()
        for step in range(self.collected, self.step):
            loss = values[step % self.window]
            if not math.isfinite(loss):
                raise Diverged(step, loss)
            self.total += loss
            self.since += 1
        self.collected = self.step

    def check(self) -> None:
        """Raises `Refused` unless the last step read the batch that the stream has at its place."""
        assert self.feed is not None
        self.lane.wait()
        if self.seen is None or not torch.equal(self.seen, self.feed.again(self.step - 1)):
            raise Refused(f"step {self.step - 1} was not trained on its own batch")

    def progress(self) -> Progress:
        """The mean loss since the last call; takes over what the model reported of itself at the last step."""
        mean = self.total / max(1, self.since)
        self.total, self.since = 0.0, 0
        self.metrics = {name: float(value) for name, value in self.reported.items()}
        return Progress(self.step, mean)

    def state(self) -> dict[str, Any]:
        """As `Trainer.state`."""
        assert self.feed is not None
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(self.step),
            **self.feed.state(self.step),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from where `state` was taken, before `prepare`."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"], self.step)
        self.stream_state = state["stream"]
        self.control_state = state["control"]
