"""Two models made equal in parameters, FLOPs or state, by the dial that changes little else.

Parameters and FLOPs are matched by the width of the MLPs (`d_ff`); state bytes by the size of each mixer's memory:
the window of sliding attention, Mamba-2's d_state, the value channels of the delta rules and of gated linear
attention, the width of RG-LRU, Oryx's head_dim.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ..catalogue import MIXERS
from ..errors import SpecError, unknown
from ..spec import resolve
from .count import forward_flops, parameters, state_bytes
from .models import Spec

By = Literal["parameters", "state_bytes", "forward_flops"]


class Match(NamedTuple):
    """A matched spec and how far off it is."""

    spec: dict[str, Any]
    """Resolved; equal to the given one but for `dials`."""
    by: By
    value: float
    """What the matched spec has."""
    target: float
    """What was aimed at."""
    dials: dict[str, Any]
    """The dials that were changed and their new values, by dotted key."""

    @property
    def residual(self) -> float:
        """`value / target - 1`."""
        return self.value / self.target - 1


def measure(spec: Spec, by: By, length: int) -> float:
    """The quantity that `by` names, at context length `length` (which parameters do not depend on)."""
    if by == "parameters":
        return parameters(spec)
    if by == "state_bytes":
        return state_bytes(spec, length)
    if by == "forward_flops":
        return forward_flops(spec, length)
    raise unknown("match", by, ["parameters", "state_bytes", "forward_flops"])


def match(spec: Spec, target: Spec, by: By, length: int) -> dict[str, Any]:
    """The resolved spec of `matched`, for those who do not ask how far off it is."""
    return matched(spec, target, by, length).spec


def matched(spec: Spec, target: Spec, by: By, length: int) -> Match:
    """`spec` with its dials set so that it is as near to `target` as they allow, the first of two equally near.

    Raises `SpecError` where there is nothing to turn: a model without MLP, or one whose state has no size of its own.
    """
    spec, goal = resolve(spec), measure(target, by, length)
    if measure(spec, by, length) == goal:
        return Match(spec, by, goal, goal, {})
    candidates = _state_dials(spec) if by == "state_bytes" else _mlp_width(spec, by)
    best = _search(candidates, goal, lambda s: measure(s, by, length))
    return Match(best, by, measure(best, by, length), goal, _changes(spec, best))


class _Dials(NamedTuple):
    """`at(n)` is the spec at setting n = 1, 2, ..., `last` or None for no end; what is measured never falls with n."""

    at: Callable[[int], dict[str, Any]]
    last: int | None


def _search(dials: _Dials, goal: float, value: Callable[[Spec], float]) -> dict[str, Any]:
    """The setting nearest to `goal`, by doubling and then halving."""
    low, high = 1, 2
    while value(dials.at(high)) < goal and (dials.last is None or high < dials.last) and high < 1 << 40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(dials.at(middle)) < goal else (low, middle)
    return min(dials.at(low), dials.at(high), key=lambda s: abs(value(s) - goal))


def _mlp_width(spec: dict[str, Any], by: By) -> _Dials:
    if not spec.get("d_ff"):
        raise SpecError(f"match: {by} is matched by d_ff, and this model has no MLP; nearest: d_ff of 1 or more")
    return _Dials(lambda n: {**spec, "d_ff": n}, None)


_MEMORY: dict[str, tuple[str, Callable[[int, dict[str, Any]], float]]] = {
    "sliding": ("window", lambda d, p: 1),
    "mamba2": ("d_state", lambda d, p: 1),
    "gdn": ("expand_v", lambda d, p: 1 / p["head_dim"]),
    "delta": ("expand_v", lambda d, p: 1 / p["head_dim"]),
    "kda": ("expand_v", lambda d, p: 1 / p["head_dim"]),
    "gla": ("expand_v", lambda d, p: p["heads"] / d),
    "rglru": ("width", lambda d, p: p["blocks"]),
}
"""Each mixer's memory dial and the smallest change that it admits."""
STEPS = 64
"""Settings to a doubling where several dials move together; one dial alone moves by its smallest change."""


def _state_dials(spec: dict[str, Any]) -> _Dials:
    """All memories of the model scaled by one factor."""
    if spec["kind"] == "oryx":
        return _oryx_heads(spec)
    mixers, d = spec.get("mixers", {}), spec.get("d_model", 0)
    moving = {name: p for name, p in mixers.items() if p["kind"] in _MEMORY}
    if not moving:
        sizes = ", ".join(sorted(_MEMORY))
        raise SpecError(f"match: no layer has a state of its own size; those that have: {sizes}, oryx")
    units = {name: _MEMORY[p["kind"]][1](d, p) for name, p in moving.items()}
    starts = {name: p[_MEMORY[p["kind"]][0]] / units[name] for name, p in moving.items()}

    def at(n: int) -> dict[str, Any]:
        changed = copy.deepcopy(spec)
        for name, p in moving.items():
            field = _MEMORY[p["kind"]][0]
            count = n if len(moving) == 1 else max(1, round(starts[name] * n / STEPS))
            changed["mixers"][name][field] = _exact(p["kind"], field, count, units[name])
        return changed

    return _Dials(at, None)


def _exact(kind: str, field: str, count: int, unit: float) -> float:
    """`count` units as the catalogue's type, such that dividing by the unit gives `count` back exactly."""
    if MIXERS[kind].fields[field].kind == "int":
        return round(count * unit)
    value = count * unit
    neighbours = (value, math.nextafter(value, math.inf), math.nextafter(value, 0.0))
    return next((v for v in neighbours if v / unit == count), value)


def _oryx_heads(spec: dict[str, Any]) -> _Dials:
    d = spec["d_model"]
    even = spec["rope"] != "none"
    sizes = [n for n in range(1, d + 1) if d % n == 0 and not (even and n % 2)]
    return _Dials(lambda n: {**spec, "head_dim": sizes[min(n, len(sizes)) - 1]}, len(sizes))


def _changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in after.items():
        if isinstance(value, dict):
            changed |= _changes(before[key], value, f"{prefix}{key}.")
        elif value != before[key]:
            changed[prefix + key] = value
    return changed
