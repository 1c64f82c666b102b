"""Oryx's spec: what TM and TG differ in, the 5 : 8 rule, the ablations, and strictness."""

from __future__ import annotations

import json

import pytest

from architectures import SpecError, resolve
from architectures.oryx_spec import ABLATIONS, MIXERS

BASE = {"kind": "oryx", "vocab_size": 11}


def test_tm_and_tg_differ_as_the_paper_says():
    """Section 3 and appendix B of the paper."""
    tm, tg = (resolve({**BASE, "mixer": mixer, "d_model": 768}) for mixer in ("mamba2", "gdn"))
    keys = ("activation", "query_activation", "rope", "norm", "gate")
    assert [tm[key] for key in keys] == ["identity", "identity", "both", "full", "before_norm"]
    assert [tg[key] for key in keys] == ["silu", "silu", "attention", "grouped", "after_norm"]
    for spec in (tm, tg):
        assert (spec["head_dim"], spec["conv"], spec["queries"], spec["attention_l2"]) == (128, 4, "own", "none")


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("name", [None, *ABLATIONS])
def test_every_mixer_and_ablation_resolves_to_a_fixed_point(mixer, name):
    spec = resolve({**BASE, "mixer": mixer, **(ABLATIONS[name] if name else {})})
    assert resolve(spec) == spec
    assert json.loads(json.dumps(spec)) == spec


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_changes_tm_or_tg(name):
    specs = [resolve({**BASE, "mixer": mixer}) for mixer in ("mamba2", "gdn")]
    assert any(resolve({**BASE, "mixer": spec["mixer"], **ABLATIONS[name]}) != spec for spec in specs)


@pytest.mark.parametrize("d_model", [8, 64, 128, 768, 1024, 1536, 2048])
@pytest.mark.parametrize(("gate", "mixer_matrices"), [("after_norm", 5), ("none", 4)])
def test_active_mixer_and_mlp_make_thirteen_squares(d_model, gate, mixer_matrices):
    """5 : 8 with the gate; the gate's D^2 goes to the MLP without it (section 4 and table 4)."""
    d_ff = resolve({**BASE, "d_model": d_model, "gate": gate})["d_ff"]
    residual = mixer_matrices * d_model**2 + 3 * d_model * d_ff - 13 * d_model**2
    assert abs(residual) <= 3 * d_model * 4
    assert d_ff % 8 == 0 or d_model < 9


def test_a_layer_may_keep_one_mode():
    spec = resolve({**BASE, "layers": 4, "modes": "[linear*3, attention]"})
    assert spec["modes"] == ["linear", "linear", "linear", "attention"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixer": "mamba"}, "mixer: unknown 'mamba'; nearest: 'mamba2'"),
        ({"mixer": "attention"}, "mixer: unknown 'attention'"),
        ({"querys": "own"}, "unknown 'querys'; nearest: 'queries'"),
        ({"negative_eigenvalues": True}, "negative_eigenvalues: not a field of mixer 'mamba2'; nearest: 'gdn'"),
        ({"mixer": "gdn", "skip": True}, "skip: not a field of mixer 'gdn'; nearest: 'mamba2'"),
        ({"layers": 3, "modes": "follow*4"}, "modes: 4 for 3 layers; nearest: 'follow*3'"),
        ({"modes": "folow*4"}, "modes: unknown 'folow'; nearest: 'follow'"),
        ({"layers": "mamba2*3"}, "layers: 'mamba2*3' is not an integer"),
        ({"head_dim": 24}, "head_dim: 24 does not divide d_model 64; nearest: 16"),
        ({"head_dim": 1}, "head_dim: 1 is odd"),
        ({"rope": "linear"}, "rope: unknown 'linear'"),
        ({"head": {"kind": "linear"}}, "head.size: None does not fit"),
        ({"conv": -1}, "conv: -1 is below 0; nearest: 0"),
    ],
)
def test_bad_specs_are_one_line(change, message):
    with pytest.raises(SpecError) as caught:
        resolve({**BASE, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
