"""The Triton step against the plain one, on a GPU or (with TRITON_INTERPRET=1) in Triton's interpreter."""

from __future__ import annotations

import copy
import importlib.util
import os

import pytest
import torch
from decoding_models import V, model_of

from architectures.decoding import Decoder, plain, prefill
from architectures.decoding.plain import Angles, Dial, Norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not here"),
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor Triton's interpreter"
    ),
]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
"""Triton's interpreter cuts off where a GPU rounds, so three roundings may differ by three last places."""
DTYPES = list(TOLERANCE)


def draw(*shape, dtype=torch.float32, seed=[0]):  # noqa: B006
    seed[0] += 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed[0])).to(DEVICE, dtype)


def place(position):
    return torch.tensor([position], device=DEVICE)


def compare(operation, arguments, options, written, dtype):
    """Runs both forms on copies, and compares the tensors at the indices or names `written`."""
    from architectures.decoding import triton_ops

    results = []
    for form in (plain, triton_ops):
        args, kwargs = copy.deepcopy((arguments, options))
        getattr(form, operation)(*args, **kwargs)
        results.append([args[i] for i in written])
    for expected, found in zip(*results):
        assert torch.isfinite(found.float()).all()
        assert (found.float() - expected.float()).norm() <= TOLERANCE[dtype] * (1e-3 + expected.float().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", ["bare", "norm", "swiglu", "residual", "fire"])
def test_project(case, batch, dtype):
    options = {"norm": Norm(draw(20, dtype=dtype), 1e-5)} if case in ("norm", "swiglu", "fire") else {}
    rows = 26
    if case == "swiglu":
        options["swiglu"] = True
    if case == "residual":
        options["residual"] = True
    if case == "fire":
        fire = torch.tensor([0, 1, 1][:batch], dtype=torch.uint8, device=DEVICE)
        options |= {"fire": fire, "residual": True, "scale": draw(13, dtype=dtype)}
    weight = draw(rows if case == "swiglu" else 13, 20, dtype=dtype)
    wide = draw(batch, 24, dtype=dtype)
    compare("project", (wide[:, 2:22], weight, draw(batch, 13, dtype=dtype)), options, [2], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [5, 17])
def test_many_sequences(batch, dtype):
    norm = Norm(draw(20, dtype=dtype), 1e-5)
    x, out = draw(batch, 20, dtype=dtype), draw(batch, 13, dtype=dtype)
    compare("project", (x, draw(26, 20, dtype=dtype), out), {"norm": norm, "swiglu": True}, [2], dtype)
    fire = (torch.arange(batch, device=DEVICE) % 2).to(torch.uint8)
    options = {"fire": fire, "residual": True, "scale": draw(13, dtype=dtype)}
    compare("project", (draw(batch, 20), draw(13, 20, dtype=dtype), out), options, [2], dtype)
    compare("entropy", (x, draw(1500, 20, dtype=dtype), draw(batch)), {"norm": norm}, [2], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates(dtype):
    norm = Norm(draw(20, dtype=dtype), 1e-5)
    x, score = draw(2, 20, dtype=dtype), draw(2)
    compare("normed", (x, norm, draw(2, 20, dtype=dtype)), {}, [2], dtype)
    compare("entropy", (x, draw(1500, 20, dtype=dtype), score), {"norm": norm}, [2], dtype)
    vectors = (draw(6, dtype=dtype), draw(6, dtype=dtype), draw(20, dtype=dtype), draw(1, dtype=dtype))
    bias, out, skip, skip_bias = vectors
    compare("route", (draw(2, 6), x, bias, out, skip, skip_bias, score), {"norm": norm}, [6], dtype)
    fire = torch.tensor([1, 0], dtype=torch.uint8, device=DEVICE)
    count = torch.tensor([3, 4], device=DEVICE)
    fires = torch.tensor([[0, 1, 0], [1, 0, 0]], dtype=torch.uint8, device=DEVICE)
    scores, threshold = torch.tensor([0.2, 0.4], device=DEVICE), torch.tensor([0.3], device=DEVICE)
    compare("decide", (scores, threshold, fire, count, place(1)), {"dial": None}, [2, 3], torch.float32)
    compare("decide", (scores, threshold, fire, count, place(1)), {"dial": Dial(fires)}, [2, 3], torch.float32)
    compare("decide", (None, None, fire, count, place(1)), {"dial": None}, [2, 3], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [5, 2500])
def test_choose(vocabulary, dtype):
    logits = draw(3, vocabulary, dtype=dtype)
    logits[1] = 0.5  # all equal: the first one counts
    logits[2, [1, vocabulary - 1]] = 9.0
    token = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    compare("choose", (logits, token), {}, [1], dtype)
    plain.choose(logits, token)
    assert token.tolist()[1:] == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 2, 9])
