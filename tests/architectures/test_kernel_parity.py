"""Every operation: the chunked form against the definition. Outputs, final states and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from architectures import SpecError, kernels

LENGTHS = (1, 2, 63, 64, 65, 100, 257)
B, H, K, V = 2, 3, 8, 5
CONVOLUTIONS = ("short_conv", "short_conv_silu")


def _leaf(*shape, dtype, generator):
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


def _decay(x, strength):
    """Log decays: hardly any forgetting, ordinary, or everything forgotten at once."""
    if strength == "weak":
        return -1e-4 * x.sigmoid()
    if strength == "strong":
        return -(20.0 + 100.0 * x.sigmoid())
    return -F.softplus(x)


def _beta(x, beta):
    return x.sigmoid() if beta is None else x * 0 + beta


def inputs(operation, length, dtype, *, strength="mixed", beta=None, start=True, seed=0):
    """Leaves, and a function from leaves to the operation's arguments."""
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape):
        return _leaf(*shape, dtype=dtype, generator=generator)

    if operation == "scan":
        leaves = [leaf(B, length, K), leaf(B, length, K)] + [leaf(B, K)] * start
        return leaves, lambda b, a, *h: (b, _decay(a, strength).exp(), *h)
    if operation == "ssd":
        leaves = [leaf(B, length, H, V), leaf(B, length, H), leaf(H), leaf(B, length, K), leaf(B, length, K)]
        leaves += [leaf(B, H, V, K)] * start
        return leaves, lambda x, dt, a, b, c, *s: (x, F.softplus(dt), _decay(a, strength), b, c, *s)
    if operation in CONVOLUTIONS:
        leaves = [leaf(B, length, K), leaf(K, 1, 4), leaf(K)] + [leaf(B, 4, K)] * start
        return leaves, lambda x, w, b, *s: (x, w, b, *s)
    if operation == "gla":
        leaves = [leaf(B, length, H, n) for n in (K, K, V, K)] + [leaf(B, H, K, V)] * start
        return leaves, lambda q, k, v, g, *s: (q, k, v, _decay(g, strength), *s)
    if operation == "delta":
        leaves = [leaf(B, length, H, n) for n in (K, K, V)] + [leaf(B, length, H)] + [leaf(B, H, K, V)] * start
        return leaves, lambda q, k, v, b, *s: (
            F.normalize(q, dim=-1),
            F.normalize(k, dim=-1),
            v,
            _beta(b, beta),
            None,
            *s,
        )
    if operation == "kda":
        leaves = [leaf(B, length, H, n) for n in (K, K, V)] + [leaf(B, length, H), leaf(B, length, H, K)]
        leaves += [leaf(B, H, K, V)] * start
        return leaves, lambda q, k, v, b, g, *s: (
            F.normalize(q, dim=-1),
            F.normalize(k, dim=-1),
            v,
            _beta(b, beta),
            _decay(g, strength),
            *s,
        )
    if operation == "gated_delta":
        leaves = [leaf(B, length, H, n) for n in (K, K, V)] + [leaf(B, length, H), leaf(B, length, H)]
        leaves += [leaf(B, H, K, V)] * start
        return leaves, lambda q, k, v, b, g, *s: (
            F.normalize(q, dim=-1),
            F.normalize(k, dim=-1),
            v,
            _beta(b, beta),
            _decay(g, strength),
            *s,
        )
    raise NotImplementedError(operation)


def evaluate(function, leaves, arguments):
    """Output, final state, and the gradients of a fixed random functional of both."""
    results = [result for result in function(*arguments(*leaves)) if result is not None]
    generator = torch.Generator().manual_seed(1)
    loss = sum((r * torch.randn(r.shape, dtype=r.dtype, generator=generator)).sum() for r in results)
    return (*results, *torch.autograd.grad(loss, leaves, materialize_grads=True))


def compare(operation, length, dtype, **settings):
    leaves, arguments = inputs(operation, length, dtype, **settings)
    expected = evaluate(kernels.load(operation, "plain"), leaves, arguments)
    found = evaluate(kernels.load(operation, "chunked"), leaves, arguments)
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape
        assert a.isfinite().all()
        error, size = (a - b).double(), b.double()
        if dtype == torch.float64:
            assert error.abs().max() <= 1e-10 * (1 + size.abs().max()), index
        else:
            assert error.norm() <= 1e-5 * (size.norm() + 1e-3), index


