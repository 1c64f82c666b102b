"""Attention beside an intact recurrent mixer, ungated: AMOR's fused baseline and Hymba's heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..context import Context
from ..layers import RMSNorm, rotary, rotate
from .attention import Attention, attend, empty_cache, extend_cache
from .base import Mixer, State
from .composite import Pair
from .mamba2 import Mamba2


class Fused(Pair):
    """`combine="sum"`: a + s of an attention branch a and a recurrent branch s of the same input.

    `"mean_of_norms"`: the mean of both after an RMSNorm each, whose weights are Hymba's scales per channel.

    `"map"`: a is `BorrowedAttention`, which takes keys and values from a Mamba-2. AMOR's Table 5 has the fused layers
    D^2 parameters above Mamba-2's, room for one map and for no projections of attention's own; which map that is the
    paper does not say, and this is a form that fits.

    Reference: AMOR, arXiv 2602.13215, baselines; Dong et al. 2024 (Hymba), arXiv 2411.13676, section 2.1.
    """

    def __init__(
        self, d_model: int, *, attention: Mixer, recurrent: Mixer, combine: str = "map", norm_eps: float = 1e-5
    ) -> None:
        if combine == "map":
            attention = BorrowedAttention(d_model, attention, recurrent)
        super().__init__(attention, recurrent)
        self.combine = combine
        if combine == "mean_of_norms":
            self.first_norm, self.second_norm = RMSNorm(d_model, norm_eps), RMSNorm(d_model, norm_eps)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        if isinstance(self.first, BorrowedAttention):
            assert isinstance(self.second, Mamba2)
            s, shown, second = self.second.mix_and_show(x, None if state is None else state["second"], context)
            a, first = self.first.read(x, shown, None if state is None else state["first"])
            return a + s, None if state is None else {"first": first, "second": second}
        a, s, state = self.both(x, state, context)
        if self.combine == "sum":
            return a + s, state
        return (self.first_norm(a) + self.second_norm(s)) / 2, state


class BorrowedAttention(Mixer):
    """Causal attention with RoPE: queries from a D x D map of the token, keys and values the first and the second D
    channels of a Mamba-2's convolved input. Its output is added as it is.

    Head size and rotation are those of `attention`; `recurrent` is a Mamba-2 with `expand` of 2 or more.
    """

    def __init__(self, d_model: int, attention: Mixer, recurrent: Mixer) -> None:
        super().__init__()
        assert isinstance(attention, Attention)
        assert isinstance(recurrent, Mamba2)
        assert recurrent.inner >= 2 * d_model
        self.width, self.head_dim, self.rope_base = d_model, attention.head_dim, attention.rope_base
        self.query = nn.Linear(d_model, d_model, bias=False)

    def read(self, x: Tensor, shown: Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Outputs `(B, T, D)` for `x (B, T, D)` and the Mamba-2's input `shown (B, T, I)`, and the cache after them."""
        parts = (self.query(x), *shown[..., : 2 * self.width].chunk(2, dim=-1))
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        if self.rope_base is not None:
            start = 0 if state is None else state["length"]
            cos, sin = rotary(start, x.shape[1], self.head_dim, self.rope_base, x)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if state is not None:
            k, v = extend_cache(state, k, v)
        return attend(q, k, v).transpose(1, 2).flatten(2), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        return empty_cache((batch_size, self.width // self.head_dim, max_length, self.head_dim), device, dtype)
