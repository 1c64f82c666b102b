"""The Triton convolution is the definition, on a GPU or (with TRITON_INTERPRET=1) in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from architectures import kernels
from architectures.kernels import canary

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not here"),
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor Triton's interpreter"
    ),
]
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Triton's interpreter cuts off where a GPU rounds."""
SHAPES = [(2, 19, 6, 4), (1, 33, 70, 3), (3, 7, 8, 2), (2, 5, 16, 1), (2, 100, 72, 4), (1, 9, 20, 8), (1, 2, 3, 5)]


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def compare(operation, x, weight, bias, direction):
    """Errors of output and gradients, relative, against the definition in float64."""
    results = []
    for backend, dtype in (("triton", None), ("plain", torch.float64)):
        leaves = [y if dtype is None else y.to(dtype) for y in (x, weight, bias) if y is not None]
        leaves = [y.detach().requires_grad_() for y in leaves]
        y, state = kernels.load(operation, backend)(*leaves[:2], leaves[2] if bias is not None else None)
        assert state is None
        results.append([y, *torch.autograd.grad(y, leaves, direction.to(y.dtype))])
    for found, expected in zip(*results, strict=True):
        assert found.shape == expected.shape
        assert (found - expected).norm() <= TOLERANCE[x.dtype] * expected.norm()


@pytest.mark.parametrize("operation", ["short_conv", "short_conv_silu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(operation, bias, shape):
    batch, length, channels, width = shape
    x, weight = draw(batch, length, channels), draw(channels, 1, width)
    compare(operation, x, weight, draw(channels) if bias else None, draw(batch, length, channels) + x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("offset", [8, 3])
def test_a_slice_of_a_projection_in_any_precision(dtype, offset):
    """Aligned to vectors and not; weights in float32 as under autocast; a gradient that is a slice as well."""
    weight = draw(24, 1, 4, dtype=torch.promote_types(dtype, torch.float32))
    x = draw(2, 65, 40, dtype=dtype)[..., offset : offset + 24]
    direction = draw(65, 2, 40, dtype=dtype).transpose(0, 1)[..., offset : offset + 24]
    compare("short_conv_silu", x, weight, weight.sum((1, 2)), direction)


@pytest.mark.parametrize("layout", ["channels first", "one value"])
def test_layouts_that_are_copied(layout):
    x = draw(2, 12, 9).transpose(1, 2) if layout == "channels first" else draw(1, 1, 1).expand(2, 9, 12)
    compare("short_conv_silu", x, draw(12, 1, 4), draw(12), x)


@pytest.mark.parametrize("tokens", [8, 16, 32])
def test_every_length_of_a_segment(tokens, monkeypatch):
    from architectures.kernels import conv_triton

    monkeypatch.setattr(conv_triton, "LENGTHS", (tokens,))
    compare("short_conv_silu", draw(3, 70, 8), draw(8, 1, 4), draw(8), draw(3, 70, 8) + 1)


def test_segments_are_long_where_there_are_many():
    from architectures.kernels import conv_triton

    weight = torch.empty(384, 4)
    for batch, tokens in ((64, 32), (24, 16), (1, 8)):
        each, _, plan = conv_triton._plan(torch.empty(batch, 512, 384), weight, None, True)
        assert (each, plan["LENGTH"]) == (512 // tokens, tokens)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_extremes_stay_finite():
    x = torch.tensor([-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4], device=DEVICE)[None, :, None].repeat(1, 1, 4)
    compare("short_conv_silu", x, torch.ones(4, 1, 1, device=DEVICE), None, torch.ones_like(x))


def test_a_sequence_can_be_cut_anywhere():
    for operation in ("short_conv", "short_conv_silu"):
        function, x, weight = kernels.load(operation, "triton"), draw(2, 21, 8), draw(8, 1, 4)
        whole, _ = function(x, weight, None)
        first, state = function(x[:, :6], weight, None, draw(2, 4, 8) * 0)
        second, state = function(x[:, 6:], weight, None, state)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-14, rtol=0)
        torch.testing.assert_close(state, x[:, -4:])


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_nothing_comes_of_nothing(shape):
    from architectures.kernels import conv_triton

    x, weight = torch.zeros(shape, device=DEVICE), draw(8, 4, dtype=torch.float32)
    assert conv_triton.forward(x, weight, None, True).shape == shape
    dx, sums = conv_triton.backward(x, x, weight, None, True)
    assert dx.shape == shape
    assert torch.equal(sums, torch.zeros(32, device=DEVICE))


def test_gradients_are_the_same_in_every_run_and_the_canary_accepts():
    call = canary.Call("short_conv_silu", (draw(4, 50, 40, dtype=torch.bfloat16), draw(40, 1, 4).float(), None, None))
    one, other = (canary.judge(call, "triton") for _ in range(2))
    assert one.accepted, one.line()
    assert one == other


def test_a_kernel_that_is_too_wide_is_refused_with_its_width():
    call = canary.Call("short_conv_silu", (draw(2, 20, 8), draw(8, 1, 9), None, None))
    verdict = canary.judge(call, "triton")
    assert not verdict.accepted
    assert "width 1 to 8, not 9" in verdict.reason