@pytest.mark.parametrize("operation", kernels.OPERATIONS)
@pytest.mark.parametrize("length", LENGTHS)
def test_chunked_form_equals_the_definition(operation, length):
    compare(operation, length, torch.float64)
    compare(operation, length, torch.float64, start=False)
    compare(operation, length, torch.float32)


@pytest.mark.parametrize("operation", kernels.OPERATIONS)
@pytest.mark.parametrize("strength", ["weak", "strong"])
def test_under_weak_and_strong_decay(operation, strength):
    for length, dtype in itertools.product(LENGTHS, (torch.float64, torch.float32)):
        compare(operation, length, dtype, strength=strength)


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("operation", [name for name in kernels.OPERATIONS if "delta" in name or name == "kda"])
def test_with_beta_at_its_ends(operation, beta):
    for length, strength in itertools.product((64, 100), ("weak", "mixed", "strong")):
        compare(operation, length, torch.float64, beta=beta, strength=strength)
        compare(operation, length, torch.float32, beta=beta, strength=strength)


@pytest.mark.parametrize("operation", [name for name in kernels.OPERATIONS if name not in ("scan", *CONVOLUTIONS)])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 2, 3, 17), (3, 1, 33, 2)])
def test_any_head_size(operation, sizes, monkeypatch):
    for size, value in zip("BHKV", sizes, strict=True):
        monkeypatch.setitem(globals(), size, value)
    compare(operation, 37, torch.float64)


def test_repeated_keys_do_not_ruin_the_inverse():
    """With one key throughout and beta 1, powers of the system's matrix would grow like binomials."""
    leaves, arguments = inputs("gated_delta", 128, torch.float32, beta=1.0, strength="weak")
    q, k, v, beta, g = arguments(*leaves)[:5]
    k = k[:, :1].expand_as(k)
    expected, _ = kernels.load("gated_delta", "plain")(q.double(), k.double(), v.double(), beta.double(), g.double())
    found, _ = kernels.load("gated_delta", "chunked")(q, k, v, beta, g)
    assert (found - expected).abs().max() < 1e-5


def test_a_sequence_can_be_cut_anywhere():
    for operation in set(kernels.OPERATIONS) - set(CONVOLUTIONS):
        leaves, arguments = inputs(operation, 90, torch.float64, start=False)
        args = [x if x is None else x.detach() for x in arguments(*leaves)]
        whole, last = kernels.load(operation, "chunked")(*args)

        def part(x, start, stop):
            return x[:, start:stop] if x is not None and x.ndim > 1 and x.shape[1] == 90 else x

        first, state = kernels.load(operation, "chunked")(*(part(x, 0, 37) for x in args))
        second, state = kernels.load(operation, "chunked")(*(part(x, 37, 90) for x in args), state)
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-11, rtol=0)
        torch.testing.assert_close(state, last, atol=1e-11, rtol=0)


def test_choice_of_backend(monkeypatch):
    table = kernels.OPERATIONS["ssd"]
    fast = kernels.Backend("nowhere:nothing", cuda=True)
    monkeypatch.setitem(kernels.OPERATIONS, "ssd", {"fast": fast, **table})
    assert kernels.choose("ssd", "auto", "cuda") == "chunked"
    kernels.approve("ssd", "fast")
    assert kernels.choose("ssd", "auto", "cuda") == "fast"
    assert kernels.choose("ssd", "auto", "cpu") == "chunked"
    kernels.withdraw("ssd", "fast")
    assert kernels.choose("ssd", "auto", "cuda") == "chunked"
    assert kernels.choose("ssd", {"ssd": "plain"}, "cpu") == "plain"
    assert kernels.choose("ssd", {"scan": "plain"}, "cpu") == "chunked"
    with pytest.raises(SpecError, match="needs a CUDA device"):
        kernels.choose("ssd", "fast", "cpu")
    with pytest.raises(SpecError, match="unknown 'fats'; nearest: 'fast'"):
        kernels.check("fats")
    with pytest.raises(SpecError, match="kernels: expected a name or `operation: backend`, not \\['plain'\\]"):
        kernels.check(["plain"])
    with pytest.raises(SpecError, match="nearest: 'scan'"):
        kernels.check({"skan": "plain"})
    missing = kernels.Backend("nowhere:nothing", package="no_such_package")
    monkeypatch.setitem(kernels.OPERATIONS, "ssd", {"fast": missing, **table})
    with pytest.raises(SpecError, match="needs the package 'no_such_package'"):
        kernels.choose("ssd", "fast", "cpu")


