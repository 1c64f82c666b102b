"""The formulas for AMOR and Oryx against models that are built, their real decoding states and their products."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from architectures import accounting as formula
from architectures import amor_spec, build, oryx_spec, resolve, state_bytes
from architectures.accounting.models import oryx_decay
from architectures.published import AMOR_SCALES, ORYX_MODELS, ORYX_SCALES, ROUTER, published_spec

AMOR = {"kind": "amor", "vocab_size": 17, "layers": "[gdn, mamba2]*2", "d_model": 32}
AMOR_CASES = [
    *({"trigger": trigger} for trigger in amor_spec.TRIGGERS),
    *amor_spec.ABLATIONS.values(),
    {"trigger": {"kind": "input", "hidden": 5}, "tie": False},
    {"trigger": {"kind": "router", "hidden": 7}, "d_ff": 0, "blocks": 2},
    {"placement": "serial", "blocks": 2, "at": [0, 3], "alpha": "none"},
    {"placement": "fused", "blocks": 2, "trigger": "router", "rope_base": None, "head_dim": 1},
]
ORYX = {"kind": "oryx", "vocab_size": 17, "layers": 3, "d_model": 32}
ORYX_CASES = [
    *({"mixer": mixer, **ablation} for mixer in oryx_spec.MIXERS for ablation in ({}, *oryx_spec.ABLATIONS.values())),
    {"mixer": "mamba2", "skip": False, "tie": False},
    {"mixer": "kda", "decay_rank": 3, "head_dim": 16, "d_ff": 0},
    {"mixer": "gla", "decay_rank": 5, "modes": "attention, linear, follow"},
]
CASES = [*({**AMOR, **case} for case in AMOR_CASES), *({**ORYX, **case} for case in ORYX_CASES)]


@pytest.mark.parametrize("given", CASES, ids=str)
def test_parameters_and_state_are_the_built_models(given):
    spec = resolve(given)
    with torch.device("meta"):
        model = build(spec)
    assert formula.parameters(spec) == sum(p.numel() for p in model.parameters())
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        for length in (1, 40, 300):
            state = model.init_state(1, length, device="meta", dtype=dtype)
            assert formula.state_bytes(spec, length, dtype_bytes=size) == state_bytes(state)


@pytest.mark.parametrize("scale", AMOR_SCALES)
@pytest.mark.parametrize("model", ["Amor-Mamba2", "Amor-Gated DeltaNet"])
@pytest.mark.parametrize("gate", ["", ROUTER])
def test_amors_published_models_on_meta(model, gate, scale):
    spec = published_spec(model + gate, scale)
    with torch.device("meta"):
        built = build(spec)
    assert formula.parameters(spec) == sum(p.numel() for p in built.parameters())
    state = built.init_state(1, 3072, device="meta", dtype=torch.bfloat16)
    assert formula.state_bytes(spec, 3072, dtype_bytes=2) == state_bytes(state)


@pytest.mark.parametrize("scale", ORYX_SCALES)
@pytest.mark.parametrize("model", ORYX_MODELS)
def test_oryxs_published_models_on_meta(model, scale):
    spec = published_spec(model, scale)
    with torch.device("meta"):
        built = build(spec)
    assert formula.parameters(spec) == sum(p.numel() for p in built.parameters())
    state = built.init_state(1, 2048, device="meta", dtype=torch.bfloat16)
    assert formula.state_bytes(spec, 2048, dtype_bytes=2) == state_bytes(state)


def products(model: torch.nn.Module, length: int, **inputs) -> float:
    """FLOPs per token of products with weights in a real forward pass."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.long), **inputs)
    counted = {str(op): flops / length for op, flops in counter.get_flop_counts()["Global"].items()}
    return counted.get("aten.mm", 0) + counted.get("aten.addmm", 0)


@pytest.mark.parametrize("case", AMOR_CASES, ids=str)
def test_amors_products_are_those_that_run(case):
    spec = resolve({**AMOR, **case})
    control = {"surprise": torch.rand(1, 9)} if spec["trigger"]["kind"] == "control" else None
    run = products(build(spec).train(), 9, control=control)
    assert run == pytest.approx(formula.cost(spec, 9).projections)


@pytest.mark.parametrize("mixer", oryx_spec.MIXERS)
@pytest.mark.parametrize("queries", ["own", "shared"])
def test_oryxs_products_are_those_that_run(mixer, queries):
    """What a mode needs is what runs, with two exceptions: a mixed pass asks the recurrence at every token, and one in
    attention mode alone, without a state to advance, leaves out what only the recurrence needs."""
    spec = resolve({**ORYX, "mixer": mixer, "queries": queries})
    model = build(spec)
    modes = torch.tensor([[oryx_spec.LINEAR] * 4 + [oryx_spec.ATTENTION] * 5])
    for mode in (modes, torch.full((1, 9), oryx_spec.LINEAR)):
        share = (mode == oryx_spec.LINEAR).double().mean().item()
        expected = formula.cost(spec, 9, linear_fraction=share).projections
        asked = (1 - share) * spec["layers"] * 2 * spec["d_model"] ** 2
        assert products(model, 9, control={"mode": mode}) == pytest.approx(expected + asked)
    attention = torch.full((1, 9), oryx_spec.ATTENTION)
    alone = spec["layers"] * oryx_decay(spec).projections
    assert products(model, 9, control={"mode": attention}) == pytest.approx(expected - alone)


@pytest.mark.parametrize("by", ["parameters", "state_bytes", "forward_flops"])
def test_amor_and_oryx_can_be_matched(by):
    """To a plain stack, and a stack to them; the state of Oryx moves only with its head_dim, and that little."""
    stack = resolve({"vocab_size": 17, "layers": "gdn*4", "d_model": 32, "d_ff": 256})
    amor = formula.matched({**AMOR, "d_ff": 200}, stack, "parameters" if by == "state_bytes" else by, 16)
    assert abs(amor.residual) < 0.01
    assert set(amor.dials) == {"d_ff"}
    for hybrid in (resolve(AMOR), resolve(ORYX)):
        back = formula.matched(stack, hybrid, by, 64)
        assert abs(back.residual) < 0.02
        assert back.spec["kind"] == "stack"
    if by == "state_bytes":
        grown = formula.matched(AMOR, resolve({**AMOR, "blocks": 5}), by, 64)
        assert abs(grown.residual) < 0.02
        assert set(grown.dials) == {"mixers.gdn.expand_v", "mixers.mamba2.d_state"}
        assert set(formula.matched(ORYX, resolve({**ORYX, "head_dim": 16}), by, 64).dials) == {"head_dim"}
