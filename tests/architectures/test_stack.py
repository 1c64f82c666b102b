"""The stack and every mixer in it: shapes, causality, decoding, initialisation, weight decay."""

from __future__ import annotations

import pytest
import torch

from architectures import build, parameter_groups, receptive_field, resolve, state_bytes
from architectures.catalogue import COMPOSITE, MIXERS

V = 11
NEEDS = {"gmu": "mamba2", "shared_attention": "attention"}
PARAMETERS = {
    "sliding": {"window": 5},
    "gmu": {"source": "mamba2"},
    "mlp": {"d_ff": 24},
    "fused": {"combine": "map"},
    "sequential": {"first": "sliding", "second": "ema"},
    "parallel": {"recurrent": "mamba2"},
}


def spec_of(name, **top):
    """Two layers of one mixer, after the layer it reads if it reads one."""
    layers = [NEEDS[name]] if name in NEEDS else []
    layers += [name] * 2
    mixers = {name: PARAMETERS[name]} if name in PARAMETERS else {}
    return {"vocab_size": V, "d_model": 32, "layers": layers, "mixers": mixers, "init_std": 0.2, **top}


def model_of(name, seed=0, **top):
    torch.manual_seed(seed)
    return build(spec_of(name, **top))


def tokens_of(length, batch=2, seed=0):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=MIXERS)
def name(request):
    return request.param


@pytest.mark.parametrize("length", [1, 2, 63, 65])
def test_shapes_and_finite_gradients(name, length):
    model = model_of(name)
    logits = model(tokens_of(length)).logits
    assert logits.shape == (2, length, V)
    logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_a_future_token_moves_no_earlier_logit(name):
    model, tokens = model_of(name).double(), tokens_of(70)
    before = model(tokens).logits
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % V
    after = model(changed).logits
    torch.testing.assert_close(after[:, :40], before[:, :40], atol=1e-12, rtol=0)
    assert not torch.allclose(after[:, 40], before[:, 40])


@pytest.mark.parametrize("split", [[75], [1] * 75, [33, 1, 1, 40], [1, 64, 10], [66, *[1] * 9]])
def test_any_split_gives_the_full_pass(name, split):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model, tokens = model_of(name).to(dtype), tokens_of(75)
        whole = model(tokens).logits
        state, at, parts = model.init_state(2, 75), 0, []
        for size in split:
            piece = tokens[:, at : at + size]
            if size == 1:
                logits, state = model.step(piece[:, 0], state)
                parts.append(logits[:, None])
            else:
                logits, state = model.prefill(piece, state, logits="all")
                parts.append(logits)
            at += size
        error = (torch.cat(parts, dim=1) - whole).abs().max() / (1 + whole.abs().max())
        assert error < tolerance


def test_last_logits_of_a_prefill(name):
    model, tokens = model_of(name), tokens_of(20)
    logits, state = model.prefill(tokens, model.init_state(2, 20))
    torch.testing.assert_close(logits, model(tokens).logits[:, -1], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="max_length: the state has room for 20 tokens, 21 were given"):
        model.step(tokens[:, 0], state)


def test_state_grows_as_claimed(name):
    model = model_of(name)
    short, long, longer = (state_bytes(model.init_state(1, length)["layers"]) for length in (64, 128, 256))
    if name in NEEDS:
        pytest.skip("the state beside it is that of the layer it reads")
    growth = MIXERS[name].state if name not in COMPOSITE else None
    if growth == "none":
        assert longer == 0
    elif growth in ("constant", "window"):
        assert 0 < short == long == longer
    elif growth == "linear":
        assert longer == 2 * long == 4 * short > 0


def test_class_takes_exactly_the_listed_parameters(name):
    import importlib
    import inspect

    entry = MIXERS[name]
    module, _, cls = entry.target.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), cls).__init__)
    listed = ["d_model", *entry.fields, *(["provider"] if entry.reads else [])]
    assert list(signature.parameters)[1:] == listed
    for parameter, field in ((signature.parameters[n], entry.fields[n]) for n in entry.fields):
        if parameter.default is not inspect.Parameter.empty:
            assert parameter.default == field.default


def test_same_seed_same_weights_and_logits(name):
    one, two, other = model_of(name), model_of(name), model_of(name, seed=1)
    tokens = tokens_of(30)
    assert torch.equal(one(tokens).logits, two(tokens).logits)
    assert not torch.equal(one(tokens).logits, other(tokens).logits)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(tokens).logits, other(tokens).logits)


