"""The cost of a whole model, part by part, from its resolved spec: stack, AMOR, Oryx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..amor_spec import NEEDS_HEAD
from .cost import Cost, NoFormula, linear, matrix_state, mean_keys, short_conv, swiglu, vector
from .mixers import mixer_cost

Spec = Mapping[str, Any]


def model_cost(spec: Spec, length: int, *, firing_rate: float, linear_fraction: float) -> Cost:
    """The cost of a model of any kind; raises `NoFormula` for a plug-in."""
    kind = spec["kind"]
    if kind == "stack":
        return stack_cost(spec, length)
    if kind == "amor":
        return amor_cost(spec, length, firing_rate)
    if kind == "oryx":
        return oryx_cost(spec, length, linear_fraction)
    raise NoFormula(f"kind: {kind!r} has no formula; count the built model")


def head_cost(spec: Spec) -> Cost:
    """Logits at one token; a tied head has no parameters of its own."""
    d, head = spec["d_model"], spec["head"]
    if head["kind"] == "linear":
        return linear(d, head["size"], bias=True)
    if head["kind"] == "position_mlp":
        return linear(d, head["hidden"], bias=True) + linear(head["hidden"], spec["vocab_size"], bias=True)
    full = linear(d, spec["vocab_size"])
    return full if not spec["tie"] else Cost(projections=full.projections)


def _ends(spec: Spec) -> Cost:
    """Embedding, final norm and head."""
    return vector(spec["vocab_size"] * spec["d_model"]) + vector(spec["d_model"]) + head_cost(spec)


def _mlps(spec: Spec, count: int) -> Cost:
    """`count` pre-norm SwiGLUs; nothing where d_ff is 0."""
    if not spec["d_ff"]:
        return Cost()
    return (vector(spec["d_model"]) + swiglu(spec["d_model"], spec["d_ff"])) * count


def stack_cost(spec: Spec, length: int) -> Cost:
    """Embedding, then blocks of pre-norm mixer and pre-norm MLP, final norm, head."""
    d = spec["d_model"]
    total = _ends(spec) + _mlps(spec, len(spec["layers"]))
    for name in spec["layers"]:
        total += vector(d) + mixer_cost(name, d, spec["mixers"], length)
    return total


def gate_cost(trigger: Mapping[str, Any], spec: Spec) -> Cost:
    """What deciding whether to fire costs one block, at one token."""
    d, kind = spec["d_model"], trigger["kind"]
    if kind in NEEDS_HEAD:
        return Cost(projections=head_cost(spec).projections)
    if kind in ("router", "random_router"):
        hidden = trigger["hidden"]
        return linear(d, hidden, bias=True) + linear(hidden, 1) + linear(d, 1) + vector(1)
    if kind == "input" and trigger["hidden"]:
        return linear(d, trigger["hidden"], bias=True) + linear(trigger["hidden"], 1, bias=True)
    if kind == "input":
        return linear(d, 1, bias=True)
    return Cost()


def amor_attention(spec: Spec, length: int, firing_rate: float) -> Cost:
    """One block's attention: keys and values at every token, the rest at the firing ones (sections 3.3 and 3.5)."""
    d = spec["d_model"]
    queries = linear(d, 2 * d)
    return (
        linear(d, 2 * d)
        + Cost(parameters=queries.parameters, projections=firing_rate * queries.projections)
        + Cost(cache=2 * d * length, attention=firing_rate * 4 * d * mean_keys(length))
        + vector(d if spec["alpha"] == "channel" else 0)
    )


def amor_cost(spec: Spec, length: int, firing_rate: float) -> Cost:
    """The backbone and its K blocks. After the backbone there are K more norms, in both layouts."""
    d, blocks = spec["d_model"], spec["blocks"]
    total = stack_cost(spec, length)
    if spec["placement"] == "serial":
        for layer in spec["at"]:
            total += mixer_cost(spec["layers"][layer], d, spec["mixers"], length) * -1
    block = amor_attention(spec, length, firing_rate) + gate_cost(spec["trigger"], spec)
    if spec["placement"] == "post":
        block += vector(d)
    total += block * blocks
    return total + _mlps(spec, blocks) if spec["mlp"] else total


def oryx_decay(spec: Spec) -> Cost:
    """What the recurrence alone has in one layer: decays, write strengths, skips; D channels in D / head_dim heads."""
    d, heads = spec["d_model"], spec["d_model"] // spec["head_dim"]
    kind = spec["mixer"]
    if kind == "mamba2":
        return linear(d, heads) + vector(heads * (3 if spec["skip"] else 2))
    if kind == "gdn":
        return linear(d, 2 * heads) + vector(2 * heads)
    if kind == "delta":
        return linear(d, heads)
    rank = spec["decay_rank"]
    if kind == "kda":
        return linear(d, heads) + linear(d, rank) + linear(rank, d) + vector(heads + d)
    return linear(d, rank) + linear(rank, d, bias=True)


def oryx_cost(spec: Spec, length: int, linear_fraction: float) -> Cost:
    """All layers, both memories advancing at every token and `linear_fraction` of the outputs from the recurrence.

    The tokens of each mode are taken to be spread evenly; a layer whose mode is fixed has it at every token.
    """
    d = spec["d_model"]
    fixed = {"follow": linear_fraction, "attention": 0.0, "linear": 1.0}
    total = _ends(spec) + _mlps(spec, spec["layers"])
    for mode in spec["modes"]:
        total += vector(d) + oryx_mixer(spec, length, fixed[mode])
    return total


def oryx_mixer(spec: Spec, length: int, share: float) -> Cost:
    """The mixer of one layer that writes `share` of its outputs with the recurrence; the unread state costs no read."""
    d, head_dim = spec["d_model"], spec["head_dim"]
    heads = d // head_dim
    products = 3 if spec["mixer"] in ("gdn", "delta", "kda") else 2
    memory = matrix_state(heads, head_dim, head_dim, products)
    unread = matrix_state(heads, head_dim, head_dim, 1).recurrence * (1 - share)
    queries = 2 if spec["queries"] == "own" else 1
    return (
        linear(d, 3 * d)
        + vector(queries * d * d)
        + Cost(projections=2 * d * d)
        + (linear(d, d) if spec["gate"] != "none" else Cost())
        + short_conv(2 * d, spec["conv"])
        + oryx_decay(spec)
        + vector(d if spec["norm"] == "full" else head_dim)
        + memory
        + Cost(recurrence=-unread)
        + Cost(cache=2 * d * length, attention=(1 - share) * 4 * d * mean_keys(length))
    )
