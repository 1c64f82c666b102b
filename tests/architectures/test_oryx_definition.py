"""Oryx's block against its definition, token by token and head by head, and against plain stacks of its two mixers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from architectures import accounting, build, resolve
from architectures.mixers.base import state_bytes
from architectures.oryx_spec import ABLATIONS, MIXERS

V, D, T, B = 11, 16, 21, 3


def model_of(seed=0, **spec):
    """A small model in float64 whose weights are all random, norms and D included."""
    torch.manual_seed(seed)
    model = build({"kind": "oryx", "vocab_size": V, "d_model": D, "head_dim": 8, "layers": 1, **spec}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
            elif parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def tokens_and_mode(seed=0, shape=(B, T)):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, shape, generator=generator)
    return tokens, torch.randint(2, shape, generator=generator)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where rotations, unit lengths, convolution, activation, norm and gate are, as the paper says it of TM or TG."""

    rope_attention: bool = True
    rope_linear: bool = False
    unit_attention_query: bool = False
    unit_attention_key: bool = False
    unit_linear: bool = False
    conv_queries: bool = False
    conv_values: bool = True
    silu: bool = False
    silu_queries: bool = False
    full_norm: bool = True
    gate_first: bool = True


TM = Placement(rope_linear=True)
TG = Placement(unit_linear=True, silu=True, silu_queries=True, full_norm=False, gate_first=False)


def rotated(x, position, base=10000.0):
    """RoPE of one head's vector by complex multiplication of the pairs (i, i + d / 2)."""
    half = len(x) // 2
    angle = position * base ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angle)
    return torch.cat([turned.real, turned.imag])


def unit(x):
    return x / torch.sqrt((x * x).sum() + 1e-6)


def decay_and_strength(recurrence, mixer, x, head, d):
    """Decay of each key channel and write strength of one head at one token."""
    if mixer == "mamba2":
        dt = F.softplus(recurrence.step(x)[head] + recurrence.dt_bias[head])
        return torch.exp(-dt * recurrence.A_log[head].exp()).expand(d), dt
    if mixer == "gla":
        up = recurrence.decay_up(recurrence.decay_down(x))[head * d : (head + 1) * d]
        return torch.sigmoid(up) ** (1 / 16), torch.ones(())
    strengths = recurrence.strengths(x)
    if mixer == "delta":
        return torch.ones(d), torch.sigmoid(strengths[head])
    rate = recurrence.A_log[head].exp()
    if mixer == "gdn":
        heads = len(strengths) // 2
        step = F.softplus(strengths[head] + recurrence.dt_bias[head])
        return torch.exp(-rate * step).expand(d), torch.sigmoid(strengths[heads + head])
    up = (recurrence.decay_up(recurrence.decay_down(x)) + recurrence.dt_bias)[head * d : (head + 1) * d]
    return torch.exp(-rate * F.softplus(up)), torch.sigmoid(strengths[head])


