"""A prefill of no tokens: the state as it was, and logits of none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

from architectures import build
from architectures.amor_attention import Skips

V, B, T = 7, 2, 9
SPECS = {
    "stack": {"layers": ["attention", "sliding", "gdn", "mamba2", "fused"]},
    "serial amor": {"kind": "amor", "layers": ["gdn", "gdn"], "blocks": 1, "placement": "serial", "at": [1]},
    "amor": {"kind": "amor", "layers": ["mamba2", "mamba2"], "blocks": 2},
    "oryx": {"kind": "oryx", "mixer": "gdn", "layers": 2},
    "linear head": {"layers": ["gdn"], "head": {"kind": "linear", "size": 3}},
}


@pytest.fixture(params=SPECS)
def spec(request):
    return {"vocab_size": V, "d_model": 16, **SPECS[request.param]}


def leaves(state):
    """Tensors and numbers of a decoding state, those of AMOR's skips too."""
    return pytree.tree_leaves([state, vars(state["skips"]) if "skips" in state else {}])


def same(one, other):
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b or isinstance(a, Skips)
        for a, b in zip(leaves(one), leaves(other), strict=True)
    )


@pytest.mark.parametrize("position", [0, T - 1])
@torch.no_grad()
def test_no_tokens_leave_the_state_as_it_is(spec, position):
    torch.manual_seed(0)
    model, tokens = build(spec).double(), torch.randint(V, (B, T))
    state = model.init_state(B, T)
    if position:
        _, state = model.prefill(tokens[:, :position], state)
    before = copy.deepcopy(state)
    logits, state = model.prefill(tokens[:, :0], state, logits="all")
    width = spec.get("head", {}).get("size", V)
    assert (logits.shape, logits.dtype) == ((B, 0, width), torch.float64)
    assert same(state, before)
    with pytest.raises(ValueError, match="tokens: none, and logits='last' needs one; nearest: logits='all'"):
        model.prefill(tokens[:, :0], state)
    assert same(state, before)
    rest, _ = model.prefill(tokens[:, position:], state, logits="all")
    torch.testing.assert_close(rest, model(tokens).logits[:, position:], rtol=1e-9, atol=1e-9)
