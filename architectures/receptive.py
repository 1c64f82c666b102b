"""How many tokens a model's prediction can depend on, from its spec. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .spec import resolve


def receptive_field(spec: Mapping[str, Any]) -> int | None:
    """Tokens, the current one included, that a prediction can depend on; None when there is no bound.

    A stack of N windows of w tokens reaches N (w - 1) + 1. Recurrences, full attention, plug-ins and models of other
    kinds have no bound.
    """
    spec = resolve(spec)
    if spec["kind"] != "stack":
        return None
    total = 1
    for name in spec["layers"]:
        reach = _reach(name, spec["mixers"])
        if reach is None:
            return None
        total += reach
    return total


def _reach(name: str, mixers: Mapping[str, Mapping[str, Any]]) -> int | None:
    """How many earlier tokens one layer's output depends on."""
    params = mixers[name]
    kind = params["kind"]
    if kind == "sliding":
        return params["window"] - 1
    if kind in ("mlp", "gmu"):
        return 0
    parts = {
        "sequential": ("first", "second"),
        "parallel": ("attention", "recurrent"),
        "fused": ("attention", "recurrent"),
    }
    if kind == "parallel" and params["gate"] == "block":
        return _reach(params[params["block_choice"]], mixers)
    if kind not in parts:
        return None
    reaches = [_reach(params[part], mixers) for part in parts[kind]]
    known = [reach for reach in reaches if reach is not None]
    if len(known) < len(reaches):
        return None
    return sum(known) if kind == "sequential" else max(known)
