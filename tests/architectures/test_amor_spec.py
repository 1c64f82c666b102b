"""AMOR's spec: the paper's defaults and placements, its ablations, and strictness."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from architectures import SpecError, resolve
from architectures.amor_spec import ABLATIONS, TRIGGERS, backbone

BASE = {"kind": "amor", "vocab_size": 11, "layers": "gdn*6", "d_model": 32}


def test_the_defaults_are_the_papers():
    spec = resolve(BASE)
    gate = {"kind": "entropy", "kappa": 0.2, "momentum": 0.99, "mu_init": 0.3, "sigma_init": 0.1}
    assert spec["trigger"] == gate
    assert (spec["blocks"], spec["layout"], spec["placement"], spec["at"]) == (3, "asymmetric", "post", [])
    assert (spec["alpha"], spec["alpha_init"], spec["alpha_floor"]) == ("channel", 0.0, -1.0)
    assert (spec["output_init"], spec["mlp"], spec["rope_base"]) == ("zero", False, 10000.0)
    wide = resolve({**BASE, "d_model": 768, "trigger": "router"})
    assert (wide["head_dim"], wide["trigger"]["hidden"]) == (64, 512)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_every_trigger_resolves_to_a_fixed_point_of_plain_data(trigger):
    spec = resolve({**BASE, "trigger": trigger})
    assert resolve(spec) == spec == resolve({**BASE, "trigger": {"kind": trigger}})
    assert json.loads(json.dumps(spec)) == spec
    assert list(spec["trigger"]) == ["kind", *TRIGGERS[trigger]]


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_resolves_and_differs(name):
    spec = resolve({**BASE, **ABLATIONS[name]})
    assert spec != resolve(BASE)
    assert resolve(spec) == spec


@pytest.mark.parametrize(
    ("depth", "blocks", "placement", "at"),
    [
        (12, 2, "serial", [4, 8]),
        (24, 3, "serial", [6, 12, 18]),
        (12, 3, "fused", [0, 6, 11]),
        (24, 3, "fused", [0, 12, 23]),
        (4, 1, "fused", [0]),
        (3, 3, "serial", [0, 1, 2]),
    ],
)
def test_placement_follows_the_papers_layers(depth, blocks, placement, at):
    """Table 5 and section 4 of the paper."""
    assert resolve({**BASE, "layers": f"gdn*{depth}", "blocks": blocks, "placement": placement})["at"] == at


@pytest.mark.parametrize("depth", range(1, 30))
def test_default_places_are_distinct_layers_in_order(depth):
    for placement in ("serial", "fused"):
        for blocks in range(1, depth + 1):
            at = resolve({**BASE, "layers": f"ema*{depth}", "blocks": blocks, "placement": placement})["at"]
            assert at == sorted(set(at))
            assert len(at) == blocks
            assert 0 <= at[0] <= at[-1] < depth


def test_the_backbone_is_a_stacks_spec():
    spec = resolve({**BASE, "trigger": "margin", "mlp": True})
    assert backbone(spec) == resolve({key: BASE[key] for key in ("vocab_size", "layers", "d_model")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"triger": "entropy"}, "unknown 'triger'; nearest: 'trigger'"),
        ({"trigger": "entropi"}, "trigger: unknown 'entropi'; nearest: 'entropy'"),
        ({"trigger": {"kind": "position", "rate": 0.4}}, "trigger: unknown 'rate'"),
        ({"trigger": {"kind": 3}}, "trigger.kind: unknown 3"),
        ({"trigger": {"kind": "position", "every": 2, "offset": 2}}, "trigger.offset: 2 is not below trigger.every"),
        ({"trigger": {"kind": "random", "rate": 1.5}}, "trigger.rate: 1.5 is above 1.0; nearest: 1.0"),
        ({"trigger": 4}, "trigger: 4 is neither a name nor a mapping"),
        ({"layout": "symetric"}, "layout: unknown 'symetric'; nearest: 'symmetric'"),
        ({"placement": "serial", "layout": "asymmetric"}, "nearest: 'symmetric'"),
        ({"placement": "serial", "blocks": 7}, "blocks: 7 is above the 6 layers"),
        ({"placement": "fused", "mlp": True}, "mlp: True is for blocks after the backbone"),
        ({"placement": "fused", "blocks": 2, "at": [0, 6]}, "at: 6 is no layer of 6; nearest: 5"),
        ({"placement": "fused", "blocks": 2, "at": [3, 1]}, "at: [3, 1] is not 2 different layers in order"),
        ({"at": [0]}, "at: [0] is for serial or fused placement"),
        ({"mlp": True, "d_ff": 0}, "mlp: True needs the backbone's width"),
        ({"head_dim": 5}, "head_dim: 5 does not divide d_model 32; nearest: 4"),
        ({"head_dim": 1}, "head_dim: 1 is odd"),
        ({"d_model": 0}, "d_model: 0 is below 1"),
        ({"layers": "gdnn"}, "layers: unknown 'gdnn'; nearest: 'gdn'"),
        ({"head": {"kind": "linear", "size": 3}}, "trigger.kind: 'entropy' needs next-token logits"),
        ({"head": {"kind": "tokens", "size": 3}}, "head.size: 3 does not fit"),
    ],
)
def test_bad_specs_are_one_line(change, message):
    with pytest.raises(SpecError) as caught:
        resolve({**BASE, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_resolving_does_not_import_torch():
    code = (
        "import sys; from architectures import resolve; "
        "resolve({'kind': 'amor', 'vocab_size': 3, 'layers': 'gdn'}); resolve({'kind': 'oryx', 'vocab_size': 3}); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_replaced_layer_cannot_be_one_whose_stream_is_read():
    base = {**BASE, "layers": "gdn, gmu, gdn", "mixers": {"gmu": {"source": "gdn"}}, "placement": "serial", "blocks": 1}
    with pytest.raises(SpecError, match=r"at: layer 0 publishes what layer 1 \(gmu\) reads; nearest: \[1\]"):
        resolve({**base, "at": [0]})
    assert resolve({**base, "at": [2]})["at"] == [2]
    assert resolve({**base, "at": [1]})["at"] == [1]