def test_every_gpu_backend_has_the_definitions_arguments():
    """Its function can be loaded without a GPU, and takes the arguments of the plain form by name and order."""
    import inspect

    found = 0
    for operation, backends in kernels.OPERATIONS.items():
        plain = list(inspect.signature(kernels.load(operation, "plain")).parameters)
        for name, backend in backends.items():
            taken = list(inspect.signature(kernels.load(operation, name)).parameters)
            assert taken[: len(plain)] == plain, (operation, name)
            found += backend.cuda
    assert found == 9


def test_half_precision_backends_are_not_taken_for_float32(monkeypatch):
    monkeypatch.setattr(kernels, "_installed", lambda package: True)
    kernels.approve("gated_delta", "fla")
    try:
        assert kernels.choose("gated_delta", "auto", "cuda", torch.bfloat16) == "fla"
        assert kernels.choose("gated_delta", "auto", "cuda", torch.float32) == "chunked"
        with pytest.raises(SpecError, match="runs in half precision"):
            kernels.choose("gated_delta", "fla", "cuda", torch.float32)
    finally:
        kernels.withdraw("gated_delta", "fla")


def half_precision_step(model, tokens):
    """A loss under bf16 autocast, and what gives the loss and all gradients through a form of it."""

    def loss(tokens):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(tokens).logits.float().square().mean()

    def step(function):
        model.zero_grad()
        value = function(tokens)
        value.backward()
        return [value.detach(), *(p.grad.clone() for p in model.parameters())]

    return loss, step


def assert_alike(compiled, eager):
    for one, other in zip(compiled, eager, strict=True):
        assert (one - other).norm() <= 4e-2 * (other.norm() + 1e-6)  # both round in bf16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layers", ["gdn", "mamba2", "rglru"])
@pytest.mark.parametrize("length", [63, 256])
def test_kernels_on_a_gpu_pass_the_canary_and_compile(layers, length):
    """The fastest of each operation is accepted; with these, compiled and eager losses and gradients agree."""
    from architectures import build
    from architectures.kernels import canary

    torch.manual_seed(0)
    model = build({"layers": f"[{layers}]*2", "d_model": 64, "vocab_size": 16}).cuda()
    tokens = torch.randint(16, (4, length), device="cuda")

    loss, step = half_precision_step(model, tokens)
    canary.forget()
    try:
        with canary.record() as calls, torch.no_grad():
            loss(tokens)
        verdicts = canary.approve(calls.values())
        assert all(verdict.accepted for verdict in verdicts), [verdict.line() for verdict in verdicts]
        (convolution,) = (v for v in verdicts if v.operation.startswith("short_conv"))
        assert convolution.backend == "triton"
        eager, compiled = step(loss), step(torch.compile(loss, dynamic=False))
        assert model.kernels_used[convolution.operation] == "triton"
        assert_alike(compiled, eager)
    finally:
        canary.forget()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("batch", "length", "channels"), [(3, 63, 40), (4, 1, 7), (64, 512, 384)])
@pytest.mark.parametrize("operation", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_our_convolution_on_a_gpu_is_the_definition(operation, batch, length, channels, dtype, bias):
    """Slices of a projection, as in a mixer."""
    from architectures.kernels import canary

    torch.manual_seed(0)
    x = torch.randn(batch, length, channels + 24, device="cuda").to(dtype)[..., 8 : 8 + channels]
    weight = torch.randn(channels, 1, 4, device="cuda")
    call = canary.Call(operation, (x, weight, torch.randn(channels, device="cuda") if bias else None, None))
    verdict = canary.judge(call, "triton")
    assert verdict.accepted, verdict.line()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layers", ["gdn", "mamba2"])
def test_the_other_convolution_runs_compiled_on_a_gpu(layers):
    from architectures import build
    from architectures.kernels import canary

    chosen = {"short_conv_silu": "fla"}
    torch.manual_seed(0)
    model = build({"layers": f"[{layers}]*2", "d_model": 64, "vocab_size": 16}, kernels=chosen).cuda()
    tokens = torch.randint(16, (4, 100), device="cuda")

    loss, step = half_precision_step(model, tokens)
    canary.forget()
    try:
        with canary.record() as calls, torch.no_grad():
            loss(tokens)
        verdicts = canary.approve(calls.values(), chosen)
        assert {v.backend for v in verdicts if v.operation == "short_conv_silu"} == {"fla"}
        assert all(verdict.accepted for verdict in verdicts), [verdict.line() for verdict in verdicts]
        eager, compiled = step(loss), step(torch.compile(loss, dynamic=False))
        assert model.kernels_used["short_conv_silu"] == "fla"
        assert_alike(compiled, eager)
    finally:
        canary.forget()
