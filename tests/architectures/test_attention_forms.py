"""Attention against its definition, position by position."""

from __future__ import annotations

import math

import pytest
import torch

from architectures.layers import rotary, rotate
from architectures.mixers.attention import Attention, SlidingAttention, attend, attend_banded


def by_position(q, k, v, window):
    """Softmax over the last `window` keys, one query at a time."""
    out = torch.zeros_like(v)
    for t in range(q.shape[2]):
        lo = max(0, t - window + 1)
        scores = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k[:, :, lo : t + 1]) / math.sqrt(q.shape[-1])
        out[:, :, t] = torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), v[:, :, lo : t + 1])
    return out


def qkv(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100])
@pytest.mark.parametrize("window", [1, 3, 16, 1000])
def test_banded_attention_equals_its_per_position_form(length, window):
    q, k, v = qkv(length)
    expected = by_position(q, k, v, window)
    assert (attend(q, k, v, window) - expected).abs().max() < 1e-12
    assert (attend_banded(q, k, v, window) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("length", [1, 17, 64])
def test_window_of_the_length_is_full_attention_exactly(length):
    torch.manual_seed(0)
    full = Attention(16, head_dim=8)
    sliding = SlidingAttention(16, window=length, head_dim=8)
    sliding.load_state_dict(full.state_dict())
    x = torch.randn(2, length, 16)
    assert torch.equal(full(x), sliding(x))


def test_rotary_scores_depend_on_the_distance_only():
    x = torch.randn(2, 8, dtype=torch.float64)
    near = [rotate(x[i : i + 1], *rotary(p, 1, 8, 10000.0, x)) for i, p in ((0, 3), (1, 9))]
    far = [rotate(x[i : i + 1], *rotary(p, 1, 8, 10000.0, x)) for i, p in ((0, 1003), (1, 1009))]
    torch.testing.assert_close(near[0] @ near[1].T, far[0] @ far[1].T, atol=1e-10, rtol=0)
    assert not torch.allclose(near[0] @ near[1].T, x[:1] @ x[1:].T)


def test_sliding_caches_never_grow():
    layer = SlidingAttention(16, window=4, head_dim=8).double()
    state = layer.init_state(2, 100, device=torch.device("cpu"), dtype=torch.float64)
    x = torch.randn(2, 40, 16, dtype=torch.float64)
    whole, at, parts = layer(x), 0, []
    for size in (1, 7, 1, 1, 3, 2, 9, 16):
        y, state = layer.prefill(x[:, at : at + size], state)
        parts.append(y)
        at += size
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-12, rtol=0)
    assert state["k"].shape == (2, 2, 4, 8)


def test_a_long_segment_after_others_is_computed_in_blocks():
    """No mask of the segment's length squared: 3,000 tokens after 5, in a window of 4."""
    layer = SlidingAttention(16, window=4, head_dim=8).double()
    x = torch.randn(1, 3005, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = layer.init_state(1, 3005, device=torch.device("cpu"), dtype=torch.float64)
    _, state = layer.prefill(x[:, :5], state)
    y, _ = layer.prefill(x[:, 5:], state)
    torch.testing.assert_close(y, layer(x)[:, 5:], atol=1e-12, rtol=0)


def test_a_long_segment_continues_in_pieces(monkeypatch):
    from architectures.mixers import attention

    q, k, v = qkv(100)
    whole = attend(q, k, v)
    monkeypatch.setattr(attention, "QUERIES", 16)
    assert (attend(q[:, :, 37:], k, v) - whole[:, :, 37:]).abs().max() < 1e-12
