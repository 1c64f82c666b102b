"""Specs of AMOR (`kind: amor`): a recurrent backbone and K attention blocks that fire where it is uncertain.

The backbone is written as a stack's spec is, at the top level; the rest describes the blocks. Every ablation of the
paper is a value of these fields, and `ABLATIONS` names them::

    {"kind": "amor", "layers": "gdn*6", "d_model": 64, "blocks": 3, "trigger": {"kind": "position", "every": 3}}

Reference: Zheng & Shani, AMOR, arXiv 2602.13215; sections 3.1 to 3.5, appendices G and H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .catalogue import HEAD_DIM, MIXERS, ROPE
from .errors import Field, SpecError, nearest_divisor, odd_head, resolve_fields, unknown
from .spec import resolve_stack

BACKBONE = ("vocab_size", "layers", "d_model", "d_ff", "mixers", "norm_eps", "init_std", "tie", "head")
"""The fields that are the backbone's own, as in a stack's spec."""

_STATISTICS: dict[str, Field] = {
    "kappa": Field("float", 0.2),
    "momentum": Field("float", 0.99, minimum=0.0, maximum=1.0),
    "mu_init": Field("float", 0.3),
    "sigma_init": Field("float", 0.1, minimum=0.0),
}
"""The score fires above `mu + kappa sigma`: exponential averages of the batch's median and standard deviation."""


def _router(hidden: int) -> dict[str, Field]:
    return {"hidden": Field("int", lambda d, p: min(hidden, d), minimum=1), **_STATISTICS}


TRIGGERS: dict[str, dict[str, Field]] = {
    "entropy": _STATISTICS,
    "margin": _STATISTICS,
    "router": _router(512),
    "random_router": _router(256),
    "input": {
        "hidden": Field("int", 0, minimum=0),
        **_STATISTICS,
        "mu_init": Field("float", 0.0),
        "sigma_init": Field("float", 1.0, minimum=0.0),
    },
    "position": {"every": Field("int", 3, minimum=1), "offset": Field("int", 0, minimum=0)},
    "random": {"rate": Field("float", 0.4, minimum=0.0, maximum=1.0), "seed": Field("int", 0, minimum=0)},
    "always": {},
    "never": {},
    "control": {
        "name": Field("str", "surprise"),
        "compare": Field("str", "statistics", choices=("statistics", "positive")),
        **_STATISTICS,
    },
}
"""What decides where a block fires, with its parameters; `g_t = 1[score_t > mu + kappa sigma]` where it has them.

entropy         native: the entropy of softmax(head(h~_t)) over log V
margin          1 - (p_1 - p_2), the two largest probabilities of the same distribution
router          a . SiLU(W h~ + b) + s . h~ + c with `hidden` units, distilled from the entropy (eq. 13)
random_router   the same form left untrained (the paper's control)
input           learned: w . h~ + b (`hidden` 0), or `hidden` SiLU units before it
position        where (t - offset) mod `every` = 0
random          with probability `rate`, independently, the same draws for the same `seed`
always, never   `never` is the paper's control with the attention output zeroed
control         the (B, T) control tensor `name`: above the statistics as above, or `positive`: above 0
"""
NEEDS_HEAD = ("entropy", "margin")
"""Triggers that call the language-model head once more in each block."""

_BLOCKS: dict[str, Field] = {
    "blocks": Field("int", 3, minimum=1),
    "placement": Field("str", "post", choices=("post", "serial", "fused")),
    "layout": Field(
        "str",
        lambda d, p: "asymmetric" if p["placement"] == "post" else "symmetric",
        choices=("asymmetric", "symmetric"),
    ),
    "head_dim": HEAD_DIM,
    "rope_base": ROPE,
    "alpha": Field("str", "channel", choices=("channel", "none")),
    "alpha_init": Field("float", 0.0),
    "alpha_floor": Field("float", -1.0, optional=True),
    "output_init": Field("str", "zero", choices=("zero", "normal")),
    "mlp": Field("bool", False),
}
"""The blocks.

blocks       K, their number
placement    post: after the backbone; serial: instead of the mixers of layers `at`, whose MLPs stay; fused: beside them
layout       asymmetric: block 0 reads and adds to the norm_f output; symmetric: norm_f is block 0's pre-norm only
alpha        channel: the update times sigmoid(max(a, alpha_floor)) per channel, a starting at alpha_init; none: plain
output_init  of the output projection: zero, or normal with the stack's init_std
mlp          a pre-norm SwiGLU of the backbone's width after each block, gate or no gate
"""

ABLATIONS: dict[str, dict[str, Any]] = {
    "symmetric": {"layout": "symmetric"},
    "ungated": {"layout": "symmetric", "trigger": "always", "alpha": "none", "output_init": "normal"},
    "mlp": {"mlp": True},
    "single": {"blocks": 1},
    "serial": {"placement": "serial"},
    "fused": {"placement": "fused"},
}
"""The six design ablations of appendix H, as changes to a spec."""


