"""The short causal depthwise convolution, `y_t = sum_i w_i x_{t-K+1+i} (+ bias)`, alone or with SiLU of it.

Shapes: `x (B, T, C)`, `weight (C, 1, K)`, `bias (C,)` or None, `state (B, K, C)` the last K inputs before x or None.
Returned: `y (B, T, C)`, and the last K inputs, None without a state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def _with_past(x: Tensor, width: int, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """`x` after the K - 1 inputs before it, zeros without a state; and the last K inputs."""
    if state is None:
        return F.pad(x, (0, 0, width - 1, 0)), None
    return torch.cat([state[:, 1:].to(x.dtype), x], dim=1), torch.cat([state, x.to(state.dtype)], dim=1)[:, -width:]


def continued(
    kernel: Callable[[Tensor], Tensor], x: Tensor, width: int, state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What a `kernel` that starts from nothing makes of `x` after the inputs in `state`: they are put in front, and
    their outputs dropped."""
    if state is None:
        return kernel(x), None
    padded, after = _with_past(x, width, state)
    return kernel(padded)[:, width - 1 :], after


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The definition, one lag after the other."""
    padded, state = _with_past(x, weight.shape[-1], state)
    y = sum(weight[:, 0, i] * padded[:, i : i + x.shape[1]] for i in range(weight.shape[-1]))
    assert isinstance(y, Tensor)
    return y if bias is None else y + bias, state


def chunked(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """torch's grouped convolution."""
    padded, state = _with_past(x, weight.shape[-1], state)
    y = F.conv1d(padded.transpose(1, 2), weight, bias, groups=weight.shape[0])
    return y.transpose(1, 2), state


def plain_silu(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """SiLU of `plain`."""
    y, state = plain(x, weight, bias, state)
    return F.silu(y), state


def chunked_silu(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """SiLU of `chunked`."""
    y, state = chunked(x, weight, bias, state)
    return F.silu(y), state
