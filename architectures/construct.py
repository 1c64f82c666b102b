"""From resolved specs to modules."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from . import kernels as kernel_table
from .catalogue import MIXERS
from .kernels import Kernels
from .mixers.base import Mixer
from .plugins import PlugIn, adapted, load_plug_in
from .spec import KINDS, SpecError, resolve


def build(spec: Mapping[str, Any], *, kernels: Kernels = "auto") -> nn.Module:
    """The model of a spec, its weights drawn from torch's global generator.

    `kernels` chooses the implementation of each operation: `auto`, `plain`, `chunked`, a GPU backend's name, or a
    mapping from operation to one of these; the model's `kernels_used` tells what ran. Raises `SpecError`.
    """
    resolved = resolve(spec)
    kernel_table.check(kernels)
    kind = resolved["kind"]
    if kind.startswith("model:"):
        model = load_plug_in(kind, "kind")
        try:
            return adapted(model(resolved["vocab_size"], **resolved["params"]))
        except TypeError as error:
            raise SpecError(f"params: {kind} does not take {resolved['params']!r} ({error})") from error
    module, _, name = KINDS[kind].model.partition(":")
    return getattr(importlib.import_module(module), name)(resolved, kernels=kernels)


def build_layers(spec: Mapping[str, Any], kernels: Kernels) -> list[Mixer]:
    """The mixers of a resolved stack, in order, those that are read by later layers set to publish."""
    layers: list[Mixer] = []
    latest: dict[str, Mixer] = {}
    for name in spec["layers"]:
        mixer = build_mixer(name, spec["d_model"], spec["mixers"], latest)
        for module in mixer.modules():
            if isinstance(module, Mixer):
                module.kernels = kernels
        layers.append(mixer)
        latest[name] = mixer
    return layers


def build_mixer(
    name: str, d_model: int, mixers: Mapping[str, Mapping[str, Any]], earlier: Mapping[str, Mixer] | None = None
) -> Mixer:
    """One mixer by its name in a resolved `mixers` table; `earlier` has the layers whose streams it may read."""
    params = dict(mixers[name])
    kind = params.pop("kind")
    if kind not in MIXERS:
        return PlugIn(kind, f"mixers.{name}", d_model, params)
    entry = MIXERS[kind]
    if entry.reads is not None:
        source = params[entry.reads]
        provider = (earlier or {})[source]
        provider.stream = source
        params["provider"] = provider
    else:
        for field, schema in entry.fields.items():
            if schema.kind == "mixer":
                params[field] = build_mixer(params[field], d_model, mixers, earlier)
    module, _, cls = entry.target.partition(":")
    return getattr(importlib.import_module(module), cls)(d_model, **params)
