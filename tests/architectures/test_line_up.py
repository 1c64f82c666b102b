"""The shipped architectures: small, described, with the ratios of the designs that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from architectures import receptive_field, resolve

ENTRIES = yaml.safe_load((Path(__file__).parents[2] / "tasks.yaml").read_text())["architectures"]


def spec_of(name, **change):
    entry = {key: value for key, value in ENTRIES[name].items() if key != "description"}
    return {**entry, "vocab_size": 11, **change}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_resolve_at_a_small_width_and_say_what_they_are(name):
    spec = resolve(spec_of(name))
    assert resolve(spec) == spec
    assert spec["d_model"] <= 64
    assert len(ENTRIES[name]["description"]) > 15


LINE_UP = {
    "griffin": ("sliding", 1 / 3),
    "samba": ("sliding", 1 / 2),
    "jamba": ("attention", 1 / 8),
    "kimi_linear": ("attention", 1 / 4),
}
SCALED = {"bamba": 3 / 32, "nemotron_h": 10 / 118}


@pytest.mark.parametrize("name", LINE_UP)
def test_ratios_of_the_line_up(name):
    """The book's table of section 14.5: the fraction of layers that are attention."""
    mixer, fraction = LINE_UP[name]
    layers = resolve(spec_of(name))["layers"]
    assert layers.count(mixer) / len(layers) == fraction


@pytest.mark.parametrize("name", SCALED)
def test_ratios_that_were_scaled(name):
    """One attention layer in as few layers as keep the published fraction to two hundredths."""
    layers = resolve(spec_of(name))["layers"]
    assert layers.count("attention") == 1
    assert abs(1 / len(layers) - SCALED[name]) < 0.02


def test_sambay_has_one_cache_and_reads_it():
    layers = resolve(spec_of("sambay"))["layers"]
    assert layers.count("attention") == 1
    after = layers[layers.index("attention") + 1 :]
    assert set(after) == {"gmu", "shared_attention"}


def test_only_windows_have_a_receptive_field():
    bounded = {name for name in ENTRIES if receptive_field(spec_of(name)) is not None}
    specs = {name: resolve(spec_of(name)) for name in ENTRIES}
    stacks = {name: spec for name, spec in specs.items() if spec["kind"] == "stack"}
    kinds = {name: {spec["mixers"][layer]["kind"] for layer in spec["layers"]} for name, spec in stacks.items()}
    assert bounded == {name for name, found in kinds.items() if found <= {"sliding", "mlp", "gmu"}}
    assert receptive_field(spec_of("sliding")) == 2 * (4 - 1) + 1