def test_convolve(position, dtype):
    for bias, silu in ((draw(10, dtype=dtype), True), (None, False)):
        state = draw(2, 4, 10, dtype=dtype)
        out = draw(2, 10, dtype=dtype)
        args = (draw(2, 14, dtype=dtype)[:, 1:11], draw(10, 1, 4, dtype=dtype), bias, state, out, place(position))
        compare("convolve", args, {"silu": silu}, [3, 4], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_ssd(shared, read, dtype):
    batch, heads, width, size = 2, 3, 40, 6
    bc = (batch, size) if shared else (batch, heads, size)
    gate = draw(batch, heads * width, dtype=dtype)
    options = {"log_a": draw(heads), "dt_bias": draw(heads), "skip": draw(heads), "gate": gate, "read": read}
    if not shared:
        options |= {"angles": Angles(draw(size // 2), draw(size // 2)), "skip": None}
    args = (
        draw(batch, heads, width, dtype=dtype),
        draw(*bc, dtype=dtype),
        draw(*bc, dtype=dtype),
        draw(batch, heads, dtype=dtype),
        draw(batch, heads, width, size, dtype=dtype),
        draw(batch, heads * width),
    )
    compare("ssd", args, options, [4, 5], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("silu", [True, False])
def test_delta(silu, read, dtype):
    batch, heads, width, value = 2, 3, 6, 10
    options = {
        "log_a": draw(heads),
        "dt_bias": draw(heads),
        "beta_scale": 2.0,
        "norm": Norm(draw(value, dtype=dtype), 1e-5),
        "gate": draw(batch, heads * value, dtype=dtype),
        "silu_query": silu,
        "read": read,
    }
    args = (
        draw(batch, heads, width, dtype=dtype),
        draw(batch, heads, width, dtype=dtype),
        draw(batch, heads, value, dtype=dtype),
        draw(batch, heads, dtype=dtype),
        draw(batch, heads, dtype=dtype),
        draw(batch, heads, width, value),
        draw(batch, heads * value, dtype=dtype),
    )
    compare("delta", args, options, [5, 6], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 63, 64, 200])
@pytest.mark.parametrize("case", ["bare", "fire", "oryx", "residual"])
def test_attend_and_remember(case, position, dtype):
    batch, heads, width, room = 2, 2, 6, 256
    keys, values = draw(batch, heads, room, width, dtype=dtype), draw(batch, heads, room, width, dtype=dtype)
    angles = None if case == "bare" else Angles(draw(width // 2), draw(width // 2))
    q, k, v = (draw(batch, heads, width, dtype=dtype) for _ in range(3))
    compare("remember", (k, v, keys, values, place(position)), {"angles": angles}, [2, 3], dtype)
    options = {"angles": angles}
    if case == "fire":
        options["fire"] = torch.tensor([0, 1], dtype=torch.uint8, device=DEVICE)
    if case == "oryx":
        norm, gate = Norm(draw(width, dtype=dtype), 1e-5), draw(batch, heads * width, dtype=dtype)
        options |= {"silu_query": True, "norm": norm, "gate": gate}
    if case == "residual":
        options["residual"] = True
    compare("attend", (q, keys, values, draw(batch, heads * width, dtype=dtype), place(position)), options, [3], dtype)


def test_a_shut_gate_reads_neither_weights_nor_cache():
    from architectures.decoding import triton_ops

    nothing = torch.full((2, 1, 64, 8), float("nan"), device=DEVICE)
    shut = torch.zeros(2, dtype=torch.uint8, device=DEVICE)
    out = draw(2, 8)
    kept = out.clone()
    triton_ops.attend(draw(2, 1, 8), nothing, nothing, out, place(40), fire=shut)
    triton_ops.project(draw(2, 8), nothing[0, 0, :8], out, fire=shut)
    triton_ops.project(draw(2, 8), nothing[0, 0, :8], out, fire=shut, residual=True, scale=nothing[0, 0, 0])
    assert torch.equal(out, kept)


@pytest.mark.parametrize(
    "name", ["Transformer", "Mamba2 Fused Hybrid", "Amor-Mamba2", "Amor-Gated DeltaNet", "Oryx-TM"]
)
@pytest.mark.parametrize("most", [1, 2])
def test_the_whole_step(name, most, monkeypatch):
    from architectures.decoding import triton_ops

    monkeypatch.setattr(triton_ops, "MOST", most)  # 1: the two sequences are many
    model = model_of(name, torch.float32).to(DEVICE)
    prompt = torch.randint(V, (2, 9), device=DEVICE)
    _, state = prefill(model, prompt, model.init_state(2, 16), chunk=5)
    decoders = [Decoder(model, copy.deepcopy(state), backend=form, graph=False) for form in ("plain", "triton")]
    for token in torch.randint(V, (3, 2), device=DEVICE):
        expected, found = (decoder.step(token) for decoder in decoders)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
