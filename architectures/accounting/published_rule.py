"""Forward FLOPs as the papers count them; they reproduce the printed figures and leave out what the papers left out.

AMOR's rule (tables 9 and 15 of arXiv 2602.13215, inferred from the 20 printed values): attention over all L tokens
without the causal half, 5 FLOPs a score for softmax; Mamba-2 without its output projection and without reading its
state; Gated DeltaNet's projections alone.

Oryx's rule (appendix C of arXiv 2605.28769): state update, linear output and attention output of the mixers, in chunks
of C tokens, to which the products with the weights are added here.
"""

from __future__ import annotations

from typing import Any

from .cost import NoFormula, Params
from .mixers import mixer_cost
from .models import Spec, gate_cost, head_cost, oryx_cost
from .oryx_mixing import attention_output, linear_output, linear_state_update


def published_flops(spec: Spec, length: int, *, linear_fraction: float = 0.75, chunk: int = 128) -> float:
    """Per token over `length` tokens, every AMOR block dense. Raises `NoFormula` where the papers have no rule."""
    kind = spec["kind"]
    if kind == "oryx":
        return _oryx(spec, length, linear_fraction, chunk)
    if kind not in ("stack", "amor"):
        raise NoFormula(f"rule: 'published' has nothing for kind {kind!r}; nearest: 'exact'")
    d, layers = spec["d_model"], list(spec["layers"])
    total = head_cost(spec).projections + 6 * len(layers) * d * spec["d_ff"]
    if kind == "amor":
        if spec["placement"] == "serial":
            layers = [name for i, name in enumerate(layers) if i not in spec["at"]]
        block = _attention(d, spec["head_dim"], length) + gate_cost(spec["trigger"], spec).projections
        total += spec["blocks"] * (block + (6 * d * spec["d_ff"] if spec["mlp"] else 0))
    return total + sum(_mixer(name, d, spec["mixers"], length) for name in layers)


def _attention(d: int, head_dim: int, length: int) -> float:
    return 8 * d * d + 4 * d * length + 5 * (d // head_dim) * length


def _mixer(name: str, d: int, mixers: dict[str, Any], length: int) -> float:
    p: Params = mixers[name]
    if p["kind"] == "attention":
        return _attention(d, p["head_dim"], length)
    if p["kind"] == "mamba2":
        inner, n = p["expand"] * d, p["d_state"]
        return 2 * d * (2 * inner + 2 * n + inner // p["head_dim"]) + 2 * inner * n
    if p["kind"] == "gdn":
        return mixer_cost(name, d, mixers, length).projections
    if p["kind"] == "fused" and p["combine"] == "map":
        core = _attention(d, mixers[p["attention"]]["head_dim"], length) - 6 * d * d
        return core + _mixer(p["recurrent"], d, mixers, length)
    raise NoFormula(f"rule: 'published' has nothing for mixer {name!r}; nearest: 'exact'")


def _oryx(spec: Spec, length: int, linear_fraction: float, chunk: int) -> float:
    width, heads = spec["head_dim"], spec["d_model"] // spec["head_dim"]
    total = oryx_cost(spec, length, linear_fraction).projections
    for mode in spec["modes"]:
        share = {"follow": linear_fraction, "attention": 0.0, "linear": 1.0}[mode]
        mixing = linear_state_update(length, width, width, chunk)
        mixing += linear_output(length, width, width, chunk, share)
        mixing += attention_output(length, width, width, share)
        total += heads * mixing / length
    return total
