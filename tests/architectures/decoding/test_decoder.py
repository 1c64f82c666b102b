"""The decoder's tokens and logits are those of the full forward pass, for the published models in small."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoding_models import MODELS, V, cases, control_of, model_of, spec_of

from architectures import accounting, build
from architectures.decoding import Decoder, Dialled, even_pattern, prefill
from architectures.errors import SpecError
from architectures.mixers.base import state_tensors

B, PROMPT, COUNT = 2, 19, 64


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: torch.Tensor, count: int, mode: str) -> torch.Tensor:
    """The tokens that follow, each from a full forward pass over everything before it."""
    tokens = prompt
    for _ in range(count + 1):
        logits = model(tokens, control=control_of(mode, *tokens.shape)).logits[:, -1]
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens[:, prompt.shape[1] :]


def prefilled(model: torch.nn.Module, prompt: torch.Tensor, room: int, mode: str, chunk: int = 7):
    state = model.init_state(len(prompt), room)
    return prefill(model, prompt, state, chunk=chunk, control=control_of(mode, *prompt.shape))


@pytest.mark.parametrize(("name", "mode"), cases())
def test_tokens_are_those_of_the_full_forward_pass(name: str, mode: str) -> None:
    model = model_of(name)
    prompt = torch.randint(V, (B, PROMPT), generator=torch.Generator().manual_seed(1))
    expected = greedy(model, prompt, COUNT, mode)
    logits, state = prefilled(model, prompt, PROMPT + COUNT, mode)
    first = logits.argmax(-1)
    decoder = Decoder(model, state, mode=mode)
    found = torch.cat([first[:, None], decoder.generate(first, COUNT)], dim=1)
    assert torch.equal(found, expected)
    assert len(expected.unique()) > 5
    if name.startswith("Amor"):
        assert all(0 < rate < 1 for rate in decoder.firing_rates(COUNT))


@pytest.mark.parametrize(("name", "mode"), cases())
def test_logits_are_those_of_the_models_own_steps(name: str, mode: str) -> None:
    model = model_of(name, seed=3)
    prompt = torch.randint(V, (3, PROMPT), generator=torch.Generator().manual_seed(2))
    _, state = prefilled(model, prompt, PROMPT + 5, mode)
    decoder = Decoder(model, copy.deepcopy(state), mode=mode)
    for token in torch.randint(V, (5, 3)):
        control = {key: value[:, 0] for key, value in control_of(mode, 3, 1).items()}
        with torch.no_grad():
            expected, state = model.step(token, state, control=control)
        torch.testing.assert_close(decoder.step(token), expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize(("name", "mode"), cases())
def test_half_precision_rounds_as_the_model_does(name: str, mode: str) -> None:
    model = model_of(name, torch.bfloat16, seed=4)
    prompt = torch.randint(V, (B, 8), generator=torch.Generator().manual_seed(5))
    _, state = prefilled(model, prompt, 12, mode)
    decoder = Decoder(model, copy.deepcopy(state), mode=mode)
    for token in torch.randint(V, (4, B)):
        control = {key: value[:, 0] for key, value in control_of(mode, B, 1).items()}
        with torch.no_grad():
            expected, state = model.step(token, state, control=control)
        found = decoder.step(token)
        assert (found - expected).float().norm() < 0.03 * expected.float().norm()


@pytest.mark.parametrize("name", MODELS)
def test_bytes_held_are_those_of_the_accounting(name: str) -> None:
    spec = spec_of(name)
    model = build(spec).bfloat16()
    _, state = prefilled(model, torch.randint(V, (B, 5)), 40, "attention")
    decoder = Decoder(model, state)
    assert decoder.state_bytes == B * accounting.state_bytes(spec, 40, 2)
    decoder.generate(torch.zeros(B, dtype=torch.int64), 3)
    assert decoder.state_bytes == B * accounting.state_bytes(spec, 40, 2)


def test_a_step_allocates_no_state() -> None:
    model = model_of("Amor-Mamba2")
    _, state = prefilled(model, torch.randint(V, (B, 5)), 40, "attention")
    decoder = Decoder(model, state)
    places = [tensor.data_ptr() for tensor in state_tensors([decoder.state["layers"], decoder.state["blocks"]])]
    decoder.generate(torch.zeros(B, dtype=torch.int64), 3)
    assert places == [tensor.data_ptr() for tensor in state_tensors([decoder.state["layers"], decoder.state["blocks"]])]


@pytest.mark.parametrize("name", ["Mamba2 Fused Hybrid", "Amor-Gated DeltaNet", "Oryx-TM"])
def test_a_released_state_goes_on_in_the_model(name: str) -> None:
    model = model_of(name)
    tokens = torch.randint(V, (B, 30), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        expected = model(tokens).logits[:, -1]
    for decoded in (1, 6):
        _, state = prefilled(model, tokens[:, :9], 30, "attention")
        decoder = Decoder(model, state)
        for token in tokens[:, 9 : 9 + decoded].T:
            decoder.step(token)
        state = decoder.release()
        assert state["position"] == 9 + decoded
        found, _ = prefill(model, tokens[:, 9 + decoded :], state, chunk=8)
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("rate", [0.0, 0.22, 0.4, 1.0])
def test_the_dial_sets_the_rate_in_prefill_and_decoding(rate: float) -> None:
    model = model_of("Amor-Mamba2", torch.float32)
    blocks = len(model.attentions)
    triggers = [
        Dialled(attention.trigger, even_pattern(rate, 120, B, number, blocks))
        for number, attention in enumerate(model.attentions)
    ]
    with model.triggered(triggers), torch.no_grad():
        prompt = torch.randint(V, (B, 50))
        found = model(prompt).extras["metrics"]["gate.rate"]
        assert abs(float(found) - rate) < 0.02
        _, state = prefilled(model, prompt, 120, "attention")
        decoder = Decoder(model, copy.deepcopy(state))
        token = torch.randint(V, (B,))
        expected, _ = model.step(token, state)
        torch.testing.assert_close(decoder.step(token), expected, atol=1e-5, rtol=0)
        decoder.reset_gates()
        decoder.generate(token, 64)
        assert all(abs(found - rate) <= 1 / 64 for found in decoder.firing_rates(64))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layers": "gla*2", "mixers": {"gla": {}}}, "GatedLinearAttention"),
        ({"kind": "amor", "layers": "mamba2*2", "trigger": "margin"}, "MarginTrigger"),
        ({"kind": "amor", "layers": "mamba2*2", "placement": "serial", "blocks": 1}, "GatedAttention"),
        ({"kind": "oryx", "mixer": "kda"}, "KimiDelta"),
        ({"kind": "oryx", "attention_l2": "key"}, "Oryx-TM"),
    ],
)
def test_what_has_no_step_is_named(changes: dict[str, Any], word: str) -> None:
    model = build({"vocab_size": V, "d_model": 16, **changes})
    with pytest.raises(SpecError, match=word):
        Decoder(model, model.init_state(1, 8))


def test_room_and_modes_are_checked() -> None:
    model = model_of("Oryx-TG")
    with pytest.raises(SpecError, match="nearest: 'attention'"):
        Decoder(model, model.init_state(1, 8), mode="fast")
    with pytest.raises(SpecError, match="backend"):
        Decoder(model, model.init_state(1, 8), backend="cuda")  # type: ignore[arg-type]
    decoder = Decoder(model, model.init_state(1, 8))
    with pytest.raises(ValueError, match="room for 8"):
        decoder.generate(torch.zeros(1, dtype=torch.int64), 9)
    with pytest.raises(ValueError, match="chunk"):
        prefill(model, torch.zeros(1, 4, dtype=torch.int64), model.init_state(1, 8), chunk=0)
