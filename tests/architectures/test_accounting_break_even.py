"""The break-even inequalities of AMOR and Oryx, and the book's decoding budget."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import resolve
from architectures.accounting import cost, forward_flops, state_bytes
from architectures.accounting.break_even import break_even_length, lm_head_flops, router_flops, saves, skipped_flops
from architectures.accounting.models import amor_attention, gate_cost
from architectures.accounting.oryx_mixing import (
    attention_output,
    linear_output,
    linear_state_update,
    mixing_flops,
)
from architectures.accounting.oryx_mixing import break_even_length as oryx_break_even
from architectures.published import ROUTER, published_spec

PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_counts.json").read_text(encoding="utf-8"))
F5 = PUBLISHED["amor"]["appendix_F5"]
V, D, F = F5["vocab_size"], F5["d_model"], F5["firing_rate"]


def test_amors_printed_thresholds():
    """Equations 10 to 12 of the paper."""
    head = lm_head_flops(V, D)
    assert head == F5["lm_head_flops"]
    assert router_flops(D, F5["hidden"]) == F5["router_flops"]
    assert round(head / router_flops(D), -1) == F5["ratio"]
    assert break_even_length(F, head, D) == pytest.approx(F5["tokens_scores"], rel=1e-12)
    assert break_even_length(F, head, D, projections=True) == pytest.approx(F5["tokens_with_projections"], rel=1e-12)
    assert break_even_length(F, head, D) == pytest.approx(V / (2 * (1 - F)), rel=1e-12)
    assert break_even_length(1.0, head, D) == math.inf


@given(
    f=st.floats(0, 0.99), v=st.integers(2, 10**6), d=st.integers(1, 10**4), projections=st.booleans(), r=st.booleans()
)
def test_the_threshold_is_where_the_inequality_turns(f, v, d, projections, r):
    gate = router_flops(d) if r else lm_head_flops(v, d)
    at = break_even_length(f, gate, d, projections=projections)
    assert saves(at * 1.001 + 1, f, gate, d, projections=projections)
    if at > 1:
        assert not saves(at * 0.999, f, gate, d, projections=projections)


def test_the_inequality_is_the_accounts():
    """A model's own FLOPs, at the firing rate and always on, differ by what the inequality weighs."""
    native, router = (published_spec("Amor-Mamba2" + end, "1.5B") for end in ("", ROUTER))
    always = resolve({**native, "trigger": "always"})
    for spec, gate in ((native, lm_head_flops(V, D)), (router, router_flops(D))):
        assert gate_cost(spec["trigger"], spec).projections == gate
        for length in (1, 3072, 200_001):
            saved = forward_flops(always, length) - forward_flops(spec, length, firing_rate=F)
            skipped = (1 - F) * skipped_flops((length + 1) / 2, D, projections=True)
            assert saved == pytest.approx(3 * (skipped - gate), rel=1e-9)
    assert amor_attention(native, 100, 0.0).attention == 0


def test_oryxs_three_parts_and_threshold():
    """Appendix C of the paper: the threshold drops 1 / C and 1 / T terms, which the three parts keep."""
    given_ = PUBLISHED["oryx"]["break_even"]
    delta, chunk = given_["delta"], given_["chunk"]
    assert math.ceil(oryx_break_even(delta, chunk)) == given_["tokens"]
    assert oryx_break_even(0.0) == math.inf
    total, plain = 2048, attention_output(2048, 128, 128, delta=0.0)
    assert linear_state_update(total, 128, 128) == 2 * total * 128 * 128 + 2 * total * 128
    assert linear_output(total, 128, 128) == 0.75 * (4 * total * 128 * 128 + 2 * total * 128 * 128)
    assert plain == total * (total + 1) * 256
    assert mixing_flops(total, 128, 128) < plain
    turns = next(t for t in range(1, 5000) if mixing_flops(t, 128, 128) < attention_output(t, 128, 128, 0.0))
    assert turns == pytest.approx(oryx_break_even(), rel=0.005)


@given(delta=st.floats(0.01, 1), chunk=st.sampled_from([16, 64, 128, 512]))
def test_oryxs_threshold_solves_its_equation(delta, chunk):
    t = oryx_break_even(delta, chunk)
    assert (1 - delta) + (1 + 3 * delta) * chunk / t == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("mixer", ["mamba2", "gdn", "delta", "kda", "gla"])
def test_oryx_flops_by_mode(mixer):
    spec = resolve({"kind": "oryx", "vocab_size": 100, "mixer": mixer, "layers": 3})
    length = 1000
    attention, linear = (cost(spec, length, linear_fraction=share) for share in (0.0, 1.0))
    assert linear.attention == 0 < attention.attention
    assert attention.recurrence < linear.recurrence
    assert attention.projections == linear.projections
    mixed = forward_flops(spec, length, linear_fraction=0.25)
    assert mixed == pytest.approx(0.75 * attention.flops + 0.25 * linear.flops)
    fixed = resolve({**spec, "modes": "attention, linear, follow"})
    expected = (forward_flops(spec, length, linear_fraction=share) / 3 for share in (0.0, 1.0, 0.25))
    assert forward_flops(fixed, length, linear_fraction=0.25) == pytest.approx(sum(expected))


BOOK = PUBLISHED["book"]["proposition_14_2"]
HYBRIDS = {"3_to_1": "[ema*3, sliding]*6", "7_to_1": "[ema*7, sliding]*3"}


def book_spec(layers: str, d_model: int, window: int) -> dict:
    mixers = {"sliding": {"window": window}} if "sliding" in layers else {}
    return resolve({"vocab_size": 2, "layers": layers, "d_model": d_model, "d_ff": 0, "mixers": mixers})


@pytest.mark.parametrize("name", HYBRIDS)
def test_proposition_14_2_by_formula(name):
    context, d, w = BOOK["context"], BOOK["d_model"], BOOK["window"]
    hybrid = state_bytes(book_spec(HYBRIDS[name], d, w), context) // 4
    full = state_bytes(book_spec(f"attention*{BOOK['blocks']}", d, w), context) // 4
    assert hybrid == BOOK[f"floats_{name}"]
    assert full == BOOK["floats_full"]
    assert round(full / hybrid, 1) == BOOK[f"ratio_{name}"]


def test_exercise_14_1():
    """n_a 2 w d + (n - n_a) d floats against 2 n d L, which meet at L* = (n_a 2 w + n - n_a) / (2 n)."""
    exercise = PUBLISHED["book"]["exercise_14_1"]
    n, d, w, context = (exercise[key] for key in ("blocks", "d_model", "window", "context"))
    spec, full = book_spec("[ema*7, sliding]*4", d, w), book_spec(f"attention*{n}", d, w)
    hybrid = state_bytes(spec, context) // 4
    assert hybrid == 4 * 2 * 2048 * 2048 + 28 * 2048 == 33_611_776
    cache = state_bytes(full, context) // 4
    assert cache == 17_179_869_184
    assert cache / hybrid == pytest.approx(511.1, abs=0.05)
    meets = hybrid / (2 * n * d)
    assert meets == 256.4375
    assert state_bytes(full, 256) < 4 * hybrid < state_bytes(full, 257)