def resolve(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved spec of an AMOR model; raises `SpecError`.

    `trigger` is a name, or a mapping with `kind` and parameters of that kind. `at`, for serial and fused placement,
    lists the layers counted from 0; the defaults are the paper's, {N/(K+1), 2N/(K+1), ...} and evenly from the first to
    the last.
    """
    own = ("kind", *BACKBONE, "trigger", "at")
    if unknown_keys := [key for key in spec if key not in own and key not in _BLOCKS]:
        raise unknown("spec", unknown_keys[0], [*own, *_BLOCKS])
    backbone = resolve_stack({key: spec[key] for key in BACKBONE if key in spec})
    d_model, depth = backbone["d_model"], len(backbone["layers"])
    blocks = resolve_fields("", _BLOCKS, {key: spec[key] for key in spec if key in _BLOCKS}, d_model)
    _check_heads(d_model, blocks)
    at = _sites(spec.get("at"), blocks, depth)
    if blocks["placement"] == "serial":
        _check_streams(backbone, at)
    if blocks["mlp"] and not backbone["d_ff"]:
        raise SpecError("mlp: True needs the backbone's width, but d_ff is 0; nearest: False")
    trigger = resolve_trigger(spec.get("trigger", "entropy"), d_model)
    if backbone["head"]["kind"] != "tokens" and trigger["kind"] in NEEDS_HEAD:
        raise SpecError(
            f"trigger.kind: {trigger['kind']!r} needs next-token logits, head.kind is not tokens; nearest: 'input'"
        )
    return {
        "kind": "amor",
        **{key: backbone[key] for key in BACKBONE},
        **blocks,
        "at": at,
        "trigger": trigger,
    }


def resolve_trigger(given: Any, d_model: int) -> dict[str, Any]:
    """`{"kind": ..., parameters}` for a trigger given by name or by mapping (without `kind`: entropy).

    Raises `SpecError`.
    """
    params = {"kind": given} if isinstance(given, str) else given
    if not isinstance(params, Mapping):
        raise SpecError(f"trigger: {given!r} is neither a name nor a mapping; nearest: 'entropy'")
    kind = params.get("kind", "entropy")
    if not isinstance(kind, str) or kind not in TRIGGERS:
        raise unknown("trigger" if isinstance(given, str) else "trigger.kind", kind, TRIGGERS)
    values = resolve_fields("trigger", TRIGGERS[kind], params, d_model, reserved=("kind",))
    if kind == "position" and values["offset"] >= values["every"]:
        near = values["every"] - 1
        raise SpecError(f"trigger.offset: {values['offset']} is not below trigger.every; nearest: {near}")
    return {"kind": kind, **values}


def backbone(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The stack's spec of the backbone alone, resolved: a complete language model."""
    return resolve_stack({key: spec[key] for key in BACKBONE})


def default_controls(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's controls as variants of evaluation, and the oracle that a `control` trigger is named after.

    zeroed         the attention output zeroed, which is a gate that never fires
    random_router  an untrained router with 256 units and the model's threshold, uncalibrated
    random         as many positions as the native gate's, drawn at random
    always         attention everywhere

    Reference: AMOR, arXiv 2602.13215, table 25; `random` and `always` are ours.
    """
    variants: dict[str, Any] = {
        "zeroed": {"trigger": "never"},
        "random_router": {"trigger": "random_router"},
        "random": {"trigger": {"kind": "random", "firing_rate": "native"}},
        "always": {"trigger": "always"},
    }
    trigger = spec["trigger"]
    oracle: dict[str, Any] = {}
    if trigger["kind"] == "control":
        oracle = {trigger["name"]: {"schedule": f"exact_{trigger['name']}"}}
    return {"train": oracle, "evaluate": oracle, "variants": variants}


def _check_heads(d_model: int, blocks: Mapping[str, Any]) -> None:
    head_dim = blocks["head_dim"]
    near = nearest_divisor(head_dim, d_model, even=True)
    if d_model % head_dim:
        raise SpecError(f"head_dim: {head_dim} does not divide d_model {d_model}; nearest: {near}")
    if blocks["rope_base"] is not None and head_dim % 2:
        raise odd_head("head_dim", head_dim, d_model)


def _check_streams(backbone: Mapping[str, Any], at: list[int]) -> None:
    """A layer that is replaced cannot publish the stream that a later one reads."""
    layers, mixers = backbone["layers"], backbone["mixers"]
    for reader, name in enumerate(layers):
        entry = MIXERS.get(mixers[name]["kind"])
        if entry is None or entry.reads is None or reader in at:
            continue
        source = mixers[name][entry.reads]
        provider = max(index for index in range(reader) if layers[index] == source)
        if provider in at:
            free = [i for i in range(len(layers)) if i not in at and i != provider]
            near = sorted([*(i for i in at if i != provider), *free[:1]])
            raise SpecError(f"at: layer {provider} publishes what layer {reader} ({name}) reads; nearest: {near}")


def _sites(given: Any, blocks: Mapping[str, Any], depth: int) -> list[int]:
    count, placement = blocks["blocks"], blocks["placement"]
    if placement == "post":
        if given:
            raise SpecError(f"at: {given!r} is for serial or fused placement; nearest: []")
        return []
    if blocks["layout"] == "asymmetric":
        raise SpecError(f"layout: 'asymmetric' is for blocks after the backbone, not {placement}; nearest: 'symmetric'")
    if blocks["mlp"]:
        raise SpecError(
            f"mlp: True is for blocks after the backbone, since {placement} keeps the layer's; nearest: False"
        )
    if count > depth:
        raise SpecError(f"blocks: {count} is above the {depth} layers that could hold one; nearest: {depth}")
    if given is None:
        if placement == "serial":
            return [depth * (i + 1) // (count + 1) for i in range(count)]
        return [min(depth - 1, depth * i // max(1, count - 1)) for i in range(count)]
    if not isinstance(given, (list, tuple)) or not all(isinstance(i, int) and not isinstance(i, bool) for i in given):
        raise SpecError(f"at: {given!r} is not a list of layers")
    if sorted(set(given)) != list(given) or len(given) != count:
        raise SpecError(f"at: {given!r} is not {count} different layers in order (blocks: {count})")
    for layer in given:
        if not 0 <= layer < depth:
            raise SpecError(f"at: {layer} is no layer of {depth}; nearest: {min(max(layer, 0), depth - 1)}")
    return list(given)
