"""Specs: an architecture as plain data, checked and filled in without torch.

A resolved spec fixes the model up to its seed. What is recorded but changes no definition (kernels, device,
precision) is no part of it.

A stack, as written in `tasks.yaml`::

    {"layers": "[gdn*3, local]*2", "d_model": 64, "mixers": {"local": {"kind": "sliding", "window": 8}}}

`mixers` holds the parameters of each mixer by the name that `layers` uses; a name that is no mixer's own says which
one it is by `kind`. Layers may also be `mixer:package.module:Name`, `mixer:path/to/file.py:Name` and `fla:Name`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .catalogue import MIXERS
from .errors import Field, SpecError, resolve_fields, unknown
from .fla_layers import check_name
from .pattern import expand

__all__ = ["KINDS", "SpecError", "canonical", "resolve", "resolve_stack"]


@dataclass(frozen=True)
class Kind:
    """A kind of model: `resolve(spec) -> dict` without torch, `model` called as `(resolved spec, kernels=...)`.

    `controls(resolved spec) -> dict`, where there is one: see `default_controls`.
    """

    resolve: str
    model: str
    controls: str | None = None


KINDS: dict[str, Kind] = {
    "stack": Kind("architectures.spec:resolve_stack", "architectures.stack:Stack"),
    "amor": Kind(
        "architectures.amor_spec:resolve", "architectures.amor:Amor", "architectures.amor_spec:default_controls"
    ),
    "oryx": Kind(
        "architectures.oryx_spec:resolve", "architectures.oryx:Oryx", "architectures.oryx_spec:default_controls"
    ),
}
PLUG_INS = ("mixer:", "fla:")

_VOCAB = Field("int", required=True, minimum=1)
_STACK: dict[str, Field] = {
    "vocab_size": _VOCAB,
    "d_model": Field("int", 64, minimum=1),
    "d_ff": Field("int", lambda d, p: 2 * p["d_model"], minimum=0),
    "norm_eps": Field("float", 1e-5, minimum=0.0),
    "init_std": Field("float", 0.02, minimum=0.0),
    "tie": Field("bool", True),
}
"""`d_ff`: width of each block's SwiGLU, 0: none. `tie`: the head's weight is the embedding's."""
_HEAD: dict[str, Field] = {
    "kind": Field("str", "tokens", choices=("tokens", "linear")),
    "size": Field("int", optional=True, minimum=1),
}
"""`tokens`: logits over the vocabulary; `linear`: `size` outputs of its own, with a bias."""
_POSITION_HEAD: dict[str, Field] = {
    "kind": Field("str", "position_mlp", choices=("position_mlp",)),
    "hidden": Field("int", lambda d, p: 2 * d, minimum=1),
}
"""`position_mlp`: every token told from the last position's features (`architectures.position_head`)."""


