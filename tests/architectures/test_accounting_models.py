"""The formulas against models that are built, their real decoding states and the products that they really run."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from architectures import SpecError, build, resolve, state_bytes
from architectures import accounting as formula
from architectures.accounting.cost import mean_keys
from architectures.catalogue import MIXERS
from architectures.kernels import OPERATIONS
from architectures.published import AMOR_MODELS, published_spec

VARIANTS: dict[str, list[dict]] = {
    "attention": [{}, {"head_dim": 8, "rope_base": None}],
    "sliding": [{"window": 5}, {"window": 200}],
    "ema": [{"decay": "fixed"}, {"decay": "learned"}, {"decay": "input"}],
    "mamba2": [{}, {"conv": 0}, {"expand": 3, "head_dim": 16, "d_state": 24, "conv": 2}],
    "gdn": [{}, {"conv": 0, "negative_eigenvalues": True}, {"heads": 5, "head_dim": 8, "expand_v": 1.5}],
    "delta": [{}, {"conv": 0}, {"heads": 3, "head_dim": 12, "expand_v": 2.0}],
    "kda": [{}, {"conv": 0}, {"heads": 3, "head_dim": 12, "expand_v": 2.0}],
    "rglru": [{}, {"conv": 0}, {"width": 96, "blocks": 3}],
    "gla": [{}, {"heads": 2, "expand_k": 1.0, "expand_v": 2.0, "gate_rank": 3}],
    "gmu": [{"source": name} for name in ("ema", "mamba2", "gdn", "delta", "kda", "rglru", "gla")],
    "shared_attention": [{"source": "attention"}],
    "mlp": [{}, {"d_ff": 7}],
    "sequential": [{"first": "ema", "second": "sliding"}, {"first": "attention", "second": "mamba2"}],
    "parallel": [
        *({"recurrent": "ema", "gate": gate} for gate in ("scalar", "vector", "input_scalar", "input_vector")),
        *({"recurrent": "gdn", "gate": "block", "block_choice": part} for part in ("attention", "recurrent")),
    ],
    "fused": [
        *({"combine": combine} for combine in ("map", "sum", "mean_of_norms")),
        {"recurrent": "gdn", "combine": "sum"},
    ],
}
CASES = [(name, params) for name, variants in VARIANTS.items() for params in variants]


def case_spec(name: str, params: dict, **top) -> dict:
    before = f"{params['source']}, " if "source" in params else ""
    return resolve({"vocab_size": 17, "layers": f"{before}{name}, {name}", "mixers": {name: params}, **top})


def build_case(name: str, params: dict, device: str, **top):
    spec = case_spec(name, params, **top)
    with torch.device(device):
        return spec, build(spec, kernels={name: "plain" for name in OPERATIONS if not name.startswith("short_conv")})


def test_every_mixer_of_the_catalogue_is_a_case():
    assert list(VARIANTS) == list(MIXERS)


@pytest.mark.parametrize(("name", "params"), CASES)
def test_parameters_are_the_built_models(name, params):
    for top in ({}, {"d_ff": 0, "tie": False}, {"d_model": 96, "head": {"kind": "linear", "size": 5}}):
        spec, model = build_case(name, params, "meta", **top)
        assert formula.parameters(spec) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "params"), CASES)
def test_state_bytes_are_the_real_states(name, params):
    spec, model = build_case(name, params, "meta")
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)):
        for length in (1, 3, 40, 300):
            state = model.init_state(1, length, device="meta", dtype=dtype)
            assert formula.state_bytes(spec, length, dtype_bytes=size) == state_bytes(state)


PRODUCTS = {"mamba2": 2, "gla": 2, "gdn": 3, "delta": 3, "kda": 3}
"""Products with the matrix state a token; the loop writes by an elementwise outer product and reads by the others."""


@pytest.mark.parametrize(("name", "params"), CASES)
def test_flops_are_the_products_that_run(name, params):
    """Counted by torch in a real forward pass: matrix products, convolutions, reads of matrix states."""
    spec, model = build_case(name, params, "cpu")
    length = 9
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.long))
    counted = {str(op): flops / length for op, flops in counter.get_flop_counts()["Global"].items()}
    expected = formula.cost(spec, length)
    maps = ("aten.mm", "aten.addmm", *["aten.bmm"] * ("rglru" in (name, params.get("source"))))
    assert sum(counted.get(op, 0) for op in maps) == pytest.approx(expected.projections)
    assert counted.get("aten.convolution", 0) == pytest.approx(expected.convolution)
    if name in PRODUCTS:
        share = (PRODUCTS[name] - 1) / PRODUCTS[name]
        assert counted["aten.bmm"] == pytest.approx(share * expected.recurrence)


@given(length=st.integers(1, 200), window=st.none() | st.integers(1, 250))
def test_mean_keys_is_the_mean_of_what_is_seen(length, window):
    seen = [min(t, window or t) for t in range(1, length + 1)]
    assert mean_keys(length, window) == pytest.approx(sum(seen) / length)


@pytest.mark.parametrize("scale", ["180M", "440M", "1.5B"])
@pytest.mark.parametrize("model", [name for name in AMOR_MODELS if not name.startswith("Amor")])
def test_published_models_built_on_meta(model, scale):
    spec = published_spec(model, scale)
    with torch.device("meta"):
        built = build(spec)
    assert formula.parameters(spec) == sum(p.numel() for p in built.parameters())
    for length in (3072, 131072):
        state = built.init_state(1, length, device="meta", dtype=torch.bfloat16)
        assert formula.state_bytes(spec, length, dtype_bytes=2) == state_bytes(state)


BOOK = {"[ema*3, sliding]*6": 12_601_344, "[ema*7, sliding]*3": 6_312_960}


@pytest.mark.parametrize("layers", BOOK)
def test_proposition_14_2_with_allocated_buffers(layers):
    """The hybrids' buffers exist and are written to their end; the book, proposition 14.2 (n = 24, d = w = 1024)."""
    mixers = {"sliding": {"window": 1024}}
    spec = resolve({"vocab_size": 2, "layers": layers, "d_model": 1024, "d_ff": 0, "mixers": mixers})
    with torch.device("meta"):
        model = build(spec)
    state = model.init_state(1, 65536, device="cpu", dtype=torch.float32)
    tensors = [tensor for layer in state["layers"] for tensor in layer.values() if isinstance(tensor, torch.Tensor)]
    assert sum(tensor.fill_(1.0).sum(dtype=torch.float64).item() for tensor in tensors) == BOOK[layers]
    assert state_bytes(state) == 4 * BOOK[layers] == formula.state_bytes(spec, 65536)


