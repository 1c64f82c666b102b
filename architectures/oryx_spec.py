"""Specs of Oryx (`kind: oryx`): blocks that hold attention and a linear recurrence over the same keys and values.

Oryx-TM is `mixer: mamba2`, Oryx-TG `mixer: gdn`; the other fields' defaults follow the mixer, as in the paper::

    {"kind": "oryx", "mixer": "gdn", "layers": 4, "d_model": 64, "queries": "shared"}

Which of the two writes a token's output is no part of the spec: it is the control tensor `mode`, 0 for attention and 1
for the recurrence. Reference: Li et al., Oryx, arXiv 2605.28769, section 3, section 4.3 and appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .catalogue import CONV, EPS
from .errors import Field, SpecError, nearest_divisor, odd_head, resolve_fields, unknown
from .pattern import expand
from .spec import resolve_head

MIXERS = ("mamba2", "gdn", "delta", "kda", "gla")
"""The recurrences with a key-value association; their state is (head_dim, head_dim) a head, multi-head as attention."""
MODES = ("follow", "attention", "linear")
ATTENTION, LINEAR = 0, 1
"""Values of the control tensor `mode`."""


def _head_dim(d_model: int, p: dict[str, Any]) -> int:
    """128 at every scale of the paper, or a quarter of a width below 512."""
    return nearest_divisor(min(128, max(2, d_model // 4)), d_model, even=True)


def _d_ff(d_model: int, p: dict[str, Any]) -> int:
    """Active mixer to MLP as 5 : 8; without the gate the MLP takes its D^2 too. A multiple of 8 from 24 up."""
    exact = (8 if p["gate"] != "none" else 9) * d_model / 3
    return max(8, 8 * round(exact / 8)) if exact >= 24 else round(exact)


_FIELDS: dict[str, Field] = {
    "vocab_size": Field("int", required=True, minimum=1),
    "d_model": Field("int", 64, minimum=1),
    "layers": Field("int", 4, minimum=1, maximum=1024),
    "mixer": Field("str", "mamba2", choices=MIXERS),
    "head_dim": Field("int", _head_dim, minimum=1),
    "queries": Field("str", "own", choices=("own", "shared")),
    "conv": CONV,
    "activation": Field(
        "str", lambda d, p: "identity" if p["mixer"] == "mamba2" else "silu", choices=("silu", "identity")
    ),
    "query_activation": Field("str", lambda d, p: p["activation"], choices=("silu", "identity")),
    "rope": Field(
        "str", lambda d, p: "both" if p["mixer"] == "mamba2" else "attention", choices=("both", "attention", "none")
    ),
    "rope_base": Field("float", 10000.0, minimum=1.0),
    "attention_l2": Field("str", "none", choices=("none", "key", "both")),
    "norm": Field("str", lambda d, p: "full" if p["mixer"] == "mamba2" else "grouped", choices=("full", "grouped")),
    "gate": Field(
        "str",
        lambda d, p: "before_norm" if p["mixer"] == "mamba2" else "after_norm",
        choices=("before_norm", "after_norm", "none"),
    ),
    "d_ff": Field("int", _d_ff, minimum=0),
    "norm_eps": EPS,
    "init_std": Field("float", 0.02, minimum=0.0),
    "tie": Field("bool", True),
}
"""Every layer of the model.