def test_logits_at_positions_only(name):
    model, tokens = model_of(name), tokens_of(24, batch=3)
    whole = model(tokens).logits
    mask = torch.rand(3, 24, generator=torch.Generator().manual_seed(0)) < 0.3
    at_mask = model(tokens, positions=mask).logits
    at_index = model(tokens, positions=mask.flatten().nonzero()[:, 0]).logits
    torch.testing.assert_close(at_mask, whole[mask], atol=1e-6, rtol=1e-5)
    assert torch.equal(at_mask, at_index)


def test_nothing_behind_the_last_mixer_runs_at_positions_that_were_not_asked_for():
    model, tokens = build({"layers": "[attention]*2", "d_model": 16, "vocab_size": V}).double(), tokens_of(24, batch=3)
    at, seen = torch.tensor([5, 0, 71, 30, 30]), []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    weights = list(model.parameters())
    direction = torch.randn(5, V, dtype=torch.float64)
    found = torch.autograd.grad(model(tokens, positions=at).logits, weights, direction)
    assert seen == [(3, 24, 16), (5, 16)]
    expected = torch.autograd.grad(model(tokens).logits.flatten(0, 1)[at], weights, direction)
    torch.testing.assert_close(found, expected)


def test_features(name):
    model, tokens = model_of(name), tokens_of(9)
    output = model(tokens, features=True)
    streams = output.extras["features"]
    assert len(streams) == len(model.blocks) + 2
    assert all(stream.shape == (2, 9, 32) for stream in streams)
    assert torch.equal(streams[0], model.embedding(tokens))
    assert torch.equal(streams[-1], model.norm(streams[-2]))
    assert torch.equal(model.head(streams[-1]), output.logits)
    assert "features" not in model(tokens).extras


def test_bfloat16_autocast_keeps_states_and_norms_wide(name):
    model, tokens = model_of(name, init_std=0.05), tokens_of(65)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(tokens).logits
    assert low.isfinite().all()
    high = model(tokens).logits
    assert (low.float() - high).abs().max() < 0.05 * (1 + high.abs().max())


def test_plain_kernels_give_the_same_logits(name):
    spec = spec_of(name)
    torch.manual_seed(0)
    fast = build(spec).double()
    torch.manual_seed(0)
    slow = build(spec, kernels="plain").double()
    tokens = tokens_of(65)
    torch.testing.assert_close(fast(tokens).logits, slow(tokens).logits, atol=1e-10, rtol=0)
    assert set(slow.kernels_used.values()) <= {"plain"}
    assert set(fast.kernels_used.values()) <= {"chunked"}
    assert set(fast.kernels_used) == set(slow.kernels_used)


def test_stack_overwrites_no_initialisation_of_a_source():
    torch.manual_seed(0)
    model = build({"vocab_size": V, "layers": "[mamba2, gdn]*8, mamba2*8", "init_std": 1e-9})
    for block in model.blocks:
        mixer = block.mixer
        low = 1.0 if type(mixer).__name__ == "Mamba2" else 0.0
        assert (mixer.A_log.exp() >= low).all()
        assert (mixer.A_log.exp() <= 16).all()
        steps = torch.nn.functional.softplus(mixer.dt_bias)
        assert (steps >= 1e-3 * 0.999).all()
        assert (steps <= 1e-1 * 1.001).all()
        assert mixer.conv.weight.abs().max() > 0.3
        assert torch.equal(mixer.norm.weight, torch.ones_like(mixer.norm.weight))
        assert mixer.project.weight.abs().max() < 1e-7
    rates = torch.cat([block.mixer.A_log.exp() for block in model.blocks])
    assert rates.max() > 10
    assert torch.equal(model.blocks[0].mixer.D, torch.ones_like(model.blocks[0].mixer.D))
    for layers in ("kda", "rglru", "gla", "fused", "delta"):
        _every_other_parameter_is_its_sources(layers)
    ema = build({"vocab_size": V, "layers": "ema", "init_std": 1e-9}).blocks[0].mixer
    assert ema.rate.min() == pytest.approx(torch.tensor(-1.0).exp().item())
    assert ema.rate.max() == pytest.approx(torch.tensor(-1 / 256).exp().item())


