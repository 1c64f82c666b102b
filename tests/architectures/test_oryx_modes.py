"""What the mode changes and what it does not: single modes, causality, memories, gradients, both computations."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from architectures import build, parameter_groups
from architectures.accounting.oryx_mixing import attention_output
from architectures.context import Context
from architectures.oryx_modes import MOST_SEGMENTS, Modes
from architectures.oryx_spec import MIXERS

V, T, B = 11, 37, 4
ATTENTION, LINEAR = 0, 1


def model_of(seed=0, **spec):
    torch.manual_seed(seed)
    spec = {"kind": "oryx", "vocab_size": V, "d_model": 16, "head_dim": 8, "layers": 3, "init_std": 0.3, **spec}
    return build(spec).double()


def drawn(seed=0, shape=(B, T)):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, shape, generator=generator)
    return tokens, torch.randint(2, shape, generator=generator)


def logits(model, tokens, path="auto", **control):
    model.path = path
    with torch.no_grad():
        return model(tokens, control=control).logits


@pytest.mark.parametrize("path", ["dense", "sparse", "auto"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mode_tensor_of_one_mixer_is_that_mixers_path_exactly(mixer, path):
    model = model_of(mixer=mixer)
    tokens, mode = drawn()
    for value, name in ((ATTENTION, "attention"), (LINEAR, "linear")):
        single = model_of(mixer=mixer, modes=f"{name}*3")
        assert torch.equal(logits(model, tokens, path, mode=torch.full_like(mode, value)), logits(single, tokens))
    assert torch.equal(logits(model, tokens), logits(model, tokens, mode=torch.zeros_like(mode)))


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_two_modes_differ_and_a_mixture_is_neither(mixer):
    model = model_of(mixer=mixer)
    tokens, mode = drawn()
    found = [logits(model, tokens, mode=m) for m in (mode * 0, mode * 0 + 1, mode)]
    for one, other in itertools.combinations(found, 2):
        assert (one - other).abs().max() > 1e-2


@pytest.mark.parametrize("mixer", MIXERS)
def test_later_modes_never_change_earlier_logits(mixer):
    model = model_of(mixer=mixer)
    tokens, mode = drawn()
    before = {path: logits(model, tokens, path, mode=mode) for path in ("dense", "sparse")}
    for t in (0, 1, 15, 16, 30):
        changed = mode.clone()
        changed[:, t + 1 :] = 1 - changed[:, t + 1 :]
        after = logits(model, tokens, "dense", mode=changed)
        assert torch.equal(after[:, : t + 1], before["dense"][:, : t + 1])
        assert (after[:, t + 1] - before["dense"][:, t + 1]).abs().max() > 1e-3
        after = logits(model, tokens, "sparse", mode=changed)
        torch.testing.assert_close(after[:, : t + 1], before["sparse"][:, : t + 1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("mixer", MIXERS)
def test_within_a_layer_memories_do_not_depend_on_modes_across_layers_they_do(mixer):
    """The first layer's input is the embedding, so its cache and its state are the same whoever wrote the outputs; the
    second layer reads what the first one wrote, so both of its memories differ."""
    model = model_of(mixer=mixer, layers=2)
    tokens, mode = drawn()
    states = []
    for control in (mode, 1 - mode):
        _, state = model.prefill(tokens, model.init_state(B, T), control={"mode": control})
        states.append(state["layers"])
    (first, second), (first_other, second_other) = states
    for name in ("k", "v", "memory", "conv"):
        assert torch.equal(first[name], first_other[name])
        assert (second[name] - second_other[name]).abs().max() > 1e-4


def gradients(model, tokens, mode, path):
    model.path = path
    model.zero_grad()
    output = model(tokens, control={"mode": mode}).logits
    output.backward(torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(1)))
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize("path", ["dense", "sparse"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_reach_the_query_projections_that_are_used(mixer, path):
    model = model_of(mixer=mixer, layers=1)
    tokens, mode = drawn()
    for control, reached in ((mode, (True, True)), (mode * 0, (True, False)), (mode * 0 + 1, (False, True))):
        found = gradients(model, tokens, control, path)
        used = tuple(bool(found[f"blocks.0.mixer.{q}_query.weight"].any()) for q in ("attention", "linear"))
        assert used == reached
        assert found["blocks.0.mixer.kv.weight"].any()


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(
    "spec", [{}, {"queries": "shared"}, {"rope": "both"}, {"attention_l2": "both"}, {"gate": "none"}]
)
def test_dense_and_sparse_computation_agree(mixer, spec):
    """Outputs and gradients, with rows of one mode throughout, chunks, and a change at every token."""
    model = model_of(mixer=mixer, layers=2, **spec)
    tokens, mode = drawn()
    mode[0], mode[1] = ATTENTION, LINEAR
    mode[2] = torch.arange(T) // 5 % 2
    torch.testing.assert_close(
        logits(model, tokens, "dense", mode=mode), logits(model, tokens, "sparse", mode=mode), atol=1e-11, rtol=0
    )
    dense, sparse = (gradients(model, tokens, mode, path) for path in ("dense", "sparse"))
    for name, value in dense.items():
        torch.testing.assert_close(sparse[name], value, atol=1e-9, rtol=1e-9)


class TestSaving:
    """Attention for the attended tokens only, counted."""

    def metrics(self, mode, path, layers=2, **spec):
        model = model_of(layers=layers, **spec)
        model.path = path
        return model(torch.zeros_like(mode), control={"mode": mode}).extras["metrics"]

    def test_counts_are_of_causal_pairs(self):
        mode = torch.ones(1, 12, dtype=torch.int64)
        mode[0, 3:5] = mode[0, 9] = ATTENTION
        assert self.metrics(mode, "sparse")["attention_pairs"] == (4 + 5 + 10) / (12 * 13 / 2)
        assert self.metrics(mode, "dense")["attention_pairs"] == 1
        assert float(self.metrics(mode, "dense")["attention_fraction"]) == pytest.approx(3 / 12)

    def test_the_next_tokens_of_a_sequence_attend_to_those_before_too(self):
        model, (tokens, _) = model_of(layers=2), drawn(shape=(1, 12))
        model.path = "sparse"
        mode = torch.tensor([[LINEAR, LINEAR, LINEAR, ATTENTION]])
        state = model.init_state(1, 12)
        model.advance(tokens[:, :8], state, Context(control={}, head=model.head))
        context = Context(control={"mode": mode}, head=model.head)
        model.advance(tokens[:, 8:], state, context)
        assert context.extras["metrics"]["attention_pairs"] == 12 / (9 + 10 + 11 + 12)

    def test_single_modes(self):
        mode = torch.zeros(2, 9, dtype=torch.int64)
        assert self.metrics(mode, "auto") == {"attention_fraction": 1.0, "attention_pairs": 1.0}
        assert self.metrics(mode + 1, "auto") == {"attention_fraction": 0.0, "attention_pairs": 0.0}
        mixed = self.metrics(mode + 1, "auto", layers=4, modes="follow*3, attention")
        assert mixed == {"attention_fraction": 0.25, "attention_pairs": 0.25}

    def test_mean_over_all_chunk_assignments_is_the_papers_term(self):
        """(1 - delta) T (T + 1) (Dk + Dv) FLOPs in expectation, appendix C: all 2^4 assignments, weighted."""
        length, chunk, linear = 32, 8, 0.75
        rows = torch.tensor(list(itertools.product((ATTENTION, LINEAR), repeat=4)))
        weights = torch.where(rows == LINEAR, linear, 1 - linear).double().prod(1)
        mode = rows.repeat_interleave(chunk, dim=1)
        tokens = torch.zeros_like(mode)
        pairs = [
            Modes(["follow"], {"mode": row[None]}, token[None], "sparse").plans[0].pairs(1, length, 0)
            for row, token in zip(mode, tokens, strict=True)
        ]
        flops = 2 * (weights * torch.tensor(pairs)).sum() * (16 + 16)
        assert float(flops) == pytest.approx(attention_output(length, 16, 16, linear), rel=1e-12)

    def test_products_are_really_saved(self):
        """Counted by torch: less than dense, and each attended token's query projection saved too."""
        model = model_of(mixer="gdn", layers=1)
        tokens = torch.zeros(2, 64, dtype=torch.int64)
        mode = torch.ones_like(tokens)
        mode[0, 16:32] = ATTENTION
        counted = {}
        for path in ("dense", "sparse"):
            model.path = path
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(tokens, control={"mode": mode})
            counted[path] = counter.get_total_flops()
        query = 2 * 16 * 16 * (128 - 16)
        scores_and_values = 2 * 2 * 16 * (2 * 64 * 64 - 16 * 32)
        assert counted["dense"] - counted["sparse"] == query + scores_and_values

    def test_auto_is_dense_for_very_many_segments(self):
        tokens = torch.zeros(1, 2 * MOST_SEGMENTS, dtype=torch.int64)
        mode = torch.arange(2 * MOST_SEGMENTS)[None] % 2
        assert Modes(["follow"], {"mode": mode}, tokens, "auto").plans[0].segments is None
        assert len(Modes(["follow"], {"mode": mode}, tokens, "sparse").plans[0].segments) == MOST_SEGMENTS


