"""Forms that only a GPU takes, on the CPU: the same numbers and gradients as torch's own."""

import pytest
import torch
from torch.nn import functional as F

from architectures.layers import AlignedLinear, Lookup, RMSNorm, rotary, rotary_pairs, rotate, rotate_pairs


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


@pytest.mark.parametrize("start", [0, 7])
def test_rotating_pairs_is_rotating(start):
    x, direction = (torch.randn(2, 9, 3, 6, requires_grad=True) for _ in range(2))
    angles, pairs = rotary(start, 9, 6, 31.0, x), rotary_pairs(start, 9, 6, 31.0, x)
    results = []
    for function, factors in ((rotate, angles), (rotate_pairs, pairs)):
        output = function(x, *(part[:, None] for part in factors))
        results.append([output, *torch.autograd.grad(output, x, direction)])
    torch.testing.assert_close(results[0], results[1])
    assert torch.equal(
        *(function(x.bfloat16(), *(p[:, None] for p in f)) for function, f in ((rotate, angles), (rotate_pairs, pairs)))
    )


class OnAGPU(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_norms_on_a_gpu_are_the_formula_compiled_and_not(monkeypatch, dtype):
    norm = RMSNorm(6).double()
    torch.nn.init.normal_(norm.weight)
    x, direction = torch.randn(2, 5, 6, dtype=dtype), torch.randn(2, 5, 6, dtype=dtype)
    results = []
    for cls, compiling in ((torch.Tensor, False), (OnAGPU, False), (OnAGPU, True)):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        leaf = x.clone().requires_grad_()
        output = norm(leaf.as_subclass(cls)).as_subclass(torch.Tensor)
        results.append([output, *torch.autograd.grad(output, [leaf, norm.weight], direction)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])
