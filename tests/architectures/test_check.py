"""`check` passes what keeps the contract and catches what does not; plug-ins in patterns and on their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from architectures import SpecError, build, resolve
from architectures.catalogue import MIXERS
from architectures.check import check, claimed_growth, passed
from architectures.fla_layers import FLA_LAYERS

NEEDED = {
    "gmu": {"source": "mamba2"},
    "sequential": {"first": "ema", "second": "sliding"},
    "parallel": {"recurrent": "ema"},
}
GOOD = """
    import torch
    from torch import nn

    class Mean(nn.Module):
        def __init__(self, d_model, scale=1.0):
            super().__init__()
            self.out = nn.Linear(d_model, d_model)
            nn.init.constant_(self.out.weight, 0.125)
            self.scale = scale

        def forward(self, x):
            count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
            return self.out(self.scale * x.cumsum(1) / count)

    class Decodable(Mean):
        def init_state(self, batch_size, max_length, *, device, dtype):
            return {"sum": torch.zeros(batch_size, self.out.in_features, device=device, dtype=dtype), "count": 0}

        def prefill(self, x, state):
            total = state["sum"][:, None] + x.cumsum(1)
            count = state["count"] + torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
            after = {"sum": total[:, -1], "count": state["count"] + x.shape[1]}
            return self.out(self.scale * total / count), after

    class Steered(Mean):
        def forward(self, x, context):
            push = context.control.get("push")
            return super().forward(x) if push is None else super().forward(x) + push[..., None]

    class Leak(Mean):
        def forward(self, x):
            return super().forward(x.roll(-1, 1))

    class Forgetful(Decodable):
        def prefill(self, x, state):
            return super().prefill(x, {"sum": 0.9 * state["sum"], "count": state["count"]})

    class Hoarder(Decodable):
        def init_state(self, batch_size, max_length, **kwargs):
            state = super().init_state(batch_size, max_length, **kwargs)
            return {**state, "pairs": torch.zeros(max_length, max_length // 64)}

    class Noisy(Mean):
        def forward(self, x):
            return super().forward(x) + torch.randn_like(x)

    class Broken(Mean):
        def forward(self, x):
            return super().forward(x) / (x.shape[1] - 63)

    class Narrow(Mean):
        def forward(self, x):
            return super().forward(x)[..., :-1]

    class Model(nn.Module):
        def __init__(self, vocab_size, width=8):
            super().__init__()
            self.table = nn.Embedding(vocab_size, width)
            self.out = nn.Linear(width, vocab_size)

        def forward(self, tokens, *, positions=None, control=None):
            y = self.out(self.table(tokens))
            return y if positions is None else y[positions]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mixers_of_mine.py"
    path.write_text(textwrap.dedent(GOOD))
    return path


def outcome(results):
    return {result.name: result.status for result in results}


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_passes(name):
    layers = {"gmu": "mamba2, ", "shared_attention": "attention, "}.get(name, "") + name
    mixers = {name: NEEDED[name]} if name in NEEDED else {}
    results = check({"vocab_size": 7, "d_model": 32, "layers": layers, "mixers": mixers}, length=70)
    assert all(result.status == "pass" for result in results), results


def test_plug_in_mixers(file):
    spec = {"vocab_size": 7, "d_model": 16, "layers": f"mixer:{file}:Decodable, ema"}
    assert set(outcome(check(spec)).values()) == {"pass"}
    results = check({**spec, "layers": f"mixer:{file}:Mean"})
    assert passed(results)
    assert outcome(results)["decoding"] == outcome(results)["state growth"] == "skip"
    detail = next(result.detail for result in results if result.name == "decoding")
    assert "has no init_state and prefill: it can be trained and scored, but not decoded" in detail


@pytest.mark.parametrize(
    ("name", "item", "message"),
    [
        ("Leak", "causality", "move earlier logits by"),
        ("Forgetful", "decoding", "differ from the full pass by"),
        ("Hoarder", "state growth", "state grows by"),
        ("Noisy", "determinism", "the same weights give logits that differ"),
        ("Broken", "gradients", "not finite at T = 63"),
        ("Narrow", "shapes", "it must keep the shape"),
    ],
)
def test_what_breaks_the_contract_is_caught(file, name, item, message):
    results = check({"vocab_size": 7, "d_model": 16, "layers": f"mixer:{file}:{name}*2"})
    assert not passed(results)
    found = next(result for result in results if result.name == item)
    assert found.status == "fail"
    assert message in found.detail


def test_plug_ins_keep_their_initialisation_and_take_parameters(file):
    name = f"mixer:{file}:Mean"
    model = build({"vocab_size": 7, "d_model": 16, "layers": "mine", "mixers": {"mine": {"kind": name, "scale": 2.0}}})
    module = model.blocks[0].mixer.module
    assert module.scale == 2.0
    assert torch.equal(module.out.weight, torch.full((16, 16), 0.125))


def test_plug_in_models(file):
    results = check({"kind": f"model:{file}:Model", "vocab_size": 7, "params": {"width": 4}})
    assert passed(results)
    assert outcome(results)["decoding"] == "skip"
    with pytest.raises(SpecError, match=r"params: .* does not take"):
        build({"kind": f"model:{file}:Model", "vocab_size": 7, "params": {"wdith": 4}})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("mixer:no_such_package.at_all:Name", "cannot be imported"),
        ("mixer:no/such/file.py:Name", "no file no/such/file.py"),
        ("mixer:torch.nn:Lineer", "'torch.nn' has no 'Lineer'"),
        ("mixer:torch.nn:Linear", "does not take d_model=16"),
        ("mixer:Name", "write for instance 'mixer:my_pkg.mixers:MyMixer'"),
        ("mixer:fractions:Fraction", "not a torch.nn.Module"),
    ],
)
def test_plug_ins_that_cannot_be_had_are_one_line(layer, message):
    with pytest.raises(SpecError) as caught:
        build({"vocab_size": 7, "d_model": 16, "layers": layer})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plug_in_folder_hides_nothing(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "__init__.py").write_text("mine = True\n")
    (tmp_path / "architectures.py").write_text("raise RuntimeError\n")
    (tmp_path / "mine.py").write_text(textwrap.dedent(GOOD))
    code = (
        "import sys; from architectures import build; "
        "build({'vocab_size': 3, 'd_model': 8, 'layers': sys.argv[1]}); "
        "import figures, architectures; assert not hasattr(figures, 'mine'); assert architectures.__path__"
    )
    subprocess.run([sys.executable, "-c", code, f"mixer:{tmp_path}/mine.py:Mean"], check=True)


