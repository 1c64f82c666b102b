"""The contract of a mixer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import kernels
from ..context import Context

State = dict[str, Any]
"""A mixer's decoding state: named tensors, nested states, and the number of tokens seen where it matters."""


class Mixer(nn.Module):
    """Maps `(B, T, D)` to `(B, T, D)` causally, all at once or continuing from a state.

    A subclass implements `mix` and `init_state`. `no_weight_decay` names parameters of its own that the optimiser
    must not shrink, besides those with fewer than two dimensions.
    """

    no_weight_decay: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.kernels: kernels.Kernels = "auto"
        self.kernels_used: dict[str, str] = {}
        self.stream: str | None = None
        """The name under which this layer publishes its stream, None where no layer reads it."""

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        """The outputs for `x (B, T, D)` after the tokens in `state`, and the state after them.

        Without a state the sequence starts here and None is returned for it. `state` is used up.
        """
        raise NotImplementedError

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        """The state before the first token, room for `max_length` tokens in all. `dtype` is that of the caches."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """The training path: a whole sequence `(B, T, D)` from its start."""
        return self.mix(x, None, context or Context())[0]

    def prefill(self, x: Tensor, state: State, context: Context | None = None) -> tuple[Tensor, State]:
        """The next tokens `(B, T, D)` of a sequence, and the state after them. `state` is used up."""
        y, after = self.mix(x, state, context or Context())
        assert after is not None
        return y, after

    def step(self, x: Tensor, state: State, context: Context | None = None) -> tuple[Tensor, State]:
        """The next token `(B, D)` of a sequence, and the state after it. `state` is used up."""
        y, after = self.prefill(x[:, None], state, context)
        return y[:, 0], after

    def run(self, operation: str, *args: Tensor | None) -> Any:
        """Runs an operation of `architectures.kernels` with this mixer's choice of backend."""
        return kernels.call(operation, self.kernels, self.kernels_used, *args)

    def publish(self, context: Context, value: Any) -> None:
        """Leaves `value` for the layers that read this one's stream."""
        if self.stream is not None:
            context.streams[self.stream] = value


def state_tensors(state: Any) -> list[Tensor]:
    """All tensors of a decoding state, nested ones included."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [tensor for item in state for tensor in state_tensors(item)]
    return []


def state_bytes(state: Any) -> int:
    """Bytes of a decoding state, counted from its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(state))
