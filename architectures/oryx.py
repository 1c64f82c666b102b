"""Oryx: a stack of blocks that each hold attention and a linear recurrence, and change between them at any token.

    model = build({"kind": "oryx", "mixer": "gdn", "vocab_size": 16})         # Oryx-TG
    logits = model(tokens, control={"mode": mode}).logits                      # mode (B, T): 0 attention, 1 linear

Without a mode every layer attends. `architectures.oryx_modes` says what the control tensors are.

Reference: Li et al., Oryx, arXiv 2605.28769.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .context import Context, Output
from .kernels import Kernels
from .oryx_block import STREAM, OryxMixer
from .oryx_modes import Modes, Path
from .oryx_spec import ATTENTION, LINEAR
from .stack import Stack, State


class Oryx(Stack):
    """A model built from a resolved spec of kind `oryx`, with the stack's forward, prefill and step.

    `path` is how a mixture of modes is computed (`architectures.oryx_modes.Path`). `extras["metrics"]` of a forward
    pass has the fraction of tokens in attention mode and the fraction of attention that was computed for it.
    """

    def __init__(self, spec: Mapping[str, Any], kernels: Kernels = "auto") -> None:
        layers = [OryxMixer(spec, layer, kernels) for layer in range(spec["layers"])]
        super().__init__(spec, kernels, layers=layers)
        self.path: Path = "auto"

    def begin(self, tokens: Tensor, context: Context, start: int = 0) -> None:
        modes = Modes(self.spec["modes"], context.control, tokens, self.path)
        context.streams[STREAM] = modes
        context.extras["metrics"] = modes.metrics(start)

    def uncertain(self, token: Tensor, state: State, threshold: float) -> tuple[Tensor, State]:
        """The mode `(B,)` for the next `token (B,)`: attention where an all-linear pass is uncertain of what follows.

        `state` is a second one, which this moves on in linear mode; uncertain is an entropy above `threshold` nats.
        Decoding with it gives the logits of the full pass under the same modes, of `model_entropy` in
        `probes.schedules`, at the cost of a linear step a token.
        """
        logits, state = self.step(token, state, control={"mode": torch.full_like(token, LINEAR)})
        log_p = torch.log_softmax(logits.double(), -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return torch.where(entropy > threshold, ATTENTION, LINEAR), state


class Scheduled(nn.Module):
    """An Oryx model whose mode at position t is `pattern[t mod len(pattern)]`, for callers that give no control."""

    def __init__(self, model: Oryx, pattern: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("pattern", pattern, persistent=False)
        self.pattern: Tensor

    def control(self, tokens: Tensor, start: int) -> dict[str, Tensor]:
        """The mode of `tokens (B, T)`, the first of them at position `start`."""
        position = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        return {"mode": self.pattern[position % len(self.pattern)].expand(tokens.shape)}

    def forward(self, tokens: Tensor, **options: Any) -> Output:
        """As `Oryx.forward`."""
        return self.model(tokens, control=self.control(tokens, 0), **options)

    def init_state(self, batch_size: int, max_length: int, **options: Any) -> State:
        """As `Oryx.init_state`."""
        return self.model.init_state(batch_size, max_length, **options)

    def prefill(self, tokens: Tensor, state: State, *, logits: Literal["last", "all"] = "last") -> tuple[Tensor, State]:
        """As `Oryx.prefill`."""
        control = self.control(tokens, state["position"])
        return self.model.prefill(tokens, state, logits=logits, control=control)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """As `Oryx.step`."""
        mode = self.control(token[:, None], state["position"])["mode"][:, 0]
        return self.model.step(token, state, control={"mode": mode})