def test_fla_layers_are_listed_and_say_what_they_need():
    assert len(FLA_LAYERS) == 42
    spec = resolve({"vocab_size": 7, "layers": "fla:GatedLinearAttention*2"})
    assert resolve(spec) == spec
    with pytest.raises(SpecError, match="unknown 'fla:GatedLinearAtention'; nearest: 'fla:GatedLinearAttention'"):
        resolve({"vocab_size": 7, "layers": "fla:GatedLinearAtention"})
    if not torch.cuda.is_available():
        with pytest.raises(
            SpecError, match="'fla:GatedLinearAttention' needs a CUDA device, and there is none"
        ) as caught:
            build(spec)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "mixers", "growth"),
    [
        ("mlp", {}, "none"),
        ("ema, gdn", {}, "constant"),
        ("ema, sliding", {}, "window"),
        ("sliding, attention", {}, "linear"),
        ("both", {"both": {"kind": "sequential", "first": "ema", "second": "attention"}}, "linear"),
        (
            "one",
            {"one": {"kind": "parallel", "recurrent": "ema", "gate": "block", "block_choice": "recurrent"}},
            "constant",
        ),
        ("ema, mixer:a.b:C", {}, None),
    ],
)
def test_claimed_growth(layers, mixers, growth):
    assert claimed_growth(resolve({"vocab_size": 7, "layers": layers, "mixers": mixers})) == growth


def test_a_plug_in_with_a_context_gets_it(file):
    model = build({"vocab_size": 7, "d_model": 16, "layers": f"mixer:{file}:Steered"})
    tokens = torch.zeros(2, 5, dtype=torch.long)
    still, pushed = model(tokens).logits, model(tokens, control={"push": torch.eye(2, 5)}).logits
    moved = (still - pushed).abs().amax(-1) > 0
    assert torch.equal(moved, torch.eye(2, 5, dtype=torch.bool))


def test_fla_layers_become_mixers(monkeypatch):
    """With a stand-in for the package: arguments, the first of several outputs, and its own initialisation."""
    from architectures import plugins

    seen = {}

    class GatedLinearAttention(torch.nn.Module):
        def __init__(self, mode="chunk", hidden_size=1024, num_heads=4, layer_idx=None):
            super().__init__()
            seen.update(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx)
            self.o_proj = torch.nn.Linear(hidden_size, hidden_size)
            torch.nn.init.constant_(self.o_proj.weight, 0.5)

        def forward(self, hidden_states, attention_mask=None, past_key_values=None):
            return self.o_proj(hidden_states), None, past_key_values

    layers = type(sys)("fla.layers")
    layers.GatedLinearAttention = GatedLinearAttention
    monkeypatch.setitem(sys.modules, "fla", type(sys)("fla"))
    monkeypatch.setitem(sys.modules, "fla.layers", layers)
    monkeypatch.setattr(plugins, "require", lambda *args, **kwargs: None)
    mixers = {"g": {"kind": "fla:GatedLinearAttention", "num_heads": 2}}
    model = build({"vocab_size": 7, "d_model": 16, "layers": "g", "mixers": mixers})
    assert seen == {"hidden_size": 16, "num_heads": 2, "layer_idx": 0}
    assert (model.blocks[0].mixer.module.layer.o_proj.weight == 0.5).all()
    assert model(torch.zeros(2, 5, dtype=torch.long)).logits.shape == (2, 5, 7)
    with pytest.raises(NotImplementedError, match="fla:GatedLinearAttention has no init_state and prefill"):
        model.init_state(1, 4)
    with pytest.raises(SpecError, match="does not take"):
        build({"vocab_size": 7, "layers": "g", "mixers": {"g": {"kind": "fla:GatedLinearAttention", "head_dims": 2}}})
