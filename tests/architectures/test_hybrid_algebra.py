"""The algebra of the book's sections 14.3 and 14.4: composition patterns, and what each gate can reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from architectures import build, kernels, resolve
from architectures.mixers.attention import SlidingAttention
from architectures.mixers.base import Mixer
from architectures.mixers.composite import Parallel, Sequential, blend
from architectures.mixers.ema import GatedDecayEMA

D = 8


class Fixed(Mixer):
    """A branch that returns what it is given, whatever the input."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def mix(self, x, state, context):
        return self.value.expand_as(x), state


def branches(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 5, D, dtype=dtype, generator=generator) for _ in range(3)]


def parallel(gate, a, s, **settings):
    return Parallel(D, attention=Fixed(a), recurrent=Fixed(s), gate=gate, **settings).double()


@pytest.mark.parametrize("form", ["plain", "chunked"])
def test_ema_closed_form_under_constant_input(form):
    rate = torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = torch.randn(1, 1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    length = 200
    h, last = kernels.load("scan", form)((1 - rate) * value.expand(1, length, D), rate)
    t = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    assert (h[0] - (1 - rate**t) * value[0]).abs().max() < 1e-12
    assert torch.equal(last, h[:, -1])


def test_ema_mixer_has_the_books_rates_in_a_buffer_or_in_parameters():
    fixed, learned, selective = (GatedDecayEMA(D, decay=decay, longest=64.0) for decay in ("fixed", "learned", "input"))
    assert dict(fixed.named_buffers()).keys() == {"rate"}
    assert "rate" not in dict(fixed.named_parameters())
    assert "logit" in dict(learned.named_parameters())
    x = torch.randn(1, 4, D)
    for mixer in (fixed, learned):
        keep, write = mixer.rates(x)
        torch.testing.assert_close(keep.log(), -1 / torch.logspace(0, math.log10(64), D), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(keep + write, torch.ones(D))
    with torch.no_grad():
        selective.select.weight.zero_()
    assert torch.equal(selective.rates(x)[0][0, 0], torch.sigmoid(selective.logit))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gates_zero_and_one_return_a_branch_bitwise(dtype):
    a, s, _ = branches(dtype=dtype)
    for shape in ((1,), (D,), (2, 5, 1), (2, 5, D)):
        assert torch.equal(blend(torch.ones(shape, dtype=dtype), a, s), a)
        assert torch.equal(blend(torch.zeros(shape, dtype=dtype), a, s), s)


@pytest.mark.parametrize("gate", ["scalar", "vector", "input_scalar", "input_vector"])
def test_saturated_mixers_return_a_branch_bitwise(gate):
    a, s, x = branches()
    mixer = parallel(gate, a, s)
    for value, branch in ((math.inf, a), (-math.inf, s)):
        with torch.no_grad():
            if gate.startswith("input"):
                mixer.gate_map.weight.zero_()
                mixer.gate_map.bias.fill_(value)
            else:
                mixer.logit.fill_(value)
        assert torch.equal(mixer(x), branch)


def test_block_gate_builds_one_branch_only():
    a, s, x = branches()
    assert torch.equal(parallel("block", a, s, block_choice="attention")(x), a)
    assert torch.equal(parallel("block", a, s, block_choice="recurrent")(x), s)
    mixers = {"pair": {"kind": "parallel", "recurrent": "ema", "gate": "block", "block_choice": "recurrent"}}
    one = build({"vocab_size": 3, "layers": "pair", "mixers": mixers})
    assert sum(p.numel() for p in one.parameters()) == sum(
        p.numel() for p in build({"vocab_size": 3, "layers": "ema"}).parameters()
    )


def test_learned_blend_is_a_parameter_and_fixed_rates_a_buffer():
    spec = {"vocab_size": 3, "layers": "pair", "mixers": {"pair": {"kind": "parallel", "recurrent": "ema"}}}
    model = build(spec)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    assert parameters["blocks.0.mixer.logit"].shape == (64,)
    assert buffers["blocks.0.mixer.second.rate"].shape == (64,)
    assert "blocks.0.mixer.second.rate" not in parameters


def test_a_scalar_gate_reaches_the_segment_and_a_vector_gate_the_box():
    """Exercise 14.3: every point of the segment, every point of the box, and a corner that no scalar reaches."""
    a, s = (torch.randn(D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    x = torch.zeros(1, 1, D, dtype=torch.float64)
    scalar, vector = parallel("scalar", a, s), parallel("vector", a, s)
    for weight in torch.linspace(0, 1, 11, dtype=torch.float64):
        with torch.no_grad():
            scalar.logit.fill_(torch.logit(weight))
        torch.testing.assert_close(scalar(x)[0, 0], s + weight * (a - s), atol=1e-12, rtol=0)
    inside = torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    target = s + inside * (a - s)
    with torch.no_grad():
        vector.logit.copy_(torch.logit((target - s) / (a - s)))
    torch.testing.assert_close(vector(x)[0, 0], target, atol=1e-12, rtol=0)
    corner = torch.where(torch.arange(D) == 0, a, s)
    with torch.no_grad():
        vector.logit.copy_(torch.where(torch.arange(D) == 0, math.inf, -math.inf))
    assert torch.equal(vector(x)[0, 0], corner)
    along = ((corner - s) @ (a - s)) / ((a - s) @ (a - s))  # the segment's nearest point is its projection
    assert (corner - (s + along * (a - s))).abs().max() > 0.1


def test_an_input_dependent_gate_does_what_no_constant_gate_can():
    """Exercise 14.6: attention's branch on one input, the recurrent branch on the other."""
    inputs = torch.zeros(2, 1, D, dtype=torch.float64)
    inputs[0, 0, 0], inputs[1, 0, 0] = 1.0, -1.0
    a, s, _ = branches(seed=3)
    a, s = a[:, :1], s[:, :1]
    target = torch.stack([a[0], s[1]])
    for gate in ("input_scalar", "input_vector"):
        mixer = parallel(gate, a, s)
        with torch.no_grad():
            mixer.gate_map.weight.zero_()
            mixer.gate_map.bias.zero_()
            mixer.gate_map.weight[:, 0] = 1e6
        assert torch.equal(mixer(inputs), target)
    wanted = (target - s) / (a - s)  # the constant gate that each input would need
    assert (wanted[0] - wanted[1]).abs().min() == 1.0


def test_sequential_orders_differ_and_have_no_residual():
    torch.manual_seed(0)
    attention = SlidingAttention(D, window=3, head_dim=4).double()
    ema = GatedDecayEMA(D).double()
    x = torch.randn(2, 20, D, dtype=torch.float64)
    after = Sequential(D, first=ema, second=attention)(x)
    before = Sequential(D, first=attention, second=ema)(x)
    assert torch.equal(after, attention(ema(x)))
    assert torch.equal(before, ema(attention(x)))
    assert not torch.allclose(after, before)


@pytest.mark.parametrize("ratio", [1, 3, 7])
def test_interleave_places_attention_every_r_plus_first_block(ratio):
    depth = 2 * (ratio + 1)
    layers = resolve({"vocab_size": 3, "layers": f"[ema*{ratio}, sliding]*2"})["layers"]
    assert [i for i, name in enumerate(layers) if name == "sliding"] == [ratio, depth - 1]
    assert layers.count("sliding") / depth == 1 / (ratio + 1)


def test_gmu_is_an_input_dependent_vector_gate_on_another_layers_stream():
    model = build({"vocab_size": 5, "layers": "mamba2, gmu", "mixers": {"gmu": {"source": "mamba2"}}}).double()
    gmu, seen = model.blocks[1].mixer, {}
    gmu.register_forward_hook(lambda module, args, output: seen.update(x=args[0], context=args[1], y=output))
    model(torch.randint(5, (2, 9)))
    stream = seen["context"].streams["mamba2"]
    assert stream.shape == (2, 9, 128)
    expected = gmu.out(stream * nn.functional.silu(gmu.gate(seen["x"])))
    assert torch.equal(seen["y"], expected)


def test_exercise_14_1():
    """32 blocks, d = w = 2048, 7:1: the decode state in floats, full attention's cache at 131,072, where they meet."""
    spec = {"vocab_size": 2, "d_model": 2048, "d_ff": 0, "layers": "[ema*7, sliding]*4"}
    spec["mixers"] = {"sliding": {"window": 2048}}
    full = {"vocab_size": 2, "d_model": 2048, "d_ff": 0, "layers": "attention*32"}
    with torch.device("meta"):
        hybrid, attention = build(spec), build(full)
    floats = {}
    for name, model, length in (("hybrid", hybrid, 131072), ("full", attention, 131072), ("one", attention, 1)):
        state = model.init_state(1, length, device="meta", dtype=torch.float32)
        floats[name] = sum(t.numel() for layer in state["layers"] for t in layer.values() if torch.is_tensor(t))
    assert floats["hybrid"] == 4 * 2 * 2048 * 2048 + 28 * 2048 == 33_611_776
    assert floats["full"] == 2 * 32 * 2048 * 131072 == 17_179_869_184
    assert floats["full"] / floats["hybrid"] == pytest.approx(511.1, abs=0.05)
    assert floats["hybrid"] / floats["one"] == pytest.approx(256.4, abs=0.05)
