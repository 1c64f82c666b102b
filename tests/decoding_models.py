"""The published models in small, for tests of decoding and inference."""

from __future__ import annotations

from typing import Any

import torch

from architectures import build
from architectures.spec import resolve

V = 61

MIXERS = {
    "attention": {"head_dim": 8},
    "mamba2": {"expand": 2, "head_dim": 8, "d_state": 12, "conv": 4},
    "gdn": {"head_dim": 8, "heads": 3, "expand_v": 2.0, "conv": 4},
    "fused": {"attention": "attention", "recurrent": "mamba2", "combine": "map"},
}
LAYERS = {
    "Transformer": "attention*3",
    "Mamba2": "mamba2*3",
    "Gated DeltaNet": "gdn*3",
    "Mamba2 Serial Hybrid": "[mamba2, attention, mamba2]",
    "Gated DeltaNet Serial Hybrid": "[gdn, attention, gdn]",
    "Mamba2 Fused Hybrid": "[fused, mamba2, fused]",
    "Amor-Mamba2": "mamba2*2",
    "Amor-Gated DeltaNet": "gdn*2",
}
ROUTER = " + distilled router"
MODELS = [*LAYERS, *(name + ROUTER for name in LAYERS if name.startswith("Amor")), "Oryx-TM", "Oryx-TG"]


def spec_of(name: str, **changes: Any) -> dict[str, Any]:
    """The published model `name` in small, its attention outputs not zero."""
    common = {"vocab_size": V, "d_model": 16, "init_std": 0.3}
    if name.startswith("Oryx"):
        kind = {"Oryx-TM": "mamba2", "Oryx-TG": "gdn"}[name]
        return resolve({"kind": "oryx", "mixer": kind, "layers": 3, "head_dim": 8, **common, **changes})
    layers = LAYERS[name.removesuffix(ROUTER)]
    used = {kind: params for kind, params in MIXERS.items() if kind in layers}
    if "fused" in used:
        used = {kind: params for kind, params in MIXERS.items() if kind != "gdn"}
    spec = {**common, "layers": layers, "d_ff": 24, "mixers": used}
    if name.startswith("Amor"):
        trigger: Any = {"kind": "router", "hidden": 5} if name.endswith(ROUTER) else "entropy"
        spec |= {"kind": "amor", "blocks": 3, "head_dim": 8, "trigger": trigger, "output_init": "normal"}
    return resolve({**spec, **changes})


def model_of(name: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """The model, its gates' thresholds at the median of their scores so that they open and shut."""
    torch.manual_seed(seed)
    model = build(spec_of(name, **changes), kernels="chunked").to(dtype).eval()
    tokens = torch.randint(V, (4, 32))
    for block in range(len(getattr(model, "attentions", ()))):
        with torch.no_grad():
            score = model(tokens).extras["fields"].get(f"gate.{block}.score")
        if score is not None:
            model.attentions[block].trigger.statistics.fix(score.median())
    return model


def control_of(mode: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"mode": torch.ones(batch, length, dtype=torch.int64)} if mode == "linear" else {}


def cases() -> list[tuple[str, str]]:
    return [(name, mode) for name in MODELS for mode in (("attention", "linear") if "Oryx" in name else ("attention",))]
