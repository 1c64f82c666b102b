"""A prefill with rows of recurrent layers over fixed tensors is the model's own prefill, for the published models."""

from __future__ import annotations

import copy

import pytest
import torch
from decoding_models import MODELS, V, cases, control_of, model_of

from architectures.decoding import Decoder, Prefiller, prefill
from architectures.errors import SpecError
from architectures.mixers.base import state_tensors

LAYERS = {
    "Transformer": [],
    "Mamba2": [(0, 3)],
    "Gated DeltaNet": [(0, 3)],
    "Mamba2 Serial Hybrid": [(0, 1), (2, 3)],
    "Mamba2 Fused Hybrid": [(1, 2)],
    "Amor-Mamba2": [(0, 2)],
    "Oryx-TM": [],
}


def prompt_of(batch: int, length: int) -> torch.Tensor:
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_recurrent_layers_are_found(name: str) -> None:
    made = Prefiller(model_of(name), 2, 5, least=1)
    assert [(run.first, run.stop) for run in made.runs] == LAYERS[name]
    assert made.replayed == 0  # no graph without a GPU
    assert [(run.first, run.stop) for run in Prefiller(model_of(name), 2, 5).runs] == [
        (first, stop) for first, stop in LAYERS[name] if stop - first > 1
    ]


@pytest.mark.parametrize(("name", "mode"), cases())
@pytest.mark.parametrize("length", [3, 10, 23])
def test_logits_and_state_are_the_models_own(name: str, mode: str, length: int) -> None:
    model, prompt = model_of(name), prompt_of(2, length)
    control = control_of(mode, 2, length)
    made = Prefiller(model, 2, 5, least=1)
    expected, wanted = prefill(model, prompt, model.init_state(2, 40), chunk=5, control=control)
    for _ in range(2):  # nothing of one prompt is left in the next
        found, state = made(prompt, model.init_state(2, 40), control=control)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert state["position"] == wanted["position"] == length
        for one, other in zip(state_tensors(state["layers"]), state_tensors(wanted["layers"]), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        if name.startswith("Amor"):
            assert state["skips"].read() == wanted["skips"].read()


@pytest.mark.parametrize("name", ["Mamba2", "Gated DeltaNet Serial Hybrid", "Amor-Gated DeltaNet"])
def test_a_prompt_may_continue_and_be_decoded(name: str) -> None:
    model, prompt = model_of(name), prompt_of(1, 24)
    made = Prefiller(model, 1, 6, least=1)
    expected, wanted = prefill(model, prompt, model.init_state(1, 60), chunk=6)
    state = model.init_state(1, 60)
    _, state = made(prompt[:, :13], state)
    made(prompt_of(1, 12), model.init_state(1, 60))  # another prompt in between
    found, state = made(prompt[:, 13:], state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    first = found.argmax(-1)
    tokens = Decoder(model, copy.deepcopy(wanted)).generate(first, 16)
    assert torch.equal(Decoder(model, state).generate(first, 16), tokens)


def test_what_it_refuses() -> None:
    model = model_of("Mamba2")
    made = Prefiller(model, 2, 5)
    with pytest.raises(ValueError, match="3 sequences"):
        made(prompt_of(3, 10), model.init_state(3, 10))
    with pytest.raises(ValueError, match="max_length"):
        made(prompt_of(2, 10), model.init_state(2, 9))
    with pytest.raises(ValueError, match="chunk: 0"):
        Prefiller(model, 2, 0)
    with pytest.raises(SpecError, match="Linear"):
        Prefiller(torch.nn.Linear(2, 2))


def test_every_model_is_in_the_cases() -> None:
    assert {name for name, _ in cases()} == set(MODELS)
