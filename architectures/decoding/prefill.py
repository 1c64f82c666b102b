"""Prefill in chunks: what is held beside weights and caches depends on the chunk, not on the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 4096
"""Tokens at a time: enough to fill a GPU at 1.5B parameters."""


@torch.no_grad()
def prefill(
    model: nn.Module,
    tokens: Tensor,
    state: dict[str, Any],
    *,
    chunk: int = CHUNK,
    control: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """The next `tokens (B, T)` of a sequence, `chunk` at a time: logits `(B, V)` after the last, and the state.

    Equal to `model.prefill(tokens, state)`, which is the case of one chunk. `control`: named `(B, T)` tensors.
    ValueError for a chunk below 1 and for no tokens.
    """
    if chunk < 1:
        raise ValueError(f"chunk: {chunk} tokens; nearest: 1")
    if not tokens.shape[1]:
        raise ValueError("tokens: none; nearest: 1 token")
    control = control or {}
    for start in range(0, tokens.shape[1], chunk):
        part = {name: value[:, start : start + chunk] for name, value in control.items()}
        logits, state = model.prefill(tokens[:, start : start + chunk], state, control=part)  # type: ignore[operator]
    return logits, state
