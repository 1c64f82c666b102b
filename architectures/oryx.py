"""Oryx: a stack of blocks that each hold attention and a linear recurrence, and change between them at any token.

    model = build({"kind": "oryx", "mixer": "gdn", "vocab_size": 16})         # Oryx-TG
    logits = model(tokens, control={"mode": mode}).logits                      # mode (B, T): 0 attention, 1 linear

Without a mode every layer attends. `architectures.oryx_modes` says what the control tensors are.

Reference: Li et al., Oryx, arXiv 2605.28769.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .context import Context
from .kernels import Kernels
from .oryx_block import STREAM, OryxMixer
from .oryx_modes import Modes, Path
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

    def backbone(self, tokens: Tensor, context: Context, features: list[Tensor] | None = None) -> Tensor:
        modes = self._modes(tokens, context)
        context.extras["metrics"] = modes.metrics()
        return super().backbone(tokens, context, features)

    def advance(self, tokens: Tensor, state: State, context: Context) -> Tensor:
        modes = self._modes(tokens, context)
        context.extras["metrics"] = modes.metrics(state["position"])
        return super().advance(tokens, state, context)

    def _modes(self, tokens: Tensor, context: Context) -> Modes:
        modes = Modes(self.spec["modes"], context.control, tokens, self.path)
        context.streams[STREAM] = modes
        return modes
