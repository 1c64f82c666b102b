"""The gated-decay exponential moving average, the smallest memory that fades.

    h_t = g_t h_{t-1} + (1 - g_t) u_t,        u = W_u x,  y = W_y h

channel by channel, `u, h, g (B, T, D)`. With g constant and u constant, h_t = (1 - g^t) u.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..context import Context
from ..kernels import full
from .base import Mixer, State


class GatedDecayEMA(Mixer):
    """EMA with one rate per channel, between projections.

    Rates g = exp(-1/tau) start with time constants tau spaced evenly in logarithm from `shortest` to `longest`
    tokens. `decay="fixed"` keeps them in a buffer, `"learned"` makes their logits parameters, `"input"` adds a linear
    map of the token to the logits. State: `(B, D)`, float32 at least.

    Reference: the book, section 14.3.
    """

    no_weight_decay = ("logit",)
    rate: Tensor

    def __init__(self, d_model: int, *, decay: str = "fixed", shortest: float = 1.0, longest: float = 256.0) -> None:
        super().__init__()
        tau = torch.logspace(math.log10(shortest), math.log10(longest), d_model, dtype=torch.float64)
        rate = torch.exp(-1.0 / tau)
        if decay == "fixed":
            self.register_buffer("rate", rate.to(torch.get_default_dtype()))
        else:
            self.logit = nn.Parameter(torch.logit(rate).to(torch.get_default_dtype()))
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.select = nn.Linear(d_model, d_model, bias=False) if decay == "input" else None
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.decay = decay

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the averages."""
        return self.out.in_features

    def rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g and 1 - g, broadcasting to `(B, T, D)`; the second from the logit, so that it loses no digits."""
        if self.decay == "fixed":
            return full(self.rate), 1.0 - full(self.rate)
        logit = full(self.logit) if self.select is None else full(self.select(x)) + full(self.logit)
        return torch.sigmoid(logit), torch.sigmoid(-logit)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        keep, write = self.rates(x)
        u = full(self.value(x)) * write
        h, last = self.run("scan", u, keep, None if state is None else state["h"])
        self.publish(context, h.to(x.dtype))
        return self.out(h.to(x.dtype)), None if state is None else {"h": last}

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        wide = torch.promote_types(dtype, torch.float32)
        return {"h": torch.zeros(batch_size, self.out.in_features, device=device, dtype=wide)}
