"""Accounting as rows of a table: the papers' models at a scale, or any named specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..published import AMOR_LENGTH, AMOR_SCALES, models, published_spec
from .cost import NoFormula
from .count import forward_flops, parameters, state_bytes
from .models import Spec
from .oryx import active_parameters


def row(name: str, spec: Spec, *, lengths: Sequence[int] = (1024, 65536), flops_length: int = 1024) -> dict[str, Any]:
    """One model as plain data; None where there is no formula.

    Parameters, stored and active; state bytes at each length, with 4-byte numbers; FLOPs per token over `flops_length`
    tokens by both rules.
    """
    values: dict[str, Any] = {"model": name, "parameters": None, "active_parameters": None}
    values |= {f"state_bytes_{length}": None for length in lengths}
    values |= {"flops_length": flops_length, "forward_flops": None, "published_flops": None}
    try:
        values["parameters"], values["active_parameters"] = parameters(spec), active_parameters(spec)
        values |= {f"state_bytes_{length}": state_bytes(spec, length) for length in lengths}
        values["forward_flops"] = forward_flops(spec, flops_length)
        values["published_flops"] = forward_flops(spec, flops_length, rule="published")
    except NoFormula:
        pass
    return values


def rows(specs: Mapping[str, Spec], *, lengths: Sequence[int] = (1024, 65536), flops_length: int = 1024) -> list[dict]:
    """`row` for each named spec."""
    return [row(name, spec, lengths=lengths, flops_length=flops_length) for name, spec in specs.items()]


def scale_rows(scale: str) -> list[dict[str, Any]]:
    """The papers' models at `scale`, as in `published.models`, with 2-byte caches and FLOPs at the papers' context.

    Raises `SpecError` for an unknown scale, naming the nearest.
    """
    length = AMOR_LENGTH if scale in AMOR_SCALES else 2048
    table = []
    for name in models(scale):
        spec = published_spec(name, scale)
        values = row(name, spec, lengths=(), flops_length=length)
        values |= {f"state_bytes_{n}": state_bytes(spec, n, dtype_bytes=2) for n in (length, 131072)}
        table.append(values)
    return table