queries           own: a query projection for each of the two mixers; shared: one for both
conv              width of the short causal convolution on k and v (never on queries), without bias; 0: none
activation        after the convolution, on k and v; `query_activation` on the queries of both mixers
rope              both: queries and the shared key in both mixers; attention: in attention only
attention_l2      key, or query and key (both), of unit length in attention; the delta rules always have both so
norm              RMSNorm before the output projection, over the full width (D weights) or each head (head_dim weights)
gate              SiLU of a projection of the input, multiplied in before or after that norm; none: no gate
"""

OF_MIXER: dict[str, dict[str, Field]] = {
    "mamba2": {"skip": Field("bool", True)},
    "gdn": {"negative_eigenvalues": Field("bool", False)},
    "delta": {"negative_eigenvalues": Field("bool", False)},
    "kda": {
        "decay_rank": Field("int", lambda d, p: p["head_dim"], minimum=1),
        "negative_eigenvalues": Field("bool", False),
    },
    "gla": {
        "decay_rank": Field("int", lambda d, p: min(16, p["head_dim"]), minimum=1),
        "gate_divisor": Field("float", 16.0, minimum=1.0),
    },
}
"""Fields of one recurrence only. `skip`: the linear output gains D_h v_t; `decay_rank`: of the projection to decays."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "shared_queries": {"queries": "shared"},
    "full_norm": {"norm": "full"},
    "grouped_norm": {"norm": "grouped"},
    "no_conv": {"conv": 0},
    "no_gate": {"gate": "none"},
    "rope_both": {"rope": "both"},
    "rope_attention": {"rope": "attention"},
    "l2_key": {"attention_l2": "key"},
    "l2_both": {"attention_l2": "both"},
    "identity": {"activation": "identity"},
    "silu": {"activation": "silu"},
}
"""The ablations of tables 4 and 6 to 8, as changes to a spec; sequence-level training is the trainer's."""


def resolve(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved spec of an Oryx model; raises `SpecError`.

    `modes` is a layer pattern of `follow` (the default), `attention` and `linear`: a layer that does not follow the
    control tensor writes its output with that mixer at every token. Both memories advance in every layer.
    """
    mixer = _FIELDS["mixer"].check("mixer", spec.get("mixer", _FIELDS["mixer"].default))
    others = {name for fields in OF_MIXER.values() for name in fields} - set(OF_MIXER[mixer])
    for name in spec:
        if name in others:
            raise SpecError(f"{name}: not a field of mixer {mixer!r}; nearest: {_owner(name)!r}")
    known = {**_FIELDS, **OF_MIXER[mixer]}
    own = ("kind", "modes", "head")
    for name in spec:
        if name not in known and name not in own:
            raise unknown("spec", name, [*known, *own])
    top = {name: spec[name] for name in spec if name in known}
    d_model = _FIELDS["d_model"].check("d_model", spec.get("d_model", _FIELDS["d_model"].default))
    resolved = resolve_fields("", known, top, d_model)
    _check_heads(d_model, resolved)
    modes = expand(spec.get("modes", f"follow*{resolved['layers']}"), "modes")
    for mode in modes:
        if mode not in MODES:
            raise unknown("modes", mode, MODES)
    if len(modes) != resolved["layers"]:
        raise SpecError(f"modes: {len(modes)} for {resolved['layers']} layers; nearest: 'follow*{resolved['layers']}'")
    return {"kind": "oryx", **resolved, "modes": modes, "head": resolve_head(spec, d_model)}


def control_names(modes: Sequence[str]) -> set[str]:
    """The control tensors that a model with these `modes` reads: `mode`, and `mode_I` of each layer I that follows."""
    return {"mode", *(f"mode_{layer}" for layer, mode in enumerate(modes) if mode == "follow")}


def default_controls(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Chunked mixed-mode training, the headline scored so too, and each single mode beside it (section 3, table 1)."""
    mixed = {"mode": {"schedule": "random_chunks", "attention": 0.25}}
    return {
        "train": mixed,
        "evaluate": mixed,
        "variants": {
            "attention": {"mode": {"schedule": "attention"}},
            "linear": {"mode": {"schedule": "linear"}},
            "mixed": mixed,
        },
    }


def _owner(name: str) -> str:
    return next(mixer for mixer, fields in OF_MIXER.items() if name in fields)


def _check_heads(d_model: int, p: Mapping[str, Any]) -> None:
    near = nearest_divisor(p["head_dim"], d_model, even=True)
    if d_model % p["head_dim"]:
        raise SpecError(f"head_dim: {p['head_dim']} does not divide d_model {d_model}; nearest: {near}")
    if p["rope"] != "none" and p["head_dim"] % 2:
        raise odd_head("head_dim", p["head_dim"], d_model)
