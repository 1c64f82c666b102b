"""Mixers and models from outside: `mixer:package.module:Name`, `mixer:path/to/file.py:Name`, `model:...`, `fla:Name`.

The folder of a plug-in is appended to the import path, so that it can never hide a package that was there before.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .context import Context, Output
from .errors import SpecError
from .fla_layers import FLA_LAYERS, check_name, require
from .mixers.base import Mixer, State


def load_plug_in(name: str, key: str) -> Callable[..., nn.Module]:
    """What a plug-in's name stands for.

    Raises `SpecError`, naming `key`, when the module, the file or the name in it is not there or cannot be imported.
    """
    _, _, target = name.partition(":")
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise SpecError(f"{key}: {name!r} does not say what to load; write for instance 'mixer:my_pkg.mixers:MyMixer'")
    try:
        module = _load_file(where) if where.endswith(".py") else _load_module(where)
    except Exception as error:
        raise SpecError(f"{key}: {name!r} cannot be imported ({type(error).__name__}: {error})") from error
    if not hasattr(module, attribute):
        names = ", ".join(n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module.__name__)
        raise SpecError(f"{key}: {where!r} has no {attribute!r} (it has: {names or 'no class'})")
    return getattr(module, attribute)


def _append_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)


def _load_module(name: str) -> Any:
    _append_path(os.getcwd())
    return importlib.import_module(name)


def _load_file(path: str) -> Any:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(f"no file {path}")
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    _append_path(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"fastslow_plug_in_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PlainModel(nn.Module):
    """A model from outside whose forward pass maps tokens `(B, T)` to logits `(B, T, V)` and takes nothing else."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, tokens: Tensor, *, positions: Tensor | None = None, control: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Logits at `positions`, formed everywhere and selected."""
        logits = self.module(tokens)
        if positions is None:
            return Output(logits, {})
        selected = logits[positions] if positions.dtype == torch.bool else logits.flatten(0, 1)[positions]
        return Output(selected, {})


def adapted(model: nn.Module) -> nn.Module:
    """`model` itself where its forward pass takes `positions`, as the project's own models do, else wrapped."""
    return model if "positions" in inspect.signature(model.forward).parameters else PlainModel(model)


def _fla_layer(name: str, key: str) -> Callable[..., nn.Module]:
    require(name, key, cuda=torch.cuda.is_available())
    layer = check_name(name, key)
    cls = getattr(importlib.import_module("fla.layers"), layer)
    accepted = inspect.signature(cls.__init__).parameters

    def make(d_model: int, **params: Any) -> nn.Module:
        fixed = {"hidden_size": d_model, **({"layer_idx": 0} if "layer_idx" in accepted else {})}
        return _FirstOutput(cls(**{**FLA_LAYERS[layer].defaults, **params, **fixed}))

    return make


class _FirstOutput(nn.Module):
    """A layer of flash-linear-attention as a map of tensors: it returns its output first, then weights and caches."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.masked = "attention_mask" in inspect.signature(layer.forward).parameters

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x, attention_mask=None) if self.masked else self.layer(x)
        return y[0] if isinstance(y, tuple) else y


class PlugIn(Mixer):
    """A mixer from outside, called as `(d_model, **params)` and mapping `(B, T, D)` to `(B, T, D)`.

    It keeps its own initialisation. Its `forward` gets the context if it has a parameter of that name. It can be
    decoded if it has `init_state(batch_size, max_length, *, device, dtype)` and `prefill(x, state)`.
    """

    own_initialisation = True

    def __init__(self, kind: str, key: str, d_model: int, params: Mapping[str, Any]) -> None:
        super().__init__()
        factory = _fla_layer(kind, f"{key}.kind") if kind.startswith("fla:") else load_plug_in(kind, f"{key}.kind")
        try:
            module: Any = factory(d_model, **params)
        except TypeError as error:
            raise SpecError(f"{key}: {kind} does not take d_model={d_model} and {dict(params)!r} ({error})") from error
        if not isinstance(module, nn.Module):
            raise SpecError(f"{key}: {kind} makes a {type(module).__name__}, not a torch.nn.Module")
        self.module: Any = module
        self.kind = kind
        self.takes_context = "context" in inspect.signature(module.forward).parameters

    @property
    def decodes(self) -> bool:
        """Whether the module has what decoding needs."""
        return all(hasattr(self.module, name) for name in ("init_state", "prefill"))

    def _require_decoding(self) -> None:
        if not self.decodes:
            raise NotImplementedError(
                f"{self.kind} has no init_state and prefill: it can be trained and scored, but not decoded"
            )

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        if state is not None:
            self._require_decoding()
            return self.module.prefill(x, state)
        y = self.module(x, context=context) if self.takes_context else self.module(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise SpecError(f"{self.kind}: maps {tuple(x.shape)} to {found}; it must keep the shape (B, T, D)")
        return y, None

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        self._require_decoding()
        return self.module.init_state(batch_size, max_length, device=device, dtype=dtype)