SOURCES = {
    "A_log": lambda p: ((p.exp() >= 1) & (p.exp() <= 16)).all(),
    "dt_bias": lambda p: ((p.exp().log1p() > 9.9e-4) & (p.exp().log1p() < 0.101)).all(),
    "D": lambda p: (p == 1).all(),
    "rate": lambda p: (
        ((-16 * p.exp().log1p()).exp() > 0.81 - 1e-4).all() and ((-16 * p.exp().log1p()).exp() < 0.9981).all()
    ),
    "conv.weight": lambda p: 0.3 < p.abs().max() <= 0.5,
    "conv.bias": lambda p: 0.3 < p.abs().max() <= 0.5,
    "gate.weight": lambda p: p.std() > 0.1,
    "gate.bias": lambda p: (p == 0).all(),
    "norm.weight": lambda p: (p == 1).all(),
}
"""What each source starts with, by the end of the name; the rest is a linear map of the stack's."""


def _every_other_parameter_is_its_sources(layers):
    mixer = build({"vocab_size": V, "layers": layers, "init_std": 1e-9}).blocks[0].mixer
    linear = {id(p) for m in mixer.modules() if isinstance(m, torch.nn.Linear) for p in m.parameters()}
    own = [(name, p) for name, p in mixer.named_parameters() if id(p) not in linear]
    assert own
    for name, parameter in own:
        rule = next(rule for end, rule in SOURCES.items() if name.endswith(end))
        assert rule(parameter), (layers, name)


def test_weight_decay_spares_norms_biases_and_the_recurrences_own():
    model = model_of("mamba2", head={"kind": "linear", "size": 3})
    decayed, kept = parameter_groups(model, 0.1)
    names = {id(p): key for key, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1
    assert kept["weight_decay"] == 0.0
    spared = {names[id(p)].rsplit(".", 1)[-1] for p in kept["params"]}
    assert {"A_log", "dt_bias", "D", "bias"} <= spared
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert "embedding.weight" in {names[id(p)] for p in decayed["params"]}
    together = [id(p) for group in (decayed, kept) for p in group["params"]]
    assert sorted(together) == sorted(names)


def test_heads():
    tied = build({"vocab_size": V, "layers": "ema"})
    untied = build({"vocab_size": V, "layers": "ema", "tie": False})
    linear = build({"vocab_size": V, "layers": "ema", "head": {"kind": "linear", "size": 3}})
    assert untied.readout.weight.shape == tied.embedding.weight.shape
    assert sum(p.numel() for p in untied.parameters()) == sum(p.numel() for p in tied.parameters()) + V * 64
    assert linear(tokens_of(4)).logits.shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("layers", "reach"),
    [("sliding", 5), ("sliding*3", 13), ("sliding, mlp, sliding", 9), ("attention", None), ("sliding, ema", None)],
)
def test_receptive_field(layers, reach):
    mixers = {"sliding": {"window": 5}}
    mixers = mixers if "sliding" in layers else {}
    spec = {"vocab_size": V, "d_model": 16, "layers": layers, "mixers": mixers, "init_std": 0.3}
    assert receptive_field(spec) == reach
    if reach is None:
        return
    torch.manual_seed(0)
    model, tokens = build(spec).double(), tokens_of(40)
    moved = []
    for back in range(reach + 3):
        changed = tokens.clone()
        changed[:, 39 - back] = (changed[:, 39 - back] + 1) % V
        moved.append(not torch.equal(model(changed).logits[:, 39], model(tokens).logits[:, 39]))
    assert moved[reach - 1]
    assert not any(moved[reach:])


def test_models_build_without_memory_on_the_meta_device():
    with torch.device("meta"):
        model = build({"vocab_size": 128256, "d_model": 2048, "d_ff": 4096, "layers": "mamba2*24"})
    state = model.init_state(1, 65536, device="meta", dtype=torch.bfloat16)
    assert state_bytes(state["layers"]) == 24 * (64 * 64 * 128 + 4352 * 4) * 2


def test_resolved_specs_build_the_same_model():
    spec = resolve(spec_of("gdn"))
    torch.manual_seed(0)
    assert torch.equal(build(spec)(tokens_of(9)).logits, model_of("gdn")(tokens_of(9)).logits)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_half_precision_caches_and_weights(name, weights):
    """Decoding with bfloat16 caches, the weights in either precision, stays near the full pass in float32."""
    model, tokens = model_of(name, init_std=0.05), tokens_of(20)
    whole = model(tokens).logits
    model = model.to(weights)
    state = model.init_state(2, 20, dtype=torch.bfloat16)
    before = state_bytes(state)
    first, state = model.prefill(tokens[:, :13], state, logits="all")
    parts = [first]
    for position in range(13, 20):
        logits, state = model.step(tokens[:, position], state)
        parts.append(logits[:, None])
    found = torch.cat(parts, dim=1)
    assert found.dtype == weights
    assert (found.float() - whole).abs().max() < 0.05 * (1 + whole.abs().max())
    assert state_bytes(state) == before
