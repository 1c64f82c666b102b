"""Mixers made of two mixers: one after the other, or blended by a gate. `fused.py` has the third way.

Shapes: branches `a, s (B, T, D)` of the same input `x (B, T, D)`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..context import Context
from ..kernels import full
from .base import Mixer, State


class Pair(Mixer):
    """Two mixers with a state each, under `first` and `second`."""

    def __init__(self, first: Mixer, second: Mixer) -> None:
        super().__init__()
        self.first, self.second = first, second

    def both(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, Tensor, State | None]:
        """The outputs of both for the same input, and the states after it."""
        y, first = self.first.mix(x, None if state is None else state["first"], context)
        z, second = self.second.mix(x, None if state is None else state["second"], context)
        return y, z, None if state is None else {"first": first, "second": second}

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return {
            "first": self.first.init_state(batch_size, max_length, device=device, dtype=dtype),
            "second": self.second.init_state(batch_size, max_length, device=device, dtype=dtype),
        }


class Sequential(Pair):
    """`second(first(x))`, with no residual between them.

    Reference: the book, section 14.3, pattern 1.
    """

    def __init__(self, d_model: int, *, first: Mixer, second: Mixer) -> None:
        super().__init__(first, second)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        y, first = self.first.mix(x, None if state is None else state["first"], context)
        y, second = self.second.mix(y, None if state is None else state["second"], context)
        return y, None if state is None else {"first": first, "second": second}


def blend(gate: Tensor, a: Tensor, s: Tensor) -> Tensor:
    """`g a + (1 - g) s`; finite branches come back bitwise at g = 1 and g = 0."""
    return gate * a + (1 - gate) * s


class Parallel(Pair):
    """`g a + (1 - g) s` of an attention branch a and a recurrent branch s.

    `gate`: g = sigmoid of a parameter (`scalar`; `vector`: one per channel), or of a linear map of the token with bias
    (`input_scalar`, `input_vector`), all starting at 1/2; `block`: g is 1 or 0 by design, `block_choice` says which
    branch there is, and the other is not built.

    Reference: the book, section 14.3, pattern 2, and section 14.4.
    """

    no_weight_decay = ("logit",)

    def __init__(
        self,
        d_model: int,
        *,
        attention: Mixer,
        recurrent: Mixer,
        gate: str = "vector",
        block_choice: str = "attention",
    ) -> None:
        super().__init__(attention, recurrent)
        self.gate, self.block_choice = gate, block_choice
        width = 1 if gate.endswith("scalar") else d_model
        if gate == "block":
            del self.first, self.second
            self.only = attention if block_choice == "attention" else recurrent
        elif gate.startswith("input"):
            self.gate_map = nn.Linear(d_model, width)
        else:
            self.logit = nn.Parameter(torch.zeros(width))

    def gate_values(self, x: Tensor) -> Tensor:
        """g, broadcasting to `(B, T, D)`."""
        return torch.sigmoid(full(self.gate_map(x) if self.gate.startswith("input") else self.logit)).to(x.dtype)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        if self.gate == "block":
            return self.only.mix(x, state, context)
        a, s, state = self.both(x, state, context)
        return blend(self.gate_values(x), a, s), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        if self.gate == "block":
            return self.only.init_state(batch_size, max_length, device=device, dtype=dtype)
        return super().init_state(batch_size, max_length, device=device, dtype=dtype)
