"""One token through an Oryx block: both memories take it in, and one of them writes the output.

The mode is fixed for a decoder, so that the query of the memory that does not write is not projected.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import SpecError
from ..layers import RMSNorm
from ..mixers.base import State
from ..oryx_block import OryxMixer
from ..oryx_recurrence import SSD, GatedDelta, Recurrence
from .steps import Desk, Step, _convolution, norm_of, pack, take


def _check(mixer: OryxMixer) -> None:
    """What the published models do not have and these steps neither."""
    published: dict[type[Recurrence], tuple[str, bool, str, str]] = {
        SSD: ("before_norm", True, "both", "identity"),
        GatedDelta: ("after_norm", False, "attention", "silu"),
    }
    kind = type(mixer.recurrence)
    found = (mixer.gating, mixer.full_norm, mixer.rope, mixer.activation)
    if published.get(kind) != found or mixer.query_activation != mixer.activation or mixer.attention_l2 != "none":
        raise SpecError(
            f"decoding: Oryx with {kind.__name__}, gate, norm, rope and activation {found} has no fused step; "
            "nearest: Oryx-TM's or Oryx-TG's own"
        )


def oryx_step(desk: Desk, mixer: OryxMixer, norm: RMSNorm, state: State, seen: int, mode: str) -> Step:
    """`x + mixer(norm(x))` in mode `attention` or `linear`. Raises `SpecError` for another mode or an ablated block."""
    if mode not in ("attention", "linear"):
        raise SpecError(f"decoding: mode {mode!r} is neither 'attention' nor 'linear'; nearest: 'attention'")
    _check(mixer)
    recurrence, heads, width = mixer.recurrence, mixer.heads, mixer.head_dim
    size, linear = heads * width, mode == "linear"
    assert isinstance(recurrence, (SSD, GatedDelta))
    assert mixer.gate is not None
    scalars = recurrence.step if isinstance(recurrence, SSD) else recurrence.strengths
    # Linear mode reads the rows from the first on, attention mode those to the last: one sweep either way.
    maps = [mixer.kv, mixer.gate, scalars, mixer.attention_query]
    if mixer.linear_query is not None:
        maps.insert(0, mixer.linear_query)
    packed = pack(maps)
    first = size if mixer.linear_query is not None else 0
    shared = linear and mixer.linear_query is None
    start, stop = (0 if linear else first), (len(packed) if shared or not linear else len(packed) - size)
    weight = packed[start:stop]
    projected = desk.buffer("oryx", len(weight))
    rest = projected[:, first - start :]
    kv, gate, numbers = rest[:, : 3 * size + scalars.out_features].split([2 * size, size, scalars.out_features], dim=-1)
    asked = projected[:, :size] if linear and not shared else projected[:, -size:]
    q = asked.unflatten(-1, (heads, width))
    keys, values, memory = take(state, "k"), take(state, "v"), take(state, "memory")
    convolve = _convolution(desk, mixer.conv, state, seen, 2 * size, silu=mixer.activation == "silu")
    before, after, out = norm_of(norm), norm_of(mixer.norm), mixer.out.weight.detach()
    angles = desk.angles(width, mixer.rope_base)
    ssd = isinstance(recurrence, SSD)
    y = desk.buffer("y" if ssd else "o", size, dtype=desk.wide if ssd else None)
    own: dict[str, Any] = {"log_a": recurrence.A_log.detach(), "dt_bias": recurrence.dt_bias.detach(), "gate": gate}
    if isinstance(recurrence, SSD):
        own["skip"] = None if recurrence.D is None else recurrence.D.detach()
    else:
        own |= {"beta_scale": recurrence.beta_scale, "norm": after, "silu_query": True}

    def advance(k: Tensor, v: Tensor) -> None:
        if ssd:
            desk.ops.ssd(v, k, q, numbers, memory, y, angles=angles, read=linear, **own)
        else:
            decay, strength = numbers.chunk(2, dim=-1)
            desk.ops.delta(q, k, v, strength, decay, memory, y, read=linear, **own)

    def step(x: Tensor) -> None:
        desk.ops.project(x, weight, projected, norm=before)
        k, v = convolve(kv).unflatten(-1, (2 * heads, width)).chunk(2, dim=1)
        advance(k, v)
        desk.ops.remember(k, v, keys, values, desk.position, angles=angles)
        if not linear:
            head_norm = None if ssd else after
            desk.ops.attend(
                q, keys, values, y, desk.position, angles=angles, silu_query=not ssd, norm=head_norm, gate=gate
            )
        desk.ops.project(y, out, x, norm=after if ssd else None, residual=True)

    return step
