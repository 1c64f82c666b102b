"""The stack: embedding, blocks of (norm, mixer, norm, SwiGLU), final norm, head.

Shapes: `B` sequences, `T` tokens, `D = d_model`, `V` outputs, `n` selected positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .construct import build_layers
from .context import Context, Output
from .initialise import initialise
from .kernels import Kernels
from .layers import RMSNorm, embed
from .mixers.base import Mixer
from .mixers.mlp import SwiGLU
from .position_head import PositionMLP

State = dict[str, Any]
"""`position`: tokens seen; `max_length`: room; `layers`: each mixer's state."""


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))` unless `d_ff` is 0."""

    def __init__(self, mixer: Mixer, d_model: int, d_ff: int, norm_eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model, norm_eps)
        self.mixer = mixer
        self.mlp_norm = RMSNorm(d_model, norm_eps) if d_ff else None
        self.mlp = SwiGLU(d_model, d_ff=d_ff) if d_ff else None

    def forward(self, x: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """`(B, T, D)` to `(B, T, D)`, a whole sequence; with `positions`, as in `select`, to `(n, D)` there: nothing is
        computed for others that these do not need."""
        return self.feed(select(x + self.mixer(self.norm(x), context), positions))

    def prefill(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """The next `(B, T, D)` of a sequence, and the mixer's state after them."""
        y, state = self.mixer.prefill(self.norm(x), state, context)
        return self.feed(x + y), state

    def feed(self, x: Tensor) -> Tensor:
        """The MLP's half of the block."""
        if self.mlp is None or self.mlp_norm is None:
            return x
        return x + self.mlp(self.mlp_norm(x))


class Stack(nn.Module):
    """A model built from a resolved spec of kind `stack`, or around the `layers` of a model of another kind.

    `backbone` runs embedding and blocks, `norm` and `head` the rest, so that a model built around a stack can use its
    parts.
    """

    def __init__(
        self, spec: Mapping[str, Any], kernels: Kernels = "auto", *, layers: Sequence[Mixer] | None = None
    ) -> None:
        super().__init__()
        self.spec = dict(spec)
        d_model, eps = spec["d_model"], spec["norm_eps"]
        self.embedding = nn.Embedding(spec["vocab_size"], d_model)
        layers = build_layers(spec, kernels) if layers is None else layers
        self.blocks = nn.ModuleList(Block(mixer, d_model, spec["d_ff"], eps) for mixer in layers)
        self.norm = RMSNorm(d_model, eps)
        self.readout: nn.Linear | None = None
        self.position_head: PositionMLP | None = None
        if spec["head"]["kind"] == "position_mlp":
            self.position_head = PositionMLP(d_model, spec["head"]["hidden"], spec["vocab_size"])
        elif spec["head"]["kind"] == "linear":
            self.readout = nn.Linear(d_model, spec["head"]["size"])
        elif not spec["tie"]:
            self.readout = nn.Linear(d_model, spec["vocab_size"], bias=False)
        initialise(self, spec["init_std"])

    @property
    def kernels_used(self) -> dict[str, str]:
        """The backend of each operation that has run, by operation."""
        used: dict[str, str] = {}
        for module in self.modules():
            if isinstance(module, Mixer):
                used.update(module.kernels_used)
        return used

    def head(self, features: Tensor) -> Tensor:
        """Logits `(..., V)` of normalised features `(..., D)`."""
        return F.linear(features, self.embedding.weight) if self.readout is None else self.readout(features)

    def begin(self, tokens: Tensor, context: Context, start: int = 0) -> None:
        """What a model has to settle before its layers run on `tokens (B, T)`, which come after `start` others."""

    def backbone(
        self,
        tokens: Tensor,
        context: Context,
        features: list[Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The residual stream after the last block, `(B, T, D)`, or `(n, D)` at `positions`; `features` collects it
        after each part."""
        self.begin(tokens, context)
        x = embed(self.embedding.weight, tokens)
        if features is not None:
            features.append(x)
        for index, block in enumerate(self.blocks, 1):
            x = block(x, context, positions if index == len(self.blocks) else None)
            if features is not None:
                features.append(x)
        return x

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        control: Mapping[str, Tensor] | None = None,
        features: bool = False,
    ) -> Output:
        """Logits for `tokens (B, T)`.

        `positions` is a boolean mask `(B, T)`, or the int64 indices `(n,)` of positions counted row by row: logits
        are then `(n, V)` and computed nowhere else. With `features`, `extras["features"]` has the residual streams.
        """
        context = Context(control=control or {}, head=self.head)
        collected: list[Tensor] | None = [] if features else None
        whole = self.position_head is not None or collected is not None
        x = self.backbone(tokens, context, collected, None if whole else positions)
        if self.position_head is not None:
            x = self.norm(x)
            if collected is not None:
                context.extras["features"] = (*collected, x)
            return Output(self.position_head(select(self.position_head.coded(x), positions)), context.extras)
        if collected is not None:
            x = self.norm(x)
            context.extras["features"] = (*collected, x)
            return Output(self.head(select(x, positions)), context.extras)
        return Output(self.head(self.norm(x)), context.extras)

    def init_state(
        self,
        batch_size: int,
        max_length: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first token, with room for `max_length`; device and dtype default to the weights'."""
        device = torch.device(device) if device is not None else self.embedding.weight.device
        dtype = dtype or self.embedding.weight.dtype
        mixers = [cast(Block, block).mixer for block in self.blocks]
        layers = [mixer.init_state(batch_size, max_length, device=device, dtype=dtype) for mixer in mixers]
        return {"position": 0, "max_length": max_length, "layers": layers}

    def advance(self, tokens: Tensor, state: State, context: Context) -> Tensor:
        """The residual stream `(B, T, D)` after the last block for the next tokens; moves `state` on."""
        stop = state["position"] + tokens.shape[1]
        if stop > state["max_length"]:
            raise ValueError(f"max_length: the state has room for {state['max_length']} tokens, {stop} were given")
        self.begin(tokens, context, state["position"])
        x = embed(self.embedding.weight, tokens)
        for index, block in enumerate(self.blocks):
            x, state["layers"][index] = cast(Block, block).prefill(x, state["layers"][index], context)
        state["position"] = stop
        return x

    def prefill(
        self,
        tokens: Tensor,
        state: State,
        *,
        logits: Literal["last", "all"] = "last",
        control: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """The next `tokens (B, T)` of a sequence: logits `(B, V)` after the last, or `(B, T, V)`, and the new state.

        No tokens, `T = 0`, leave the state as it is. Raises `ValueError` when the state's `max_length` is exceeded, and
        for the logits after the last of none; `NotImplementedError` for a head that reads whole sequences.
        """
        if self.position_head is not None:
            raise NotImplementedError(
                "head.kind: 'position_mlp' reads a whole sequence and has no logits token by token"
            )
        if not tokens.shape[1]:
            return self.no_logits(tokens, logits), state
        x = self.advance(tokens, state, Context(control=control or {}, head=self.head))
        return self.head(self.norm(x[:, -1] if logits == "last" else x)), state

    def no_logits(self, tokens: Tensor, logits: Literal["last", "all"]) -> Tensor:
        """Logits `(B, 0, V)` of no tokens `(B, 0)`. ValueError where those after the last are asked for."""
        if logits == "last":
            raise ValueError("tokens: none, and logits='last' needs one; nearest: logits='all'")
        return self.head(embed(self.embedding.weight, tokens))

    def step(self, token: Tensor, state: State, *, control: Mapping[str, Tensor] | None = None) -> tuple[Tensor, State]:
        """The next `token (B,)` of a sequence: logits `(B, V)` and the new state. `control`: named `(B,)` tensors."""
        control = {name: value[:, None] for name, value in (control or {}).items()}
        return self.prefill(token[:, None], state, control=control)


def select(x: Tensor, positions: Tensor | None) -> Tensor:
    """`x (B, T, D)` at a boolean mask `(B, T)` or at flat int64 indices `(n,)`, as `(n, D)`; all of it for None."""
    if positions is None:
        return x
    return x[positions] if positions.dtype == torch.bool else x.flatten(0, 1)[positions]