def defined(block, mixer, x, mode, where, gate=True):
    """Outputs of one block's mixer for one sequence `x (T, D)` under `mode (T,)`, from the formulas alone."""
    length, width = x.shape
    d, heads = block.head_dim, block.heads
    weight = None if block.conv is None else block.conv.weight[:, 0]  # (2D, K)

    def convolved(series, channels):
        if weight is None:
            return series
        size = weight.shape[1]
        past = torch.cat([series.new_zeros(size - 1, width), series])
        return torch.stack([(past[t : t + size].T * weight[channels]).sum(1) for t in range(length)])

    keys, values = block.kv(x).split(width, dim=1)
    keys = convolved(keys, slice(0, width))
    values = convolved(values, slice(width, 2 * width)) if where.conv_values else values
    own = block.attention_query if block.linear_query is None else block.linear_query
    queries_a, queries_l = block.attention_query(x), own(x)
    if where.conv_queries:
        queries_a, queries_l = convolved(queries_a, slice(0, width)), convolved(queries_l, slice(0, width))
    if where.silu:
        keys, values = F.silu(keys), F.silu(values)
    if where.silu_queries:
        queries_a, queries_l = F.silu(queries_a), F.silu(queries_l)
    scale = 1.0 if mixer == "mamba2" else d**-0.5
    outputs = []
    cut = [slice(h * d, (h + 1) * d) for h in range(heads)]
    memory = [torch.zeros(d, d, dtype=torch.float64) for _ in range(heads)]
    cache = [([], []) for _ in range(heads)]
    for t in range(length):
        o = []
        for h in range(heads):
            k, v, q_a, q_l = (y[t, cut[h]] for y in (keys, values, queries_a, queries_l))
            k_a = rotated(k, t) if where.rope_attention else k
            q_a = rotated(q_a, t) if where.rope_attention else q_a
            k_l, q_l = (rotated(y, t) if where.rope_linear else y for y in (k, q_l))
            k_a = unit(k_a) if where.unit_attention_key else k_a
            q_a = unit(q_a) if where.unit_attention_query else q_a
            k_l, q_l = (unit(y) if where.unit_linear else y for y in (k_l, q_l))
            cache[h][0].append(k_a)
            cache[h][1].append(v)
            decay, strength = decay_and_strength(block.recurrence, mixer, x[t], h, d)
            memory[h] = decay[:, None] * memory[h]
            written = v - k_l @ memory[h] if mixer in ("gdn", "delta", "kda") else v
            memory[h] = memory[h] + strength * torch.outer(k_l, written)
            if mode[t] == 0:
                weights = torch.softmax(torch.stack(cache[h][0]) @ q_a / d**0.5, dim=0)
                o.append(weights @ torch.stack(cache[h][1]))
            else:
                skip = block.recurrence.D[h] * v if getattr(block.recurrence, "D", None) is not None else 0
                o.append(scale * q_l @ memory[h] + skip)
        outputs.append(torch.cat(o))
    y = torch.stack(outputs)
    opened = F.silu(block.gate(x)) if gate else torch.ones_like(y)
    y = y * opened if where.gate_first else y
    groups = 1 if where.full_norm else heads
    y = y.view(length, groups, width // groups)
    y = y / torch.sqrt(y.square().mean(2, keepdim=True) + block.norm.eps)
    y = y.flatten(1) * block.norm.weight.repeat(width // len(block.norm.weight))
    return block.out(y if where.gate_first else y * opened)


def block_and_inputs(**spec):
    """A one-layer model's mixer, what it reads, and what it returns for a mixed batch."""
    model = model_of(**spec)
    tokens, mode = tokens_and_mode()
    seen = {}
    mixer = model.blocks[0].mixer
    mixer.register_forward_hook(lambda module, args, output: seen.update(x=args[0], y=output))
    model(tokens, control={"mode": mode})
    return mixer, seen["x"].detach(), seen["y"].detach(), mode


def error(spec, where, gate=True):
    """Largest difference between the block and the definition with the parts placed as `where` says."""
    mixer, x, y, mode = block_and_inputs(**spec)
    with torch.no_grad():
        expected = torch.stack([defined(mixer, spec["mixer"], *pair, where, gate) for pair in zip(x, mode)])
    assert expected.abs().max() > 0.1
    return float((y - expected).abs().max())


PLACED = {"mamba2": TM, "gdn": TG, "delta": TG, "kda": TG, "gla": dataclasses.replace(TG, unit_linear=False)}


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_block_is_its_definition(mixer):
    assert error({"mixer": mixer}, PLACED[mixer]) < 1e-11


@pytest.mark.parametrize(
    ("mixer", "moved"),
    [
        ("mamba2", {"rope_linear": False}),
        ("mamba2", {"rope_attention": False}),
        ("mamba2", {"unit_linear": True}),
        ("mamba2", {"silu": True}),
        ("mamba2", {"full_norm": False}),
        ("mamba2", {"gate_first": False}),
        ("mamba2", {"conv_queries": True}),
        ("mamba2", {"conv_values": False}),
        ("gdn", {"rope_linear": True}),
        ("gdn", {"rope_attention": False}),
        ("gdn", {"unit_linear": False}),
        ("gdn", {"unit_attention_key": True}),
        ("gdn", {"unit_attention_query": True}),
        ("gdn", {"silu": False}),
        ("gdn", {"silu_queries": False}),
        ("gdn", {"full_norm": True}),
        ("gdn", {"gate_first": True}),
        ("gdn", {"conv_queries": True}),
        ("gdn", {"conv_values": False}),
    ],
)
def test_no_part_can_be_moved_unnoticed(mixer, moved):
    """TM rotates k in both mixers, TG in attention alone; unit length belongs to the delta rule alone; the convolution
    is on k and v alone; and so on: moved, the definition no longer agrees."""
    assert error({"mixer": mixer}, dataclasses.replace(PLACED[mixer], **moved)) > 1e-3


@pytest.mark.parametrize(
    ("spec", "moved"),
    [
        ({"mixer": "mamba2", "rope": "attention"}, {"rope_linear": False}),
        ({"mixer": "mamba2", "rope": "none"}, {"rope_linear": False, "rope_attention": False}),
        ({"mixer": "gdn", "rope": "both"}, {"rope_linear": True}),
        ({"mixer": "gdn", "attention_l2": "key"}, {"unit_attention_key": True}),
        ({"mixer": "gdn", "attention_l2": "both"}, {"unit_attention_key": True, "unit_attention_query": True}),
        ({"mixer": "gdn", "activation": "identity"}, {"silu": False, "silu_queries": False}),
        ({"mixer": "gdn", "query_activation": "identity"}, {"silu_queries": False}),
        ({"mixer": "mamba2", "activation": "silu"}, {"silu": True, "silu_queries": True}),
        ({"mixer": "mamba2", "norm": "grouped"}, {"full_norm": False}),
        ({"mixer": "gdn", "norm": "full"}, {"full_norm": True}),
        ({"mixer": "gdn", "gate": "before_norm"}, {"gate_first": True}),
        ({"mixer": "mamba2", "conv": 0}, {}),
        ({"mixer": "mamba2", "queries": "shared"}, {}),
        ({"mixer": "mamba2", "skip": False}, {}),
        ({"mixer": "gdn", "queries": "shared"}, {}),
    ],
)
def test_every_ablation_is_its_definition(spec, moved):
    assert error(spec, dataclasses.replace(PLACED[spec["mixer"]], **moved)) < 1e-11


def test_without_a_gate():
    assert error({"mixer": "gdn", "gate": "none"}, TG, gate=False) < 1e-11


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("name", [None, *ABLATIONS])
def test_parameters_and_state_are_the_formulas(mixer, name):
    spec = resolve({"kind": "oryx", "vocab_size": V, "mixer": mixer, "layers": 3, **(ABLATIONS[name] if name else {})})
    with torch.device("meta"):
        model = build(spec)
        state = model.init_state(1, 70)
    assert sum(p.numel() for p in model.parameters()) == accounting.parameters(spec)
    assert state_bytes(state) == accounting.state_bytes(spec, 70)


def plain_stack(layer, spec, oryx):
    """A stack of the catalogue's own mixer with embedding, MLPs and norms of an Oryx model."""
    stack = build(
        {"vocab_size": V, "d_model": D, "layers": [layer] * 2, "mixers": {layer: spec}, "d_ff": oryx.spec["d_ff"]}
    )
    stack = stack.double()
    shared = {name: value for name, value in oryx.state_dict().items() if ".mixer." not in name}
    missing = stack.load_state_dict(shared, strict=False)
    assert all(".mixer." in name for name in missing.missing_keys)
    assert not missing.unexpected_keys
    return stack


def test_all_attention_is_a_plain_attention_stack():
    """Without convolution, gate and norm, which a plain attention layer does not have."""
    model = model_of(layers=2, mixer="mamba2", conv=0, gate="none")
    stack = plain_stack("attention", {"head_dim": 8}, model)
    with torch.no_grad():
        for block, plain in zip(model.blocks, stack.blocks):
            block.mixer.norm = nn.Identity()
            plain.mixer.qkv.weight.copy_(torch.cat([block.mixer.attention_query.weight, block.mixer.kv.weight]))
            plain.mixer.out.weight.copy_(block.mixer.out.weight)
        tokens, mode = tokens_and_mode()
        expected = stack(tokens).logits
        torch.testing.assert_close(model(tokens).logits, expected, atol=1e-12, rtol=0)
        given = model(tokens, control={"mode": torch.zeros_like(mode)}).logits
    torch.testing.assert_close(given, expected, atol=1e-12, rtol=0)


def untouched(conv):
    """The convolution of one part's channels that leaves them as they are."""
    weight = torch.zeros(D, 1, conv.weight.shape[-1], dtype=torch.float64)
    weight[:, :, -1] = 1
    return weight


def test_all_linear_is_a_plain_gated_deltanet():
    """Of as many heads as attention, with a convolution that leaves the queries alone."""
    model = model_of(layers=2, mixer="gdn")
    stack = plain_stack("gdn", {"head_dim": 8, "heads": D // 8, "expand_v": 1.0}, model)
    with torch.no_grad():
        for block, plain in zip(model.blocks, stack.blocks):
            ours, theirs = block.mixer, plain.mixer
            parts = [ours.linear_query, ours.kv, ours.gate, ours.recurrence.strengths]
            theirs.project.weight.copy_(torch.cat([part.weight for part in parts]))
            theirs.conv.weight.copy_(torch.cat([untouched(theirs.conv), ours.conv.weight]))
            for name in ("A_log", "dt_bias"):
                getattr(theirs, name).copy_(getattr(ours.recurrence, name))
            theirs.norm.weight.copy_(ours.norm.weight)
            theirs.out.weight.copy_(ours.out.weight)
        tokens, mode = tokens_and_mode()
        given = model(tokens, control={"mode": torch.ones_like(mode)}).logits
        torch.testing.assert_close(given, stack(tokens).logits, atol=1e-12, rtol=0)


def test_all_linear_is_a_plain_mamba2():
    """Of one head, where sharing keys over heads changes nothing; Mamba-2 has SiLU and no rotation."""
    model = model_of(layers=2, mixer="mamba2", head_dim=D, activation="silu", rope="none")
    stack = plain_stack("mamba2", {"expand": 1, "head_dim": D, "d_state": D}, model)
    with torch.no_grad():
        for block, plain in zip(model.blocks, stack.blocks):
            ours, theirs = block.mixer, plain.mixer
            keys, values = ours.kv.weight.chunk(2)
            parts = [ours.gate.weight, values, keys, ours.linear_query.weight, ours.recurrence.step.weight]
            theirs.project.weight.copy_(torch.cat(parts))
            keys, values = ours.conv.weight.chunk(2)
            theirs.conv.weight.copy_(torch.cat([values, keys, untouched(theirs.conv)]))
            theirs.conv.bias.zero_()
            for name in ("A_log", "dt_bias", "D"):
                getattr(theirs, name).copy_(getattr(ours.recurrence, name))
            theirs.norm.weight.copy_(ours.norm.weight)
            theirs.out.weight.copy_(ours.out.weight)
        tokens, mode = tokens_and_mode()
        given = model(tokens, control={"mode": torch.ones_like(mode)}).logits
        torch.testing.assert_close(given, stack(tokens).logits, atol=1e-12, rtol=0)
