"""The head that tells every token from the end of a sequence."""

from __future__ import annotations

import pytest
import torch

from architectures import build
from architectures.accounting.count import forward_flops, parameters
from architectures.errors import SpecError
from architectures.position_head import position_code
from architectures.spec import resolve

SPEC = {"layers": "[attention]*1", "d_model": 16, "vocab_size": 7, "head": {"kind": "position_mlp", "hidden": 12}}


def test_it_sees_the_last_position_alone():
    torch.manual_seed(0)
    model = build(resolve(SPEC)).double()
    tokens = torch.randint(7, (2, 9))
    output = model(tokens, features=True)
    assert output.logits.shape == (2, 9, 7)
    last = output.extras["features"][-1][:, -1]
    head = model.position_head
    for place in range(9):
        code = position_code(9, 16)[place].double()
        hidden = torch.nn.functional.gelu(head.inner(last + code))
        torch.testing.assert_close(output.logits[:, place], head.outer(hidden))
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 3] = mask[1, 8] = True
    torch.testing.assert_close(model(tokens, positions=mask).logits, output.logits[mask])


def test_positions_have_codes_of_their_own():
    for width in (1, 5, 16):
        code = position_code(40, width)
        assert code.shape == (40, width)
        assert len(torch.unique(code, dim=0)) == 40


def test_counts_hold_against_the_built_model():
    spec = resolve(SPEC)
    built = sum(parameter.numel() for parameter in build(spec).parameters())
    assert parameters(spec) == built
    plain = resolve({**SPEC, "head": {"kind": "tokens"}})
    head = 2 * 16 * 12 + 2 * 12 * 7
    assert forward_flops(spec, 9) - forward_flops(plain, 9) == head - 2 * 16 * 7


def test_it_has_no_logits_token_by_token_and_belongs_to_a_stack():
    model = build(resolve(SPEC))
    with pytest.raises(NotImplementedError, match="reads a whole sequence"):
        model.step(torch.tensor([1]), model.init_state(1, 4))
    with pytest.raises(SpecError, match="does not fit kind 'oryx'; nearest: kind 'stack'"):
        resolve({"kind": "oryx", "mixer": "gdn", "layers": 1, "d_model": 16, "vocab_size": 7, "head": SPEC["head"]})
    with pytest.raises(SpecError, match="size"):
        resolve({**SPEC, "head": {"kind": "position_mlp", "size": 3}})
