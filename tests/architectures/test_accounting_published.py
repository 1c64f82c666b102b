"""The papers' printed counts, caches and FLOPs, from specs alone."""

from __future__ import annotations

import json
import math
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from architectures import SpecError
from architectures.accounting import (
    active_parameters,
    cost,
    forward_flops,
    parameters,
    scale_rows,
    state_bytes,
)
from architectures.accounting.oryx import shared_fraction, stored_parameters
from architectures.published import AMOR_LENGTH, AMOR_MODELS, AMOR_SCALES, ORYX_MODELS, ORYX_SCALES, ROUTER, models
from architectures.published import published_spec as spec

PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_counts.json").read_text(encoding="utf-8"))
AMOR, ORYX = PUBLISHED["amor"], PUBLISHED["oryx"]


def printed(value: float, digits: int) -> float:
    """As a paper rounds: halves up."""
    return float(Decimal(repr(value)).quantize(Decimal(10) ** -digits, ROUND_HALF_UP))


@pytest.mark.parametrize("model", AMOR_MODELS)
@pytest.mark.parametrize("scale", AMOR_SCALES)
def test_table_5_parameters(model, scale):
    assert printed(parameters(spec(model, scale)) / 1e6, 1) == AMOR["table_5_parameters_millions"][model][scale]


@pytest.mark.parametrize(("scale", "count"), [("180M", 1185027), ("440M", 1579011), ("1.5B", 3154947)])
@pytest.mark.parametrize("model", ["Amor-Mamba2", "Amor-Gated DeltaNet"])
def test_routers_add_their_parameters(model, scale, count):
    assert parameters(spec(model + ROUTER, scale)) - parameters(spec(model, scale)) == count
    assert printed(count / 1e6, 2) == AMOR["appendix_G1_router_parameters_millions"][scale]


@pytest.mark.parametrize("model", AMOR_MODELS)
def test_table_14_caches_and_states(model):
    """Two-byte caches; Gated DeltaNet's memory in float32. The one value that differs is named."""
    row = AMOR["table_14_state_and_cache_1.5B"][model]
    parts = cost(spec(model, "1.5B"), 1)
    state_mb = (2 * (parts.conv + parts.recurrent) + 4 * parts.recurrent_wide) / 1e6
    if model == "Gated DeltaNet Serial Hybrid":
        assert row["state_mb"] == 17.54
        assert state_mb == pytest.approx(17.547264)
        assert state_mb == pytest.approx(20.054016 * 21 / 24)
        assert state_mb - row["state_mb"] == pytest.approx(0.007, abs=5e-4)
    else:
        assert printed(state_mb, 2) == (row["state_mb"] or 0.0)
    for context, gigabytes in (row["kv_gb"] or {}).items():
        length = int(context[:-1]) * 1024
        cache = 2 * cost(spec(model, "1.5B"), length).cache
        assert printed(cache / 1e9, 2) == gigabytes
        assert state_bytes(spec(model, "1.5B"), length, dtype_bytes=2) == pytest.approx(cache + 1e6 * state_mb)
    if row["kv_gb"] is None:
        assert parts.cache == 0


@pytest.mark.parametrize("model", AMOR_MODELS)
def test_table_9_flops_with_the_published_rule(model):
    flops = forward_flops(spec(model, "1.5B"), AMOR_LENGTH, rule="published")
    assert printed(flops / 1e9, 2) == AMOR["table_9_forward_gflops_per_token_1.5B_3072"][model]


@pytest.mark.parametrize(("scale", "model", "gate", "gflops"), AMOR["table_15_forward_gflops_per_token_3072"])
def test_table_15_flops_with_the_published_rule(scale, model, gate, gflops):
    name = model + ROUTER if gate == "router" else model
    flops = forward_flops(spec(name, scale), AMOR_LENGTH, rule="published")
    assert printed(flops / 1e9, 2) == gflops


def test_twenty_values_are_printed():
    names = ("table_9_forward_gflops_per_token_1.5B_3072", "table_15_forward_gflops_per_token_3072")
    assert sum(len(AMOR[name]) for name in names) == 20


def test_the_exact_rule_differs_from_the_published_one_by_named_parts():
    """The rules differ by the causal half, softmax, Mamba-2's output projection and state, and convolutions."""
    d, length, layers = 2048, AMOR_LENGTH, 24
    inner, heads = 2 * d, 2 * d // 64
    exact, printed_rule = (
        {name: forward_flops(spec(name, "1.5B"), length, rule) for name in AMOR_MODELS}
        for rule in ("exact", "published")
    )
    causal = 4 * d * length - 4 * d * (length + 1) / 2
    softmax = 5 * (d // 64) * length
    assert exact["Transformer"] - printed_rule["Transformer"] == -layers * (causal + softmax)
    left_out = 2 * inner * d + 2 * inner * 128 + 2 * 4 * (inner + 256)
    assert exact["Mamba2"] - printed_rule["Mamba2"] == layers * left_out
    assert heads == 64
    memory, convolution = 6 * 24 * 64 * 128, 2 * 4 * 6144
    assert exact["Gated DeltaNet"] - printed_rule["Gated DeltaNet"] == layers * (memory + convolution)


@pytest.mark.parametrize("scale", ORYX_SCALES)
def test_oryx_sizes(scale):
    for model in ORYX_MODELS:
        active, stored = (count(spec(model, scale), "published") for count in (active_parameters, stored_parameters))
        assert printed(active / 1e6, 1) == ORYX["active_millions"][scale]
        assert printed(stored / 1e6, 1) == ORYX["stored_millions"][scale]
        exact = active_parameters(spec(model, scale))
        assert 0 < exact / active - 1 < 0.002
        d, layers = ORYX_SCALES[scale]["d_model"], ORYX_SCALES[scale]["layers"]
        assert stored_parameters(spec(model, scale)) - exact == layers * d * d == stored - active


@pytest.mark.parametrize("scale", ORYX_SCALES)
@pytest.mark.parametrize("model", ORYX_MODELS)
def test_oryx_shares_more_than_nine_tenths(model, scale):
    """12/13 of the active weights as the paper counts, 12/14 of the stored ones; a little less with every weight."""
    assert shared_fraction(spec(model, scale), rule="published") == 12 / 13
    assert shared_fraction(spec(model, scale), of="stored", rule="published") == 12 / 14
    assert 0.9 < shared_fraction(spec(model, scale)) < 12 / 13
    assert math.isclose(shared_fraction(spec(model, scale)), 12 / 13, rel_tol=2e-3)


def test_names_and_scales_are_strict():
    with pytest.raises(SpecError, match="model: unknown 'Mamba'; nearest: 'Mamba2'"):
        spec("Mamba", "1.5B")
    with pytest.raises(SpecError, match=r"scale: unknown '1\.5'; nearest: '1\.5B'"):
        spec("Mamba2", "1.5")
    with pytest.raises(SpecError, match="model: unknown 'Mamba2'"):
        spec("Mamba2", "1.4B")


@pytest.mark.parametrize("scale", [*AMOR_SCALES, *ORYX_SCALES])
def test_a_row_for_every_model_of_a_scale(scale):
    table = scale_rows(scale)
    assert [row["model"] for row in table] == models(scale)
    for row in table:
        assert all(value is not None for value in row.values())
        assert row["parameters"] == parameters(spec(row["model"], scale))
