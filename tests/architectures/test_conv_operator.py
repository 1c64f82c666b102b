"""The convolution's operators: gradients, traced shapes, one compiled graph; their kernels are written in torch here.

The Triton kernels themselves are compared with the definition in `test_conv_triton.py`.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch.nn import functional as F

from architectures import build, kernels
from architectures.kernels import canary, conv, conv_operator, gpu
from architectures.layers import ShortConvolution

B, T, C, K = 2, 19, 6, 4


def causal_conv1d_fwd(x, weight, bias, residual, activation):
    y, _ = conv.plain(x, weight[:, None], bias)
    return (F.silu(y) if activation else y).contiguous(), None


def causal_conv1d_bwd(x, dy, dht, weight, bias, activation):
    y, _ = conv.plain(x, weight[:, None], bias)
    s = y.sigmoid()
    dy = dy * s * (1 + y * (1 - s)) if activation else dy
    late, early = F.pad(dy, (0, 0, 0, K - 1)), F.pad(x, (0, 0, K - 1, 0))
    dx = sum(weight[:, i] * late[:, K - 1 - i : K - 1 - i + x.shape[1]] for i in range(K))
    dw = torch.stack([(dy * early[:, i : i + x.shape[1]]).sum((0, 1)) for i in range(K)], dim=1)
    return dx, dw, None if bias is None else dy.sum((0, 1)), None, None


def forward(x, w, b, silu):
    return causal_conv1d_fwd(x, w, b, None, silu)[0]


def backward(dy, x, w, b, silu):
    dx, *sums = causal_conv1d_bwd(x, dy, None, w, b, silu)[:3]
    return dx.contiguous(), torch.cat([y.flatten() for y in sums if y is not None])


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    """The packages' functions in torch."""
    ours = types.ModuleType("architectures.kernels.conv_triton")
    ours.forward, ours.backward = forward, backward
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    module = types.ModuleType("fla.modules.causal_conv1d")
    module.causal_conv1d_fwd, module.causal_conv1d_bwd = causal_conv1d_fwd, causal_conv1d_bwd
    for name in ("fla", "fla.modules"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    canary.forget()


def leaves(*, bias, start=False):
    """A projection of which the convolution reads a slice, weights, and the inputs before it."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, C + 5), (C, 1, K)] + [(C,)] * bias + [(B, K, C)] * start
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def of_a_slice(function):
    return lambda wide, *rest: function(wide[..., 3 : 3 + C], *rest)


def evaluate(function, bias, wide, weight, *rest):
    b = rest[0] if bias else None
    results = [y for y in function(wide, weight, b, *rest[bias:]) if y is not None]
    generator = torch.Generator().manual_seed(1)
    loss = sum((y * torch.randn(y.shape, dtype=y.dtype, generator=generator)).sum() for y in results)
    return [*results, *torch.autograd.grad(loss, (wide, weight, *rest))]


@pytest.mark.parametrize("operation", ["short_conv", "short_conv_silu"])
@pytest.mark.parametrize("backend", ["fla", "triton"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("start", [True, False])
def test_outputs_states_and_gradients_are_the_definitions(operation, backend, bias, start):
    tensors = leaves(bias=bias, start=start)
    expected = evaluate(of_a_slice(kernels.load(operation, "plain")), bias, *tensors)
    found = evaluate(of_a_slice(kernels.load(operation, backend)), bias, *tensors)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", ["silu", None])
def test_torch_finds_the_operators_sound(bias, act):
    wide, weight, *rest = leaves(bias=bias)
    x, w, b = wide[..., 3 : 3 + C], weight[:, 0].contiguous(), rest[0] if bias else None
    torch.library.opcheck(
        gpu.causal_conv, tuple(None if y is None else y.detach().requires_grad_() for y in (x, w, b)) + (act,)
    )
    inputs = tuple(None if y is None else y.detach() for y in (torch.randn_like(x), x, w, b))
    torch.library.opcheck(gpu.causal_conv_backward, (*inputs, act))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("silu", [True, False])
def test_torch_finds_our_operators_sound(bias, silu):
    wide, weight, *rest = leaves(bias=bias)
    inputs = [wide[..., 3 : 3 + C], weight[:, 0].contiguous(), rest[0] if bias else None]
    inputs = [None if y is None else y.detach() for y in inputs]
    torch.library.opcheck(conv_operator.fused_conv_backward, (torch.randn_like(inputs[0]), *inputs, silu))
    torch.library.opcheck(
        conv_operator.fused_conv, tuple(None if y is None else y.requires_grad_() for y in inputs) + (silu,)
    )


@pytest.mark.parametrize("module", [gpu, conv_operator])
def test_a_compiled_program_is_one_graph(module):
    def program(wide, weight, bias):
        y, state = module.short_conv_silu(torch.sin(wide)[..., 3 : 3 + C], weight, bias)
        return torch.cos(y), state

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    tensors = leaves(bias=True)
    torch.testing.assert_close(
        evaluate(compiled, True, *tensors), evaluate(program, True, *tensors), atol=1e-12, rtol=0
    )


def test_what_auto_takes_when_compiled(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for operation in kernels.COMPILED:
        assert kernels.choose(operation, "auto", "cuda") == "plain"
        assert kernels.choose(operation, "auto", "cpu") == "chunked"
        kernels.approve(operation, "triton")
        assert kernels.choose(operation, "auto", "cuda") == "triton"
        assert kernels.choose(operation, "chunked", "cuda") == "chunked"
        kernels.refuse(operation, "triton", "its numbers")
        kernels.approve(operation, "fla")
        assert kernels.choose(operation, "auto", "cuda") == "fla"
        monkeypatch.setitem(kernels.COMPILED, operation, ("plain",))
        assert kernels.choose(operation, "auto", "cuda") == "plain"
    assert kernels.choose("ssd", "auto", "cuda") == "chunked"


def test_compiled_orders_are_of_the_table_and_end_where_every_device_can():
    for operation, names in kernels.COMPILED.items():
        assert set(names) <= set(kernels.OPERATIONS[operation])
        assert not kernels.OPERATIONS[operation][names[-1]].cuda


@pytest.mark.parametrize(
    ("layers", "operation"),
    [("gdn", "short_conv_silu"), ("mamba2", "short_conv_silu"), ("kda", "short_conv_silu"), ("rglru", "short_conv")],
)
def test_every_mixer_runs_its_convolution_as_one_operation(layers, operation):
    model = build({"layers": layers, "d_model": 16, "vocab_size": 7})
    with canary.record() as calls:
        model(torch.randint(7, (2, 9)))
    assert {call.operation for call in calls.values() if "conv" in call.operation} == {operation}
    (module,) = (m for m in model.modules() if isinstance(m, ShortConvolution))
    x = torch.randn(2, 9, module.weight.shape[0])
    y, _ = module(x, None, model.blocks[0].mixer.run)
    lags = F.pad(x, (0, 0, module.width - 1, 0)).unfold(1, module.width, 1)  # (B, T, C, K)
    expected = (lags * module.weight[:, 0]).sum(-1) + (0 if module.bias is None else module.bias)
    torch.testing.assert_close(y, F.silu(expected) if operation == "short_conv_silu" else expected)


@pytest.mark.parametrize("layers", ["gdn", "mamba2", "delta"])
def test_without_a_convolution_its_input_is_activated_alone(layers):
    """A convolution that hands on its input is none."""
    spec = {"layers": layers, "d_model": 16, "vocab_size": 7, "mixers": {layers: {"conv": 1}}}
    torch.manual_seed(0)
    one = build(spec)
    none = build({**spec, "mixers": {layers: {"conv": 0}}})
    for name, parameter in one.named_parameters():
        if ".conv." in name:
            parameter.data.fill_(float(name.endswith("weight")))
    none.load_state_dict({name: value for name, value in one.state_dict().items() if ".conv." not in name})
    tokens = torch.randint(7, (2, 9))
    torch.testing.assert_close(one(tokens).logits, none(tokens).logits)


def test_the_canary_keeps_strides_and_judges_the_operator(monkeypatch):
    wide, weight, bias = leaves(bias=True)
    x = wide[..., 3 : 3 + C]
    seen = []
    monkeypatch.setitem(kernels._functions, "seen", lambda *a: seen.append(a[0].stride()) or gpu.short_conv_silu(*a))
    monkeypatch.setitem(kernels.OPERATIONS["short_conv_silu"], "seen", kernels.Backend("seen"))
    with canary.record() as calls:
        kernels.call("short_conv_silu", "plain", {}, x, weight, bias, None)
    (call,) = calls.values()
    assert call.arguments[0].stride() == x.stride()
    verdict = canary.judge(call, "seen")
    assert verdict.accepted
    assert verdict.gradient_error < 1e-12
    assert seen == [x.stride()]