def resolve(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with every default filled in and layer patterns expanded: plain JSON data, a fixed point of `resolve`.

    Raises `SpecError`, one line with key, value and nearest valid choice.
    """
    if not isinstance(spec, Mapping):
        raise SpecError(f"spec: {spec!r} is not a mapping")
    kind = spec.get("kind", "stack")
    if not isinstance(kind, str):
        raise SpecError(f"kind: {kind!r} is not a name")
    if kind.startswith("model:"):
        return _resolve_plug_in(spec)
    if kind not in KINDS:
        raise unknown("kind", kind, [*KINDS, "model:package.module:Name"])
    module, _, name = KINDS[kind].resolve.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SpecError(f"kind: {kind!r} is not part of this installation; nearest: 'stack'") from None
    return function(spec)


def default_controls(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules of control tensors that a model is trained and evaluated with unless told otherwise.

    `{"train": control, "evaluate": control, "variants": {name: control}}`, each control mapping a tensor's name to its
    schedule as plain data; empty for a model that reads none.
    """
    controls = KINDS[spec.get("kind", "stack")].controls if spec.get("kind", "stack") in KINDS else None
    if controls is None:
        return {}
    module, _, name = controls.partition(":")
    return getattr(importlib.import_module(module), name)(spec)


def canonical(spec: Mapping[str, Any]) -> str:
    """The resolved spec as JSON with sorted keys: equal texts are equal architectures."""
    return json.dumps(resolve(spec), sort_keys=True, separators=(",", ":"), allow_nan=False)


def resolve_stack(spec: Mapping[str, Any]) -> dict[str, Any]:
    """`resolve` for a stack of blocks (`kind: stack`)."""
    reserved = ("kind", "layers", "mixers", "head")
    top = resolve_fields("", _STACK, spec, 0, reserved=reserved)
    if "layers" not in spec:
        raise SpecError("layers: missing; write for instance '[gdn*3, attention]*2'")
    layers = expand(spec["layers"])
    mixers = _resolve_mixers(layers, _mapping("mixers", spec.get("mixers", {})), top["d_model"])
    _check_sources(layers, mixers)
    head = resolve_head(spec, top["d_model"])
    return {"kind": "stack", **top, "layers": layers, "mixers": mixers, "head": head}


def resolve_head(spec: Mapping[str, Any], d_model: int) -> dict[str, Any]:
    """The resolved `head` of a spec of any kind."""
    given = _mapping("head", spec.get("head") or {})
    if given.get("kind") == "position_mlp":
        if spec.get("kind", "stack") != "stack":
            raise SpecError(f"head.kind: 'position_mlp' does not fit kind {spec['kind']!r}; nearest: kind 'stack'")
        return resolve_fields("head", _POSITION_HEAD, given, d_model)
    head = resolve_fields("head", _HEAD, given, d_model)
    if (head["kind"] == "linear") != (head["size"] is not None):
        raise SpecError(f"head.size: {head['size']!r} does not fit head.kind {head['kind']!r}: only linear has a size")
    return head


def mixer_kind(name: str, mixers: Mapping[str, Mapping[str, Any]]) -> str:
    """The catalogue's name, or the plug-in's, behind a layer's name in a resolved spec."""
    return str(mixers[name]["kind"])


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SpecError(f"{key}: {value!r} is not a mapping of names")
    return value


def _resolve_mixers(layers: list[str], given: Mapping[str, Any], d_model: int) -> dict[str, dict[str, Any]]:
    resolved: dict[str, dict[str, Any]] = {}
    waiting = [(name, "layers") for name in reversed(dict.fromkeys(layers))]
    while waiting:
        name, where = waiting.pop()
        if name in resolved:
            continue
        params = dict(_mapping(f"mixers.{name}", given.get(name) or {}))
        kind = params.pop("kind", name)
        if not isinstance(kind, str) or not (kind in MIXERS or kind.startswith(PLUG_INS)):
            key = f"mixers.{name}.kind" if "kind" in given.get(name, {}) else where
            raise unknown(key, kind, {*MIXERS, *given, "mixer:package.module:Name", "fla:Name"} - {name})
        if kind.startswith("fla:"):
            check_name(kind, where if kind == name else f"mixers.{name}.kind")
        if kind.startswith(PLUG_INS):
            resolved[name] = {"kind": kind, **_plain(f"mixers.{name}", params)}
            continue
        entry = MIXERS[kind]
        values = resolve_fields(f"mixers.{name}", entry.fields, params, d_model)
        if entry.check is not None:
            entry.check(f"mixers.{name}", d_model, values)
        resolved[name] = {"kind": kind, **values}
        if entry.reads is None:
            parts = [field for field, schema in entry.fields.items() if schema.kind == "mixer"]
            waiting += [(values[part], f"mixers.{name}.{part}") for part in parts]
    _check_nesting(resolved)
    _check_borrowing(resolved)
    for name in given:
        if name not in resolved:
            raise SpecError(f"mixers.{name}: no layer uses it; the layers are {', '.join(dict.fromkeys(layers))}")
    return resolved


def _check_nesting(mixers: Mapping[str, Mapping[str, Any]]) -> None:
    """A composite may not contain itself."""

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise SpecError(f"mixers.{name}: contains itself ({' > '.join([*above, name])})")
        entry = MIXERS.get(mixer_kind(name, mixers))
        if entry is None or entry.reads is not None:
            return
        for field, schema in entry.fields.items():
            if schema.kind == "mixer":
                visit(mixers[name][field], (*above, name))

    for name in mixers:
        visit(name, ())


def _check_borrowing(mixers: Mapping[str, Mapping[str, Any]]) -> None:
    """`fused` with `combine: map` borrows from a Mamba-2 that has room for keys and values."""
    for name, params in mixers.items():
        if params["kind"] != "fused" or params["combine"] != "map":
            continue
        attention, recurrent = mixers[params["attention"]], mixers[params["recurrent"]]
        if attention["kind"] != "attention" or recurrent["kind"] != "mamba2" or recurrent["expand"] < 2:
            parts = f"{params['attention']} and {params['recurrent']}"
            raise SpecError(
                f"mixers.{name}.combine: 'map' needs attention and a mamba2 that expands by 2 or more, not {parts}; "
                "nearest: 'sum'"
            )


def _check_sources(layers: list[str], mixers: Mapping[str, Mapping[str, Any]]) -> None:
    """Every layer that reads a stream must come after a layer that publishes one, under the name it gives."""
    for index, name in enumerate(layers):
        kind = mixer_kind(name, mixers)
        entry = MIXERS.get(kind)
        if entry is None or entry.reads is None:
            continue
        key, source = f"mixers.{name}.{entry.reads}", mixers[name][entry.reads]
        earlier = [other for other in dict.fromkeys(layers[:index]) if _publishes(other, kind, mixers)]
        if source not in earlier:
            raise unknown(key, source, earlier)


def _publishes(name: str, reader: str, mixers: Mapping[str, Mapping[str, Any]]) -> bool:
    kind = mixer_kind(name, mixers)
    return kind in MIXERS and MIXERS[kind].publishes and (kind == "attention") == (reader == "shared_attention")


def _resolve_plug_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"vocab_size": _VOCAB}
    top = resolve_fields("", fields, spec, 0, reserved=("kind", "params"))
    params = _plain("params", dict(_mapping("params", spec.get("params") or {})))
    return {"kind": spec["kind"], **top, "params": params}


def _plain(key: str, value: Any) -> Any:
    """A copy of `value` if it is JSON data. Raises `SpecError` otherwise."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError(f"{key}: {value!r} is not plain data ({error})") from None
