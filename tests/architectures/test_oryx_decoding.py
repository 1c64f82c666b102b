"""Oryx token by token: both memories advance, the mode may change at any token, and the logits are the full pass's."""

from __future__ import annotations

import pytest
import torch

from architectures import build
from architectures.oryx import Scheduled
from architectures.oryx_spec import ABLATIONS, MIXERS

V, T, B = 11, 61, 3


def model_of(seed=0, dtype=torch.float64, **spec):
    torch.manual_seed(seed)
    spec = {"kind": "oryx", "vocab_size": V, "d_model": 16, "head_dim": 8, "layers": 2, "init_std": 0.3, **spec}
    return build(spec).to(dtype)


def ten_switches(seed):
    """Modes `(B, T)` that change at ten random tokens, each sequence at its own."""
    generator = torch.Generator().manual_seed(seed)
    changes = torch.zeros(B, T, dtype=torch.int64)
    for row in changes:
        row[1 + torch.randperm(T - 1, generator=generator)[:10]] = 1
    mode = (changes.cumsum(1) + torch.arange(B)[:, None]) % 2
    assert (mode[:, 1:] != mode[:, :-1]).sum(1).eq(10).all()
    return torch.randint(V, (B, T), generator=generator), mode


@torch.no_grad()
def decoded(model, tokens, control, cuts):
    """Logits of all tokens: prefilled up to each cut, then single steps."""
    state = model.init_state(*tokens.shape)
    found = []
    for start, stop in zip([0, *cuts], cuts):
        part = {name: value[:, start:stop] for name, value in control.items()}
        values, state = model.prefill(tokens[:, start:stop], state, logits="all", control=part)
        found.append(values)
    for t in range(cuts[-1] if cuts else 0, tokens.shape[1]):
        part = {name: value[:, t] for name, value in control.items()}
        values, state = model.step(tokens[:, t], state, control=part)
        found.append(values[:, None])
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("path", ["dense", "sparse"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_prefill_and_steps_through_ten_switches(mixer, path):
    model = model_of(mixer=mixer)
    model.path = path
    for seed, cuts in ((0, [17]), (1, [5, 6, 40]), (2, [])):
        tokens, mode = ten_switches(seed)
        with torch.no_grad():
            expected = model(tokens, control={"mode": mode}).logits
        torch.testing.assert_close(decoded(model, tokens, {"mode": mode}, cuts), expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("mixer", ["mamba2", "gdn"])
def test_every_ablation_decodes(mixer, name):
    model = model_of(mixer=mixer, **ABLATIONS[name])
    tokens, mode = ten_switches(3)
    with torch.no_grad():
        expected = model(tokens, control={"mode": mode}).logits
    torch.testing.assert_close(decoded(model, tokens, {"mode": mode}, [20]), expected, atol=1e-11, rtol=0)


def test_in_single_precision():
    tokens, mode = ten_switches(4)
    for mixer in MIXERS:
        model = model_of(mixer=mixer, dtype=torch.float32)
        with torch.no_grad():
            expected = model(tokens, control={"mode": mode}).logits
        found = decoded(model, tokens, {"mode": mode}, [30])
        assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_mode_for_each_layer():
    model = model_of(mixer="gdn")
    tokens, mode = ten_switches(5)
    control = {"mode_0": mode, "mode_1": ten_switches(6)[1]}
    with torch.no_grad():
        expected = model(tokens, control=control).logits
    torch.testing.assert_close(decoded(model, tokens, control, [9]), expected, atol=1e-11, rtol=0)


def test_a_switch_counts_as_if_it_had_always_been_possible():
    """Decoding one mode to the end, or changing to it after a prefix in the other: the cache has the same keys in the
    first layer, so that attention sees all earlier tokens, the ones written by the recurrence included."""
    model = model_of(mixer="mamba2", layers=1)
    tokens, _ = ten_switches(7)
    late = torch.ones(B, T, dtype=torch.int64)
    late[:, 40:] = 0
    with torch.no_grad():
        switched = model(tokens, control={"mode": late}).logits
        attention = model(tokens, control={"mode": torch.zeros_like(late)}).logits
    torch.testing.assert_close(switched[:, 40:], attention[:, 40:], atol=1e-12, rtol=0)
    assert (switched[:, :40] - attention[:, :40]).abs().max() > 1e-2


def test_too_many_tokens_are_refused():
    model = model_of()
    with pytest.raises(ValueError, match="max_length"):
        model.prefill(torch.zeros(1, 5, dtype=torch.int64), model.init_state(1, 4))


def test_decoding_by_the_models_own_uncertainty():
    """A second, all-linear state decides before each step; the logits are the full pass's under those modes, and the
    modes are those that an all-linear full pass gives."""
    model = model_of(mixer="gdn")
    tokens, mode = ten_switches(8)
    with torch.no_grad():
        log_p = torch.log_softmax(model(tokens, control={"mode": torch.ones_like(mode)}).logits, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        threshold = float(entropy.median())
        state, monitor = model.init_state(B, T), model.init_state(B, T)
        modes, found = [], []
        for t in range(T):
            chosen, monitor = model.uncertain(tokens[:, t], monitor, threshold)
            logits, state = model.step(tokens[:, t], state, control={"mode": chosen})
            modes.append(chosen)
            found.append(logits)
        chosen = torch.stack(modes, dim=1)
        clear = (entropy - threshold).abs() > 1e-9
        assert torch.equal(chosen[clear], (entropy <= threshold).long()[clear])
        assert 0.3 < chosen.double().mean() < 0.7
        expected = model(tokens, control={"mode": chosen}).logits
    torch.testing.assert_close(torch.stack(found, dim=1), expected, atol=1e-11, rtol=0)


def test_a_schedule_by_position():
    model = model_of(mixer="mamba2")
    scheduled = Scheduled(model, torch.tensor([0, 1, 1, 0, 1]))
    tokens, _ = ten_switches(9)
    mode = torch.tensor([0, 1, 1, 0, 1]).repeat(13)[:T].expand(B, T)
    with torch.no_grad():
        expected = model(tokens, control={"mode": mode}).logits
        assert torch.equal(scheduled(tokens).logits, expected)
        logits, state = scheduled.prefill(tokens[:, :8], scheduled.init_state(B, T), logits="all")
        parts = [logits]
        for t in range(8, T):
            logits, state = scheduled.step(tokens[:, t], state)
            parts.append(logits[:, None])
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-11, rtol=0)
