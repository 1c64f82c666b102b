"""Specs: patterns, defaults, strictness, and that none of it needs torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from architectures import SpecError, resolve
from architectures.catalogue import MIXERS
from architectures.pattern import expand
from architectures.spec import canonical


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("attention", ["attention"]),
        ("[gdn*3, attention]*2", ["gdn", "gdn", "gdn", "attention"] * 2),
        ("[[a, b]*2, c*2]*1, d", ["a", "b", "a", "b", "c", "c", "d"]),
        ("mixer:my_pkg.mixers:Mine*2,fla:GLA", ["mixer:my_pkg.mixers:Mine"] * 2 + ["fla:GLA"]),
        (["gdn*2", ["attention"]], ["gdn", "gdn", "attention"]),
        ("a, b,", ["a", "b"]),
    ],
)
def test_pattern(pattern, layers):
    assert expand(pattern) == layers
    assert expand(layers) == layers


UNREADABLE = ["", "[]", "[a", "a]", "a**2", "a*0", "a*x", "*2", "a,,b", "a*2000", "[a*1024]*1024", 3, []]


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_unreadable_patterns_are_one_line(pattern):
    with pytest.raises(SpecError) as caught:
        expand(pattern)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("layers: ")


NEEDED = {
    "gmu": {"source": "mamba2"},
    "sequential": {"first": "ema", "second": "sliding"},
    "parallel": {"recurrent": "ema"},
}


@pytest.mark.parametrize("name", MIXERS)
def test_resolve_is_a_fixed_point_and_plain(name):
    layers = {"gmu": "mamba2, ", "shared_attention": "attention, "}.get(name, "") + name
    mixers = {name: NEEDED.get(name, {})}
    spec = resolve({"vocab_size": 5, "layers": layers, "mixers": mixers})
    assert resolve(spec) == spec
    assert json.loads(json.dumps(spec)) == spec
    assert canonical(spec) == canonical({"vocab_size": 5.0, "layers": spec["layers"], "mixers": mixers})
    assert list(spec["mixers"][name]) == ["kind", *MIXERS[name].fields]


def test_named_variants_of_one_mixer():
    mixers = {"local": {"kind": "sliding", "window": 8}, "far": {"kind": "sliding", "window": 64}}
    spec = resolve({"vocab_size": 3, "layers": "local, far", "mixers": mixers})
    assert [spec["mixers"][name]["window"] for name in spec["layers"]] == [8, 64]


LOOP = {"both": {"kind": "sequential", "first": "both", "second": "ema"}}
GATE = {"p": {"kind": "parallel", "recurrent": "ema", "gate": "vektor"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": "atention"}, "layers: unknown 'atention'; nearest: 'attention'"),
        ({"d_modle": 3}, "unknown 'd_modle'; nearest: 'd_model'"),
        ({"vocab_size": 0}, "vocab_size: 0 is below 1; nearest: 1"),
        ({"vocab_size": None}, "vocab_size: None is not an integer"),
        ({"d_model": 2.5}, "d_model: 2.5 is not an integer; nearest: 2"),
        ({"tie": 1}, "tie: 1 is not true or false"),
        ({"norm_eps": float("nan")}, "norm_eps: nan is not a finite number"),
        ({"kind": "stak"}, "kind: unknown 'stak'; nearest: 'stack'"),
        ({"mixers": {"gdn": {}}}, "mixers.gdn: no layer uses it"),
        ({"mixers": {"attention": {"window": 3}}}, "mixers.attention: unknown 'window'"),
        ({"mixers": {"attention": {"head_dim": 24}}}, "head_dim: 24 does not divide d_model 64; nearest: 16"),
        ({"mixers": {"attention": {"head_dim": 1}}}, "head_dim: 1 is odd"),
        ({"layers": "gmu"}, "mixers.gmu.source: missing"),
        ({"layers": "gmu, mamba2", "mixers": {"gmu": {"source": "mamba2"}}}, "mixers.gmu.source: unknown 'mamba2'"),
        ({"layers": "both", "mixers": LOOP}, "contains itself"),
        ({"head": {"kind": "linear"}}, "head.size: None"),
        ({"layers": "mamba2", "mixers": {"mamba2": {"head_dim": 48}}}, "expand * d_model = 128; nearest: 32"),
        ({"layers": "gdn", "mixers": {"gdn": {"expand_v": 0.3}}}, "mixers.gdn.expand_v: 0.3 gives"),
        ({"layers": "p", "mixers": GATE}, "nearest: 'vector'"),
        ({"layers": "fused", "mixers": {"fused": {"recurrent": "gdn"}}}, "mixers.fused.combine: 'map' needs attention"),
        ({"layers": "rglru", "mixers": {"rglru": {"blocks": 5}}}, "blocks: 5 does not divide width 64; nearest: 4"),
    ],
)
def test_bad_specs_name_key_value_and_choice(change, message):
    with pytest.raises(SpecError) as caught:
        resolve({"vocab_size": 7, "layers": "attention", **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_specs_do_not_import_torch():
    code = (
        "import sys, architectures, architectures.spec as s; "
        "s.resolve({'vocab_size': 3, 'layers': '[gdn*3, attention]*2'}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plug_in_model_keeps_plain_parameters():
    spec = resolve({"kind": "model:pkg.mod:Name", "vocab_size": 4, "params": {"width": 3}})
    assert spec == {"kind": "model:pkg.mod:Name", "vocab_size": 4, "params": {"width": 3}}
    with pytest.raises(SpecError, match="plain data"):
        resolve({"kind": "model:pkg.mod:Name", "vocab_size": 4, "params": {"width": object()}})


@pytest.mark.parametrize("kind", [{}, {"kind": "amor", "layers": "gdn"}, {"kind": "oryx", "mixer": "gdn"}])
def test_an_odd_width_is_not_answered_with_itself(kind):
    spec = {"vocab_size": 7, "d_model": 33, "layers": "attention", **kind}
    if spec.get("kind") == "oryx":
        del spec["layers"]
    with pytest.raises(SpecError, match="nearest: d_model 34"):
        resolve(spec)