class TestPerLayer:
    """`mode_L` for one layer, and layers whose mode the spec fixes."""

    def test_a_layer_of_its_own(self):
        model = model_of()
        tokens, mode = drawn()
        other = 1 - mode
        same = logits(model, tokens, mode=mode, mode_0=mode, mode_2=mode)
        assert torch.equal(same, logits(model, tokens, mode=mode))
        changed = logits(model, tokens, mode=mode, mode_1=other)
        assert (changed - same).abs().max() > 1e-3
        assert torch.equal(changed, logits(model, tokens, mode_0=mode, mode_1=other, mode_2=mode))

    def test_a_fixed_layer(self):
        model, fixed = model_of(), model_of(modes="follow, linear, follow")
        tokens, mode = drawn()
        expected = logits(model, tokens, mode=mode, mode_1=torch.ones_like(mode))
        assert torch.equal(logits(fixed, tokens, mode=mode), expected)
        with pytest.raises(ValueError, match=r"control: unknown 'mode_1'; nearest: 'mode_2'|nearest: 'mode_0'"):
            logits(fixed, tokens, mode=mode, mode_1=mode)


@pytest.mark.parametrize("mixer", MIXERS)
def test_off_the_cpu_no_value_is_read_and_no_shape_depends_on_data(mixer, monkeypatch):
    """On the meta device there are no values: reading a mode, or counting attended tokens, would raise."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: nullcontext())  # which meta does not have
    tokens, mode = (x.to("meta") for x in drawn())
    with torch.device("meta"):
        model = build({"kind": "oryx", "mixer": mixer, "vocab_size": V, "d_model": 16, "layers": 2})
    output = model(tokens, control={"mode": mode})
    output.logits.sum().backward()
    assert output.extras["metrics"]["attention_pairs"] == 1
    assert model.blocks[0].mixer.attention_query.weight.grad.shape == (16, 16)
    state = model.init_state(B, T)
    _, state = model.prefill(tokens[:, :5], state, control={"mode": mode[:, :5]})
    logits, _ = model.step(tokens[:, 5], state, control={"mode": mode[:, 5]})
    assert logits.shape == (B, V)
    model.path = "sparse"
    with pytest.raises(Exception, match="meta"):
        model(tokens, control={"mode": mode})


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({"mod": torch.zeros(B, T, dtype=torch.int64)}, "control: unknown 'mod'; nearest: 'mode'"),
        ({"mode_3": torch.zeros(B, T, dtype=torch.int64)}, "control: unknown 'mode_3'"),
        ({"mode": torch.zeros(B, T - 1, dtype=torch.int64)}, r"control.mode: shape (4, 36), the tokens have (4, 37)"),
        ({"mode": torch.zeros(B, T)}, "control.mode: torch.float32; nearest: torch.int64"),
        ({"mode": torch.full((B, T), 2)}, "control.mode: 2 is no mode; nearest: 1"),
    ],
)
def test_bad_controls_are_one_line(control, message):
    tokens, _ = drawn()
    with pytest.raises(ValueError) as caught:
        logits(model_of(), tokens, **control)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mixer", MIXERS)
def test_recurrences_keep_their_initialisation_and_are_not_decayed(mixer):
    model = model_of(mixer=mixer)
    decayed = {id(p) for group in parameter_groups(model, 0.1) if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if last in ("A_log", "dt_bias", "D") or "norm" in name:
            assert id(parameter) not in decayed
        elif parameter.ndim >= 2:
            assert id(parameter) in decayed
        low = {"mamba2": 1.0, "kda": 1.0}.get(mixer, 0.0)
        if last == "A_log":
            assert ((parameter.exp() >= low) & (parameter.exp() <= 16.001)).all()
        if last == "dt_bias" and mixer != "kda":
            steps = torch.nn.functional.softplus(parameter)
            assert ((steps > 0.99e-3) & (steps < 0.101)).all()
        if last == "D":
            assert (parameter == 1).all()


def test_a_linear_head():
    model = model_of(head={"kind": "linear", "size": 5})
    tokens, mode = drawn()
    assert logits(model, tokens, mode=mode).shape == (B, T, 5)
