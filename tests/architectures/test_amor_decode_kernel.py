"""The decoding kernel against the definition: in Triton's interpreter, and on a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = """
import torch
from architectures.amor_decode import Cached, masked
from architectures.amor_decode_triton import agrees, kernel

torch.manual_seed(0)
for heads, head_dim, length, rotated in ((2, 16, 1, True), (3, 8, 70, True), (1, 24, 64, False), (2, 16, 5000, True)):
    width = heads * head_dim
    query, out = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
    x, fire = torch.randn(3, width), torch.tensor([True, False, True])
    cached = Cached(torch.randn(3, heads, length + 3, head_dim), torch.randn(3, heads, length + 3, head_dim), length)
    angle = torch.randn(1, head_dim // 2)
    angles = (angle.cos(), angle.sin()) if rotated else None
    with torch.no_grad():
        found = kernel(query.weight, out.weight, x, fire, cached, angles)
        torch.testing.assert_close(found, masked(query, out, x, fire, cached, angles), rtol=1e-4, atol=1e-5)
    assert not found[1].any()
before = torch.get_rng_state()
assert agrees(torch.device("cpu"), torch.float32, torch.float32, 16)
assert agrees(torch.device("cpu"), torch.bfloat16, torch.bfloat16, 16)
assert torch.equal(torch.get_rng_state(), before)
"""


def test_the_kernel_is_its_definition_in_the_interpreter():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_on_a_gpu_skips_and_equals_the_full_pass_without_synchronising(dtype):
    from architectures import build
    from architectures.amor_decode_triton import agrees

    assert agrees(torch.device("cuda"), dtype, dtype, 64)
    torch.manual_seed(0)
    model = build({"kind": "amor", "vocab_size": 64, "layers": "gdn*1", "d_model": 128}).cuda().to(dtype).eval()
    for attention in model.attentions:
        torch.nn.init.normal_(attention.out.weight, std=0.1)
    tokens = torch.randint(0, 64, (5, 40), device="cuda")
    with torch.no_grad():
        for number, attention in enumerate(model.attentions):
            score = model(tokens).extras["fields"][f"gate.{number}.score"].flatten().sort().values
            widest = 50 + int(score[50:150].diff().argmax())
            attention.trigger.statistics.fix((score[widest] + score[widest + 1]) / 2)
        whole = model(tokens).logits
        state = model.init_state(5, 40)
        _, state = model.prefill(tokens[:, :20], state)
        _, state = model.step(tokens[:, 20], state)
        steps = []
        torch.cuda.set_sync_debug_mode("error")
        for t in range(21, 40):
            logits, state = model.step(tokens[:, t], state)
            steps.append(logits)
        torch.cuda.set_sync_debug_mode("default")
    if dtype == torch.float32:
        torch.testing.assert_close(torch.stack(steps, dim=1), whole[:, 21:], rtol=1e-3, atol=1e-4)
    skips = state["skips"].read()
    assert 0 < skips["queries"] < skips["queries_total"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("trigger", ["entropy", "margin", "random", "input", "router"])
def test_a_dense_training_step_is_captured_as_a_cuda_graph_and_replays_as_it_runs(trigger):
    from architectures import build

    def make():
        torch.manual_seed(0)
        spec = {"kind": "amor", "vocab_size": 32, "layers": "gdn*1", "d_model": 64, "trigger": trigger}
        model = build(spec, kernels="chunked").cuda().train()
        for attention in model.attentions:
            torch.nn.init.normal_(attention.out.weight, std=0.1)
        return model

    def step(model, tokens, mask):
        loss = torch.nn.functional.cross_entropy(model(tokens, positions=mask).logits, tokens.flatten())
        loss.backward()
        return loss

    tokens = torch.randint(0, 32, (8, 64), device="cuda")
    index = torch.arange(8 * 64, device="cuda")
    eager, graphed = make(), make()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(graphed, tokens, index)
            graphed.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(graphed, tokens, index)
    for _ in range(2):
        graph.replay()
    for _ in range(5):
        eager.zero_grad()
        expected = step(eager, tokens, index)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for (name, one), (_, two) in zip(eager.named_buffers(), graphed.named_buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, msg=name)
