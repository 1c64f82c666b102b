"""Forms that only a GPU takes, on the CPU: the same numbers and gradients as torch's own."""

import pytest
import torch
from torch.nn import functional as F

from architectures.layers import AlignedLinear, Lookup, rotary


@pytest.mark.parametrize("large", [0, 1e9])
def test_the_gradient_of_a_lookup_is_that_of_an_embedding(monkeypatch, large):
    monkeypatch.setattr(Lookup, "LARGE", large)
    torch.manual_seed(0)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    tokens, direction = torch.randint(6, (3, 11)), torch.randn(3, 11, 5, dtype=torch.float64)
    expected = torch.autograd.grad(F.embedding(tokens, weight), weight, direction)[0]
    output = Lookup.apply(weight, tokens)
    assert torch.equal(output, F.embedding(tokens, weight))
    torch.testing.assert_close(torch.autograd.grad(output, weight, direction)[0], expected)


def test_a_padded_projection_is_the_projection():
    torch.manual_seed(0)
    linear = AlignedLinear(4, 13).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    plain, padded = linear(x), linear.padded(x, 3)
    assert padded.shape == plain.shape
    torch.testing.assert_close(padded, plain)
    direction = torch.randn_like(plain)
    wanted = torch.autograd.grad(plain, [x, linear.weight], direction)
    found = torch.autograd.grad(padded, [x, linear.weight], direction)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("start", [0, 5, 63])
def test_rotary_angles_are_those_of_their_positions_however_the_table_has_grown(start):
    x = torch.zeros(1, dtype=torch.float64)
    for length in (1, 9, 2):
        cos, sin = rotary(start, length, 6, 977.0, x)
        position = torch.arange(start, start + length, dtype=torch.float64)
        angle = position[:, None] * 977.0 ** -(torch.arange(0, 6, 2, dtype=torch.float64) / 6)
        torch.testing.assert_close(cos, angle.cos())
        torch.testing.assert_close(sin, angle.sin())


def test_rotary_tables_made_under_inference_mode_serve_training():
    x = torch.randn(3, 4, requires_grad=True)
    with torch.inference_mode():
        rotary(0, 3, 4, 31.0, torch.zeros(1))
    cos, _ = rotary(0, 3, 4, 31.0, x)
    (x[:, :2] * cos).sum().backward()
    assert x.grad is not None
