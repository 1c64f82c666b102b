"""The papers' models as specs: AMOR's eight at three scales, Oryx's two at four.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, table 5 and appendix B; Li et al., Oryx, arXiv 2605.28769, section 4.
Oryx's widths and depths are inferred from its sizes: the paper does not print them.
"""

from __future__ import annotations

from typing import Any

from .errors import unknown
from .spec import resolve

AMOR_SCALES: dict[str, dict[str, int]] = {
    "180M": {"d_model": 768, "layers": 12, "d_ff": 1216},
    "440M": {"d_model": 1024, "layers": 24, "d_ff": 1984},
    "1.5B": {"d_model": 2048, "layers": 24, "d_ff": 4096},
}
AMOR_VOCABULARY = 128256
"""Llama-3.1's."""
AMOR_LENGTH = 3072
"""Tokens of training context, at which the paper's FLOPs are."""
AMOR_MODELS = (
    "Transformer",
    "Mamba2",
    "Gated DeltaNet",
    "Mamba2 Serial Hybrid",
    "Gated DeltaNet Serial Hybrid",
    "Mamba2 Fused Hybrid",
    "Amor-Mamba2",
    "Amor-Gated DeltaNet",
)
ROUTER = " + distilled router"
"""After the name of an AMOR model: its gates replaced by the distilled router."""

ORYX_SCALES: dict[str, dict[str, int]] = {
    "130M": {"d_model": 768, "layers": 12},
    "380M": {"d_model": 1024, "layers": 24},
    "810M": {"d_model": 1536, "layers": 24},
    "1.4B": {"d_model": 2048, "layers": 24},
}
ORYX_VOCABULARY = 50257
"""GPT-2's."""
ORYX_MODELS = {"Oryx-TM": "mamba2", "Oryx-TG": "gdn"}

_SERIAL = {12: (4, 8), 24: (6, 12, 18)}
_FUSED = {12: (0, 6, 11), 24: (0, 12, 23)}


def models(scale: str) -> list[str]:
    """The names that have this scale; raises `SpecError` for a scale that neither paper has."""
    if scale in AMOR_SCALES:
        return [*AMOR_MODELS, *(name + ROUTER for name in AMOR_MODELS if name.startswith("Amor"))]
    if scale in ORYX_SCALES:
        return list(ORYX_MODELS)
    raise unknown("scale", scale, [*AMOR_SCALES, *ORYX_SCALES])


def published_spec(model: str, scale: str) -> dict[str, Any]:
    """The resolved spec of a paper's model, by the paper's name and scale.

    AMOR's (`AMOR_MODELS`, and the two AMOR models with ` + distilled router`) at 180M, 440M, 1.5B; `Oryx-TM` and
    `Oryx-TG` at 130M, 380M, 810M, 1.4B. Raises `SpecError` for another name or scale.
    """
    if model not in models(scale):
        raise unknown("model", model, models(scale))
    if scale in ORYX_SCALES:
        spec = {"kind": "oryx", "vocab_size": ORYX_VOCABULARY, "mixer": ORYX_MODELS[model], **ORYX_SCALES[scale]}
        return resolve(spec)
    size = AMOR_SCALES[scale]
    common = {"vocab_size": AMOR_VOCABULARY, "d_model": size["d_model"], "d_ff": size["d_ff"]}
    layers = _layers(model.removesuffix(ROUTER).removeprefix("Amor-"), size["layers"])
    used = {name: params for name, params in _mixers(size["d_model"]).items() if name in layers}
    if "fused" in used:
        used = _mixers(size["d_model"]) | used
        used.pop("gdn")
    spec = {**common, "layers": layers, "mixers": used}
    if model.startswith("Amor"):
        trigger = {"kind": "router", "hidden": 512} if model.endswith(ROUTER) else "entropy"
        spec |= {"kind": "amor", "blocks": 3, "head_dim": 64, "trigger": trigger}
    return resolve(spec)


def _mixers(d_model: int) -> dict[str, dict[str, Any]]:
    return {
        "attention": {"head_dim": 64},
        "mamba2": {"expand": 2, "head_dim": 64, "d_state": 128, "conv": 4},
        "gdn": {"head_dim": 64, "heads": 3 * d_model // 256, "expand_v": 2.0, "conv": 4},
        "fused": {"attention": "attention", "recurrent": "mamba2", "combine": "map"},
    }


def _layers(name: str, depth: int) -> list[str]:
    if name == "Transformer":
        return ["attention"] * depth
    recurrent = "gdn" if name.startswith("Gated DeltaNet") else "mamba2"
    other, at = ("fused", _FUSED[depth]) if "Fused" in name else ("attention", _SERIAL[depth])
    hybrid = name.endswith("Hybrid")
    return [other if hybrid and layer in at else recurrent for layer in range(depth)]
