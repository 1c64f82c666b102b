"""The error of every bad spec, and the checks that word it: key, value and the nearest valid choice."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


class SpecError(ValueError):
    """A spec that no model can be built from; the message is one line naming key, value and nearest valid choice."""


def unknown(key: str, value: object, known: Iterable[str]) -> SpecError:
    """The error for a `value` under `key` that is none of the `known` names."""
    names = sorted(known)
    hint = f"; nearest: {nearest_name(value, names)!r}" if names else ""
    return SpecError(f"{key}: unknown {value!r}{hint} (known: {', '.join(names) or 'none'})")


def nearest_name(value: object, known: Iterable[str]) -> str:
    """The most similar of the `known` names, of which there is one at least."""
    return difflib.get_close_matches(str(value), sorted(known), n=1, cutoff=0.0)[0]


def nearest_divisor(value: int, total: int, *, even: bool = False) -> int:
    """The divisor of `total` nearest to `value`, the smaller of two; among even ones if asked and there are any."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    wanted = [n for n in divisors if n % 2 == 0] if even else divisors
    return min(wanted or divisors, key=lambda n: (abs(n - value), n))


def odd_head(key: str, head_dim: int, d_model: int) -> SpecError:
    """RoPE turns pairs of channels: names the nearest even head size, or what else to change where there is none."""
    if d_model % 2:
        return SpecError(f"{key}: {head_dim} is odd, which RoPE cannot rotate; nearest: d_model {d_model + 1}")
    near = nearest_divisor(head_dim, d_model, even=True)
    return SpecError(f"{key}: {head_dim} is odd, which RoPE cannot rotate; nearest: {near}")


Kind = Literal["int", "float", "bool", "str", "mixer"]


@dataclass(frozen=True)
class Field:
    """One parameter: its type, default and range.

    `default` is a value, or a function of `(d_model, parameters already resolved)`. `optional` admits null. A field of
    kind `mixer` names another mixer of the same spec.
    """

    kind: Kind
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    required: bool = False

    def check(self, key: str, value: Any) -> Any:
        """`value` in its canonical plain form. Raises `SpecError`."""
        if value is None and self.optional:
            return None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise SpecError(f"{key}: {value!r} is not true or false")
            return value
        if self.kind in ("str", "mixer"):
            if not isinstance(value, str):
                raise SpecError(f"{key}: {value!r} is not a name")
            if self.choices and value not in self.choices:
                raise unknown(key, value, self.choices)
            return value
        if not number or not math.isfinite(value):
            raise SpecError(f"{key}: {value!r} is not a{'n integer' if self.kind == 'int' else ' finite number'}")
        if self.kind == "int" and value != int(value):
            raise SpecError(f"{key}: {value!r} is not an integer; nearest: {round(value)}")
        value = int(value) if self.kind == "int" else float(value)
        for bound, below in ((self.minimum, True), (self.maximum, False)):
            if bound is not None and (value < bound if below else value > bound):
                raise SpecError(f"{key}: {value!r} is {'below' if below else 'above'} {bound}; nearest: {bound}")
        return value


def resolve_fields(
    where: str, fields: Mapping[str, Field], given: Mapping[str, Any], d_model: int, *, reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Checks `given` against `fields` and fills in the defaults, in the order of `fields`.

    Raises `SpecError` for an unknown key, a missing required one, or a value out of range.
    """
    for key in given:
        if key not in fields and key not in reserved:
            raise unknown(where or "spec", key, list(fields) + list(reserved))
    resolved: dict[str, Any] = {}
    for name, field in fields.items():
        key = f"{where}.{name}" if where else name
        if name in given:
            resolved[name] = field.check(key, given[name])
            continue
        if field.required:
            raise SpecError(f"{key}: missing")
        default: Any = field.default
        if isinstance(default, Callable):  # type: ignore[arg-type]
            default = default(d_model, resolved)
        resolved[name] = field.check(key, default)
    return resolved
