"""A chunk's attention in two parts is attention over everything, and AMOR's sparse prefill uses it."""

from __future__ import annotations

import pytest
import torch
from decoding_models import V, model_of
from torch.nn import functional as F

from architectures.decoding import prefill
from architectures.mixers.partial import attend_chunk, attend_with_mass, join


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_two_parts_join_to_the_whole(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, size, 8, dtype=torch.float64, generator=generator) for size in (5, 11, 11))
    q *= scale
    parts = [attend_with_mass(q, k[:, :, part], v[:, :, part], causal=False) for part in (slice(0, 4), slice(4, 11))]
    torch.testing.assert_close(join(*parts), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=0)


@pytest.mark.parametrize("before", [0, 7])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_queries_at_some_positions(density: float, before: int) -> None:
    generator = torch.Generator().manual_seed(1)
    length = 9
    keys, values = (torch.randn(3, 2, before + length, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    every = torch.randn(3, length, 2, 8, dtype=torch.float64, generator=generator)
    fire = torch.rand(3, length, generator=generator) < density
    row, place = fire.nonzero(as_tuple=True)
    slot = fire.cumsum(1)[row, place] - 1
    found = attend_chunk(every[row, place], row, place, slot, keys, values, length)
    mask = torch.ones(length, before + length, dtype=torch.bool).tril(before)
    expected = F.scaled_dot_product_attention(every.transpose(1, 2), keys, values, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(found, expected[row, place], atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk", [1, 6, 23])
def test_sparse_prefill_in_chunks_is_the_dense_pass(chunk: int) -> None:
    model = model_of("Amor-Mamba2")
    tokens = torch.randint(V, (3, 23), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(tokens).logits[:, -1]
    model.mode = "sparse"
    found, _ = prefill(model, tokens, model.init_state(3, 23), chunk=chunk)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