def test_full_attention_of_proposition_14_2_on_meta():
    spec = resolve({"vocab_size": 2, "layers": "attention*24", "d_model": 1024, "d_ff": 0})
    with torch.device("meta"):
        state = build(spec).init_state(1, 65536, device="meta", dtype=torch.float32)
    assert state_bytes(state) == 4 * 3_221_225_472 == formula.state_bytes(spec, 65536)


def test_plug_ins_have_no_formula():
    for spec in (
        {"kind": "model:pkg.mod:Name", "vocab_size": 3},
        {"vocab_size": 3, "layers": "attention, mixer:pkg.mod:Name"},
        {"vocab_size": 3, "layers": "fla:GatedLinearAttention"},
    ):
        with pytest.raises(formula.NoFormula, match="has no formula; count the built model"):
            formula.parameters(spec)
        assert formula.row("mine", spec)["parameters"] is None


def test_bad_arguments_are_one_line():
    spec = resolve({"vocab_size": 3, "layers": "rglru"})
    with pytest.raises(formula.NoFormula, match="nothing for mixer 'rglru'; nearest: 'exact'"):
        formula.forward_flops(spec, 8, rule="published")
    with pytest.raises(ValueError, match="rule: unknown 'exakt'; nearest: 'exact'"):
        formula.forward_flops(spec, 8, rule="exakt")
    with pytest.raises(ValueError, match="length: 0 is below 1"):
        formula.state_bytes(spec, 0)


MATCHED = ("gdn*4", "mamba2*4", "[gdn*3, sliding]", "rglru*4", "gla*4", "kda*4", "delta*4", "sliding*4")


@pytest.mark.parametrize("by", ["parameters", "state_bytes", "forward_flops"])
@pytest.mark.parametrize("layers", MATCHED)
def test_matching_is_the_nearest_setting(layers, by):
    """No other value of a single dial comes nearer, and the result is a resolved spec with the value that it states."""
    target = resolve({"vocab_size": 12, "layers": "attention*4"})
    found = formula.matched({"vocab_size": 12, "layers": layers}, target, by, 512)
    assert resolve(found.spec) == found.spec == formula.match({"vocab_size": 12, "layers": layers}, target, by, 512)
    assert found.value == measured(found.spec, by)
    assert found.target == measured(target, by)
    assert found.residual == found.value / found.target - 1
    assert abs(found.residual) < 0.005
    if by != "state_bytes":
        assert set(found.dials) <= {"d_ff"}
        others = ({**found.spec, "d_ff": d_ff} for d_ff in range(1, 2 * found.spec["d_ff"]))
        assert abs(found.value - found.target) == min(abs(measured(s, by) - found.target) for s in others)


def measured(spec: dict, by: str) -> float:
    if by == "parameters":
        return formula.parameters(spec)
    return formula.state_bytes(spec, 512) if by == "state_bytes" else formula.forward_flops(spec, 512)


def test_matching_oneself_changes_nothing():
    spec = resolve({"vocab_size": 12, "layers": "gdn*2"})
    for by in ("parameters", "state_bytes", "forward_flops"):
        assert formula.matched(spec, spec, by, 64) == (spec, by, measured_at(spec, by), measured_at(spec, by), {})


def measured_at(spec: dict, by: str) -> float:
    return formula.parameters(spec) if by == "parameters" else getattr(formula, by)(spec, 64)


def test_what_cannot_be_reached_leaves_a_stated_residual():
    small, large = (resolve({"vocab_size": 12, "layers": "attention", "d_model": d}) for d in (16, 256))
    found = formula.matched(large, small, "parameters", 64)
    assert found.spec["d_ff"] == 1
    assert found.residual > 1
    oryx = formula.matched({"kind": "oryx", "vocab_size": 12}, small, "state_bytes", 64)
    assert oryx.dials == {"head_dim": 2}
    assert math.isfinite(oryx.residual)


def test_matching_says_what_it_lacks():
    attention = resolve({"vocab_size": 12, "layers": "attention"})
    with pytest.raises(SpecError, match="no layer has a state of its own size"):
        formula.match(attention, resolve({"vocab_size": 12, "layers": "gdn"}), "state_bytes", 64)
    with pytest.raises(SpecError, match="has no MLP"):
        formula.match({**attention, "d_ff": 0}, attention, "parameters", 64)
    with pytest.raises(SpecError, match="match: unknown 'params'; nearest: 'parameters'"):
        formula.match(attention, attention, "params", 64)
