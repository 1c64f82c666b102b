"""Layers of flash-linear-attention that may stand in a pattern as `fla:Name`, and what each needs. No torch here.

Every one needs a CUDA device (Triton) and the package, version 0.6 as listed; `needs` names further packages. Left
out are the parts of YOCO, which read or make another layer's keys and values and do not map `(B, T, D)` to itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import SpecError, unknown


@dataclass(frozen=True)
class FlaLayer:
    """`needs`: packages besides fla; `defaults`: arguments that the layer does not fill in; `note`: for users."""

    needs: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


_FLASH = FlaLayer(needs=("flash_attn",))
_PLAIN = FlaLayer()
FLA_LAYERS: dict[str, FlaLayer] = {
    "ABCAttention": _PLAIN,
    "Attention": _FLASH,
    "BasedLinearAttention": _PLAIN,
    "BitAttention": _FLASH,
    "Comba": _PLAIN,
    "CyclicFlowAttention": _PLAIN,
    "DeltaFormerAttention": _PLAIN,
    "DeltaNet": _PLAIN,
    "ForgettingAttention": _PLAIN,
    "GatedDeltaNet": _PLAIN,
    "GatedDeltaNet2": _PLAIN,
    "GatedDeltaProduct": _PLAIN,
    "GatedLinearAttention": _PLAIN,
    "GatedSlotAttention": _PLAIN,
    "HGRN2Attention": _PLAIN,
    "HGRNAttention": _PLAIN,
    "KimiDeltaAttention": _PLAIN,
    "LightNetAttention": _PLAIN,
    "LinearAttention": _PLAIN,
    "LogLinearMamba2": FlaLayer(note="takes num_heads, with num_heads * head_dim = 2 d_model"),
    "Mamba": FlaLayer(needs=("mamba_ssm",)),
    "Mamba2": FlaLayer(needs=("mamba_ssm",)),
    "Mamba3": FlaLayer(needs=("mamba_ssm",)),
    "MesaNet": _PLAIN,
    "MoBA": _FLASH,
    "MomAttention": _PLAIN,
    "MomentumDeltaNet": _PLAIN,
    "MultiScaleRetention": _PLAIN,
    "MultiheadLatentAttention": _FLASH,
    "NativeSparseAttention": _PLAIN,
    "PaTHAttention": _PLAIN,
    "Parallax": _PLAIN,
    "PrecondGatedDeltaNet": _PLAIN,
    "PrecondKDA": _PLAIN,
    "RWKV6Attention": _PLAIN,
    "RWKV7Attention": FlaLayer(
        defaults={"num_hidden_layers": 2}, note="as a first layer: without the value stream between layers"
    ),
    "Raven": _PLAIN,
    "ReBasedLinearAttention": _PLAIN,
    "RodimusAttention": _PLAIN,
    "SlidingWindowSharedKeyAttention": _FLASH,
    "StickBreakingAttention": _PLAIN,
    "WallAttention": _PLAIN,
}


def check_name(name: str, key: str) -> str:
    """The layer's class behind `fla:Name`. Raises `SpecError` for one that is not listed."""
    layer = name.removeprefix("fla:")
    if layer not in FLA_LAYERS:
        raise unknown(key, name, [f"fla:{known}" for known in FLA_LAYERS])
    return layer


def require(name: str, key: str, *, cuda: bool) -> None:
    """Raises `SpecError`, one line, if this machine lacks what the layer needs."""
    if not cuda:
        raise SpecError(f"{key}: {name!r} needs a CUDA device, and there is none; nearest: a mixer of `fastslow ls`")
    layer = FLA_LAYERS[check_name(name, key)]
    for package in ("fla", *layer.needs):
        if importlib.util.find_spec(package) is None:
            raise SpecError(f"{key}: {name!r} needs the package {package!r}; install the extra 'gpu' or that package")
