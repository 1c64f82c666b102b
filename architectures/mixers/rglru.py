"""Griffin's recurrent block around the real-gated linear recurrent unit (RG-LRU).

    r_t = sigmoid(W_a u_t + b_a),  i_t = sigmoid(W_x u_t + b_x),  a_t = exp(-c softplus(L) r_t)
    h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t u_t)

channel by channel; W_a and W_x are block-diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..context import Context
from ..kernels import full
from ..layers import ShortConvolution
from .base import Mixer, State


class BlockDiagonal(nn.Module):
    """`y = W x + b` with W of `blocks` equal blocks on the diagonal; W from N(0, 1 / block width), b zero."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        size = width // blocks
        self.weight = nn.Parameter(torch.randn(blocks, size, size) * size**-0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        blocks, size, _ = self.weight.shape
        return torch.einsum("...ni,nij->...nj", x.unflatten(-1, (blocks, size)), self.weight).flatten(-2) + self.bias


class RGLRU(Mixer):
    """Two branches: a linear map, short convolution with bias and the RG-LRU; a linear map and GELU. Their product is
    mapped back to D.

    L starts where a^2 at r = 1 is uniform in [0.9^2, 0.999^2]. State: convolution `(B, K, width)` and
    `(B, width)` in float32 at least. Left out of Griffin's block: biases of the linear maps.

    Reference: De et al. 2024, arXiv 2402.19427, section 2.4 and appendix A.
    """

    no_weight_decay = ("rate",)

    def __init__(self, d_model: int, *, width: int, blocks: int, conv: int = 4, c: float = 8.0) -> None:
        super().__init__()
        self.width, self.c = width, c
        self.project = nn.Linear(d_model, 2 * width, bias=False)
        self.conv = ShortConvolution(width, conv, bias=True) if conv else None
        self.recurrence_gate = BlockDiagonal(width, blocks)
        self.input_gate = BlockDiagonal(width, blocks)
        squared = torch.empty(width).uniform_(0.9**2, 0.999**2)
        target = -0.5 * squared.log() / c  # softplus(L)
        self.rate = nn.Parameter(torch.log(torch.expm1(target)))
        self.out = nn.Linear(width, d_model, bias=False)

    @property
    def stream_width(self) -> int:
        """Channels of the published stream, the recurrence's output."""
        return self.width

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        u, gate = self.project(x).chunk(2, dim=-1)
        conv_state = None if state is None else state.get("conv")
        if self.conv is not None:
            u, conv_state = self.conv(u, conv_state, self.run)
        log_a = -self.c * F.softplus(full(self.rate)) * torch.sigmoid(full(self.recurrence_gate(u)))
        scale = torch.sqrt(-torch.expm1(2 * log_a))
        write = scale * torch.sigmoid(full(self.input_gate(u))) * full(u)
        h, last = self.run("scan", write, log_a.exp(), None if state is None else state["h"])
        h = h.to(x.dtype)
        self.publish(context, h)
        if state is not None:
            state = {"h": last} if conv_state is None else {"h": last, "conv": conv_state}
        return self.out(h * F.gelu(gate, approximate="tanh")), state

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        wide = torch.promote_types(dtype, torch.float32)
        state: State = {"h": torch.zeros(batch_size, self.width, device=device, dtype=wide)}
        if self.conv is not None:
            state["conv"] = self.conv.init_state(batch_size, device=device, dtype=dtype)
        return state
