"""The AMOR model: what it is at initialisation, its three forms, gradients, buffers, decoding, counts."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

from architectures import Context, SpecError, accounting, build, state_bytes
from architectures.amor_spec import ABLATIONS, TRIGGERS
from architectures.amor_spec import backbone as backbone_of
from architectures.amor_trigger import Gate
from architectures.published import ROUTER, published_spec

BASE = {"kind": "amor", "vocab_size": 11, "layers": "gdn*2", "d_model": 16, "d_ff": 24, "mixers": {"gdn": {"heads": 2}}}
MAMBA = {**BASE, "layers": "mamba2*2", "mixers": {}}
SMALL = {"serial": {"layers": "gdn*4"}, "fused": {"layers": "gdn*4"}}
VARIANTS = {"canonical": {}, **{name: {**change, **SMALL.get(name, {})} for name, change in ABLATIONS.items()}}


def make(spec=None, *, seed=0, moved=True, split=True):
    """A model in evaluation mode; `moved`: with output projections that are not zero; `split`: gates half open."""
    torch.manual_seed(seed)
    model = build({**BASE, **(spec or {})}).eval()
    if moved:
        for attention in model.attentions:
            torch.nn.init.normal_(attention.out.weight, std=0.3)
            torch.nn.init.normal_(attention.query.weight, std=0.5)
    if split:
        halve(model, torch.randint(0, 11, (4, 24)))
    return model


def halve(model, tokens, control=None):
    """Sets each gate's threshold into the widest gap of the middle half of its scores, one block after the other.

    Rounding, which differs between the forms, then moves no decision.
    """
    for number, attention in enumerate(model.attentions):
        if hasattr(attention.trigger, "statistics"):
            with torch.no_grad():
                score = model(tokens, control=control).extras["fields"][f"gate.{number}.score"].flatten().sort().values
            score = score[len(score) // 4 : -(len(score) // 4)]
            widest = int(score.diff().argmax())
            attention.trigger.statistics.fix((score[widest] + score[widest + 1]) / 2)


class Given(torch.nn.Module):
    """A gate that is given."""

    def __init__(self, fire):
        super().__init__()
        self.fire = fire

    def forward(self, features, context, start):
        return Gate(self.fire)


def gradients(model):
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("base", [BASE, MAMBA], ids=["gdn", "mamba2"])
@pytest.mark.parametrize("trigger", ["entropy", "always", "never", "random"])
def test_at_initialisation_the_logits_are_the_twice_normalised_backbones(base, trigger):
    model = make({**base, "trigger": trigger}, moved=False, split=False)
    tokens = torch.randint(0, 11, (3, 17))
    features = model.backbone(tokens, features=True).extras["features"][-1]
    assert torch.equal(model(tokens).logits, model.head(model.norm(features)))
    again = (features.square().mean(-1, keepdim=True) + model.spec["norm_eps"]).rsqrt()
    torch.testing.assert_close(model(tokens).logits, model.backbone(tokens).logits * again)
    assert (again - 1).abs().max() < 0.1


def test_at_initialisation_the_symmetric_layout_is_the_backbone_bitwise():
    for trigger in ("entropy", "always"):
        model = make({"layout": "symmetric", "trigger": trigger}, moved=False, split=False)
        tokens = torch.randint(0, 11, (3, 17))
        assert torch.equal(model(tokens).logits, model.backbone(tokens).logits)


def test_the_backbone_is_the_catalogues_own_from_the_same_seed():
    model = make(moved=False, split=False)
    torch.manual_seed(0)
    plain = build(backbone_of(model.spec)).eval()
    tokens = torch.randint(0, 11, (2, 9))
    assert torch.equal(plain(tokens).logits, model.backbone(tokens).logits)
    assert set(plain.state_dict()) == {
        name.removeprefix("backbone.") for name in model.state_dict() if name.startswith("backbone.")
    }


def test_block_0_reads_and_adds_to_the_normalised_residual_and_later_blocks_norm_it():
    model = make({"trigger": "always"}, split=False)
    tokens = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        seen = model(tokens, features=True).extras["features"]
        residual = model.backbone.norm(seen[2])
        for number, block in enumerate(model.blocks):
            features = residual if number == 0 else block.norm(residual)
            assert (block.norm is None) == (number == 0)
            residual = residual + block.attention(features)
            torch.testing.assert_close(seen[3 + number], residual)
        torch.testing.assert_close(model(tokens).logits, model.head(model.norm(residual)))
        assert len(seen) == 1 + 2 + 3 + 1


def test_attention_is_the_formula_of_the_paper():
    model = make(MAMBA | {"blocks": 1})
    attention = model.attentions[0]
    x = torch.randn(2, 7, 16)
    fire = torch.rand(2, 7) > 0.5
    attention.trigger = Given(fire)
    heads, width = attention.heads, attention.head_dim
    angle = torch.arange(7.0)[:, None] * 10000.0 ** -(torch.arange(0, width, 2) / width)

    def turn(y):
        pairs = torch.complex(y[..., : width // 2], y[..., width // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def split(y):
        return y.unflatten(-1, (heads, width)).transpose(1, 2)

    q, k = turn(split(x @ attention.query.weight.T)), turn(split(x @ attention.key_value.weight[:16].T))
    v = split(x @ attention.key_value.weight[16:].T)
    weights = (q @ k.transpose(-1, -2) / width**0.5).masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf)
    a = (weights.softmax(-1) @ v).transpose(1, 2).flatten(2) @ attention.out.weight.T
    with torch.no_grad():
        attention.alpha.copy_(torch.linspace(-3, 3, 16))
    alpha = torch.sigmoid(torch.linspace(-3, 3, 16).clamp(min=-1))
    torch.testing.assert_close(attention(x), fire[..., None] * alpha * a)
    assert float(attention.scale().detach().min()) == pytest.approx(0.2689, abs=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_dense_and_sparse_agree_in_outputs_and_gradients(name):
    model = make({**VARIANTS[name]}).double()
    tokens = torch.randint(0, 11, (3, 23))
    found = {}
    for mode in ("dense", "sparse"):
        model.mode = mode
        model.zero_grad()
        output = model(tokens)
        output.logits.square().mean().backward()
        found[mode] = output, gradients(model)
    dense, sparse = found["dense"], found["sparse"]
    torch.testing.assert_close(dense[0].logits, sparse[0].logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(dense[1], sparse[1], rtol=1e-9, atol=1e-12)
    if model.spec["trigger"]["kind"] == "entropy":
        assert 0.2 < float(dense[0].extras["metrics"]["gate.rate"]) < 0.8


@pytest.mark.parametrize("trigger", ["input", "always", "never"])
def test_dense_and_sparse_agree_for_weighted_full_and_empty_gates(trigger):
    model = make({"trigger": trigger}).double()
    tokens = torch.randint(0, 11, (3, 23))
    found = []
    for mode in ("dense", "sparse"):
        model.mode = mode
        model.zero_grad()
        logits = model(tokens).logits
        logits.square().mean().backward()
        found.append((logits.detach(), gradients(model)))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("base", [BASE, MAMBA], ids=["gdn", "mamba2"])
@pytest.mark.parametrize("name", VARIANTS)
def test_any_chunks_then_steps_equal_the_full_pass(base, name):
    spec = {**base, **VARIANTS[name]}
    if name in SMALL:
        spec["layers"] = spec["layers"].replace("gdn", base["layers"].split("*")[0])
    model = make(spec)
    tokens = torch.randint(0, 11, (3, 22))
    with torch.no_grad():
        whole = model(tokens).logits
        for mode, cuts in (("dense", (0, 5, 6, 13)), ("sparse", (0, 1, 13)), ("dense", (0,))):
            model.mode = mode
            state = model.init_state(3, 22)
            parts = []
            for start, stop in pairwise(cuts):
                logits, state = model.prefill(tokens[:, start:stop], state, logits="all")
                parts.append(logits)
            for t in range(cuts[-1], 22):
                logits, state = model.step(tokens[:, t], state)
                parts.append(logits[:, None])
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="room for 22 tokens, 23"):
        model.step(tokens[:, 0], state)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_every_trigger_decodes_as_it_reads(trigger):
    control = {"surprise": torch.rand(3, 15)}
    model = make({"trigger": trigger}, split=False)
    tokens = torch.randint(0, 11, (3, 15))
    halve(model, tokens, control)
    with torch.no_grad():
        output = model(tokens, control=control)
        state = model.init_state(3, 15)
        parts = []
        for t in range(15):
            logits, state = model.step(tokens[:, t], state, control={"surprise": control["surprise"][:, t]})
            parts.append(logits)
    torch.testing.assert_close(torch.stack(parts, dim=1), output.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_every_trigger_can_be_trained(trigger):
    control = {"surprise": torch.rand(3, 15)}
    model = make({"trigger": trigger}, split=False).train()
    for _ in range(3):
        model.zero_grad()
        logits = model(torch.randint(0, 11, (3, 15)), control=control).logits
        logits.square().mean().backward()
        found = gradients(model)
        assert all(bool(part.isfinite().all()) for part in found.values())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * found[name]
    learns = {name for name, part in found.items() if ".trigger." in name and part.abs().sum() > 0}
    assert bool(learns) == (trigger == "input")
    assert (float(found["blocks.0.attention.query.weight"].abs().sum()) > 0) == (trigger != "never")


def test_decoding_counts_what_it_did_not_compute():
    model = make()
    tokens = torch.randint(0, 11, (4, 12))
    with torch.no_grad():
        fields = model(tokens).extras["fields"]
        state = model.init_state(4, 12)
        for t in range(12):
            _, state = model.step(tokens[:, t], state)
    shut = torch.stack([~fields[f"gate.{number}.fire"] for number in range(3)])
    keys = model.attentions[0].heads * torch.arange(1, 13)
    assert state["skips"].read() == {
        "queries": int(shut.sum()),
        "queries_total": 3 * 4 * 12,
        "scores": int((shut * keys).sum()),
        "scores_total": int(3 * 4 * keys.sum()),
    }


def test_a_shut_gate_runs_no_query_in_decoding():
    model = make({"trigger": "position"})
    state = model.init_state(2, 6)
    calls = []
    for attention in model.attentions:
        attention.query.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    for t in range(6):
        before = len(calls)
        _, state = model.step(torch.tensor([1, 2]), state)
        assert len(calls) - before == (3 if t % 3 == 0 else 0)


def test_where_the_gate_is_shut_query_output_and_alpha_have_no_gradient_but_keys_and_values_do():
    model = make({"blocks": 1, "trigger": {"kind": "control", "name": "g", "compare": "positive"}}, split=False)
    attention = model.attentions[0]
    x = torch.randn(1, 6, 16)

    def sizes(fire, at):
        model.zero_grad()
        context = Context(control={"g": torch.tensor([fire])})
        attention(x, context)[:, at].sum().backward()
        weights = attention.key_value.weight.grad
        parts = {
            "q": attention.query.weight.grad,
            "o": attention.out.weight.grad,
            "alpha": attention.alpha.grad,
            "k": weights[:16],
            "v": weights[16:],
        }
        return {name: float(part.abs().sum()) for name, part in parts.items()}

    shut = sizes([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], at=4)
    assert set(shut.values()) == {0.0}
    assert all(value > 0 for value in sizes([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], at=2).values())

    inputs = x.clone().requires_grad_()
    attention(inputs, Context(control={"g": torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])})).sum().backward()
    reached = inputs.grad.abs().sum(-1)[0]
    assert (reached[:3] > 0).all()
    assert (reached[3:] == 0).all()


def test_no_gradient_reaches_the_backbone_through_the_entropy():
    model = make()
    tokens = torch.randint(0, 11, (2, 13))
    score = model(tokens).extras["fields"]["gate.0.score"]
    assert not score.requires_grad
    model.zero_grad()
    model(tokens).logits.square().mean().backward()
    native = gradients(model)
    fires = [model(tokens).extras["fields"][f"gate.{number}.fire"] for number in range(3)]
    with model.triggered([Given(fire) for fire in fires]):
        model.zero_grad()
        model(tokens).logits.square().mean().backward()
        torch.testing.assert_close(gradients(model), native, rtol=0, atol=0)


def test_evaluation_changes_no_buffer_and_training_does():
    model = make()
    tokens = torch.randint(0, 11, (2, 13))
    before = copy.deepcopy(dict(model.named_buffers()))
    model(tokens)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    model.train()(tokens)
    moved = [name for name, value in model.named_buffers() if not torch.equal(value, before[name])]
    assert moved == [f"blocks.{n}.attention.trigger.statistics.{name}" for n in range(3) for name in ("mu", "sigma")]


@pytest.mark.parametrize("trigger", ["entropy", "random"])
def test_statistics_survive_save_load_and_resume(tmp_path, trigger):
    from safetensors.torch import load_model, save_model

    def train(model, steps, seed):
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            tokens = torch.randint(0, 11, (2, 9), generator=generator)
            optimizer.zero_grad()
            model(tokens).logits.square().mean().backward()
            optimizer.step()

    model = make({"trigger": trigger}).train()
    train(model, 3, 1)
    save_model(model, str(tmp_path / "weights.safetensors"))
    resumed = make({"trigger": trigger}, seed=5).train()
    load_model(resumed, tmp_path / "weights.safetensors")
    train(model, 3, 2)
    train(resumed, 3, 2)
    for (name, one), (_, two) in zip(model.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, two), name


def test_a_tensor_from_outside_can_be_the_gate():
    spec = {"kind": "control", "name": "g", "compare": "positive"}
    model = make({"trigger": spec}, split=False)
    tokens = torch.randint(0, 11, (2, 9))
    fire = (torch.rand(2, 9) > 0.4).float()
    fields = model(tokens, control={"g": fire}).extras["fields"]
    assert all(torch.equal(fields[f"gate.{number}.fire"], fire > 0) for number in range(3))
    always, never = make({"trigger": "always"}), make({"trigger": "never"})
    torch.testing.assert_close(model(tokens, control={"g": torch.ones(2, 9)}).logits, always(tokens).logits)
    torch.testing.assert_close(model(tokens, control={"g": torch.zeros(2, 9)}).logits, never(tokens).logits)
    assert not torch.allclose(always(tokens).logits, never(tokens).logits)


def test_never_is_the_control_with_the_attention_output_zeroed():
    model = make()
    tokens = torch.randint(0, 11, (2, 9))
    with model.triggered(model.make_triggers("never")):
        shut = model(tokens).logits
    for attention in model.attentions:
        torch.nn.init.zeros_(attention.out.weight)
    torch.testing.assert_close(model(tokens).logits, shut, rtol=0, atol=0)


def test_other_triggers_are_lent_to_a_model_and_taken_back():
    model = make()
    own = [attention.trigger for attention in model.attentions]
    tokens = torch.randint(0, 11, (2, 12))
    native = model(tokens).logits
    with model.triggered(model.make_triggers({"kind": "position", "every": 4})):
        assert float(model(tokens).extras["metrics"]["gate.rate"]) == pytest.approx(0.25)
    assert [attention.trigger for attention in model.attentions] == own
    assert torch.equal(model(tokens).logits, native)
    with pytest.raises(SpecError, match="nearest: 'entropy'"):
        model.make_triggers("entropi")


def test_metrics_tell_rates_over_all_and_over_the_scored_positions():
    model = make()
    tokens = torch.randint(0, 11, (3, 12))
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[:, 7:] = True
    extras = model(tokens, positions=mask).extras
    index = model(tokens, positions=mask.flatten().nonzero()[:, 0]).extras
    for number in range(3):
        fire = extras["fields"][f"gate.{number}.fire"].float()
        assert float(extras["metrics"][f"gate.{number}.rate"]) == pytest.approx(float(fire.mean()))
        assert float(extras["metrics"][f"gate.{number}.rate_scored"]) == pytest.approx(float(fire[:, 7:].mean()))
        assert float(index["metrics"][f"gate.{number}.rate_scored"]) == pytest.approx(float(fire[:, 7:].mean()))
        assert {f"gate.{number}.{part}" for part in ("mu", "sigma", "tau", "alpha")} <= set(extras["metrics"])


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_the_accounting(name):
    for trigger in TRIGGERS:
        spec = {**BASE, **VARIANTS[name], "trigger": trigger}
        with torch.device("meta"):
            model = build(spec)
        assert sum(p.numel() for p in model.parameters()) == accounting.parameters(spec)


PRINTED = {
    "Amor-Mamba2": {"180M": 184.4, "440M": 448.7, "1.5B": 1537.4},
    "Amor-Gated DeltaNet": {"180M": 182.0, "440M": 442.1, "1.5B": 1524.0},
}
"""Millions of parameters, AMOR's Table 5."""


@pytest.mark.parametrize("scale", ["180M", "440M", "1.5B"])
@pytest.mark.parametrize("model", PRINTED)
def test_built_models_have_the_papers_parameters_and_routers(model, scale):
    with torch.device("meta"):
        native = build(published_spec(model, scale))
        routed = build(published_spec(model + ROUTER, scale))
    count = sum(p.numel() for p in native.parameters())
    assert round(count / 1e6, 1) == PRINTED[model][scale]
    routers = {"180M": 1_185_027, "440M": 1_579_011, "1.5B": 3_154_947}
    assert sum(p.numel() for p in routed.parameters()) - count == routers[scale]
    state = native.init_state(1, 3072, device="meta", dtype=torch.bfloat16)
    assert state_bytes(state) == accounting.state_bytes(native.spec, 3072, dtype_bytes=2)
