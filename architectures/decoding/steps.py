"""One token through each kind of layer, written over buffers that exist already.

A step is made from a module and its decoding state, whose tensors it takes over, and is called with the residual stream
`x (B, D)`, which it changes in place. Recurrent states are updated where they are; convolutions keep theirs as a ring.
`MIXERS` has the steps by the class of the mixer.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SpecError
from ..layers import RMSNorm, ShortConvolution
from ..mixers.attention import Attention
from ..mixers.base import Mixer, State
from ..mixers.fused import BorrowedAttention, Fused
from ..mixers.gated_delta import GatedDeltaNet
from ..mixers.mamba2 import Mamba2
from ..mixers.mlp import SwiGLU
from ..oryx_block import OryxMixer
from .plain import Angles, Norm

Step = Callable[[Tensor], None]


class Desk:
    """What the steps of one decoder share: the operations, the new token's position, scratch buffers and angles."""

    def __init__(self, ops: ModuleType, batch: int, position: Tensor, dtype: torch.dtype) -> None:
        self.ops, self.batch, self.position, self.dtype = ops, batch, position, dtype
        self._buffers: dict[tuple[Any, ...], Tensor] = {}
        self._angles: dict[tuple[int, float], tuple[Angles, Tensor, Tensor]] = {}

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A scratch tensor `(B, *shape)`; the same one for the same name, shape and dtype."""
        key = (name, shape, dtype or self.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(self.batch, *shape, device=self.position.device, dtype=key[2])
        return self._buffers[key]

    @property
    def wide(self) -> torch.dtype:
        """float32 at least."""
        return torch.promote_types(self.dtype, torch.float32)

    def angles(self, width: int, base: float | None) -> Angles | None:
        """The buffers with the new token's angles; None without a rotation."""
        if base is None:
            return None
        if (width, base) not in self._angles:
            exponent = torch.arange(0, width, 2, device=self.position.device, dtype=self.wide) / width
            rate = base**-exponent
            angles = Angles(torch.zeros_like(rate), torch.zeros_like(rate))
            self._angles[width, base] = angles, rate, torch.zeros_like(rate)
        return self._angles[width, base][0]

    def turn(self) -> None:
        """Sets all angles for the position."""
        for (cos, sin), rate, angle in self._angles.values():
            torch.mul(self.position, rate, out=angle)
            torch.cos(angle, out=cos)
            torch.sin(angle, out=sin)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def norm_of(module: RMSNorm) -> Norm:
    """The norm as an operation's argument."""
    return Norm(module.weight.detach(), module.eps)


def take(state: State, name: str) -> Tensor:
    """A tensor of a state, contiguous there from now on."""
    state[name] = state[name].contiguous()
    return state[name]


def ring(state: State, seen: int) -> Tensor:
    """A convolution's state as a ring: the input at position p in slot p mod K, for the last K of `seen` tokens."""
    kept = state["conv"]
    width = kept.shape[1]
    places = torch.arange(seen - width, seen, device=kept.device) % width
    turned = torch.empty_like(kept)
    turned[:, places] = kept
    state["conv"] = turned
    return turned


def hand_back(state: State, seen: int) -> None:
    """A layer's state as its module keeps it after `seen` tokens: rings put in order, lengths up to date."""
    for name, value in state.items():
        if isinstance(value, dict):
            hand_back(value, seen)
        elif name == "length":
            state[name] = seen
        elif name == "conv":
            width = value.shape[1]
            state[name] = value[:, torch.arange(seen - width, seen, device=value.device) % width]


def _convolution(
    desk: Desk, module: ShortConvolution | None, state: State, seen: int, channels: int, *, silu: bool
) -> Callable[[Tensor], Tensor]:
    out = desk.buffer("convolved", channels)
    if module is None:
        if silu:
            raise SpecError("decoding: conv 0 has no fused step; nearest: conv of 1 or more")
        return lambda x: x
    kept, weight = ring(state, seen), module.weight.detach()
    bias = None if module.bias is None else module.bias.detach()

    def run(x: Tensor) -> Tensor:
        desk.ops.convolve(x, weight, bias, kept, out, desk.position, silu=silu)
        return out

    return run


def mlp_step(desk: Desk, mlp: SwiGLU | None, norm: RMSNorm | None) -> Step:
    """`x + mlp(norm(x))`."""
    if mlp is None or norm is None:
        return lambda x: None
    up, down, before = mlp.up.weight.detach(), mlp.down.weight.detach(), norm_of(norm)
    hidden = desk.buffer("hidden", down.shape[1])

    def step(x: Tensor) -> None:
        desk.ops.project(x, up, hidden, norm=before, swiglu=True)
        desk.ops.project(hidden, down, x, residual=True)

    return step


def attention_step(desk: Desk, mixer: Attention, norm: RMSNorm, state: State, seen: int) -> Step:
    """`x + attention(norm(x))` over the filled cache."""
    keys, values = take(state, "k"), take(state, "v")
    heads, width = mixer.heads, mixer.head_dim
    qkv, out, before = mixer.qkv.weight.detach(), mixer.out.weight.detach(), norm_of(norm)
    projected, attended = desk.buffer("qkv", 3 * heads, width), desk.buffer("attended", heads * width)
    q, k, v = projected.chunk(3, dim=1)
    flat, angles = projected.flatten(1), desk.angles(width, mixer.rope_base)

    def step(x: Tensor) -> None:
        desk.ops.project(x, qkv, flat, norm=before)
        desk.ops.remember(k, v, keys, values, desk.position, angles=angles)
        desk.ops.attend(q, keys, values, attended, desk.position, angles=angles)
        desk.ops.project(attended, out, x, residual=True)

    return step


def mamba2_step(
    desk: Desk,
    mixer: Mamba2,
    norm: RMSNorm,
    state: State,
    seen: int,
    beside: Callable[[Tensor, Norm], Step] | None = None,
) -> Step:
    """`x + mamba2(norm(x))`. `beside`, given the projected and the convolved input, makes what runs next to it."""
    inner, size, heads = mixer.inner, mixer.d_state, mixer.heads
    kept, before = take(state, "ssm"), norm_of(norm)
    weight, out, after = mixer.project.weight.detach(), mixer.out.weight.detach(), norm_of(mixer.norm)
    projected = desk.buffer("projected", len(weight))
    z, mixed, dt = projected.split([inner, inner + 2 * size, heads], dim=-1)
    convolve = _convolution(desk, mixer.conv, state, seen, inner + 2 * size, silu=True)
    y = desk.buffer("y", inner, dtype=desk.wide)
    own = {"log_a": mixer.A_log.detach(), "dt_bias": mixer.dt_bias.detach(), "skip": mixer.D.detach()}
    other: Step | None = None
    if beside is not None:
        other = beside(desk.buffer("convolved", inner + 2 * size), before)

    def step(x: Tensor) -> None:
        desk.ops.project(x, weight, projected, norm=before)
        u, b, c = convolve(mixed).split([inner, size, size], dim=-1)
        desk.ops.ssd(u.unflatten(-1, (heads, -1)), b, c, dt, kept, y, gate=z, **own)
        if other is not None:
            other(x)
        desk.ops.project(y, out, x, norm=after, residual=True)

    return step


def fused_step(desk: Desk, mixer: Fused, norm: RMSNorm, state: State, seen: int) -> Step:
    """Mamba-2 and attention over its keys and values, both added."""
    borrowed, recurrent = mixer.first, mixer.second
    if not isinstance(borrowed, BorrowedAttention) or not isinstance(recurrent, Mamba2):
        raise SpecError(f"decoding: fused layers with combine {mixer.combine!r} have no fused step; nearest: 'map'")
    own = state["first"]
    keys, values = take(own, "k"), take(own, "v")
    width, heads = borrowed.head_dim, borrowed.width // borrowed.head_dim
    query, angles = borrowed.query.weight.detach(), desk.angles(width, borrowed.rope_base)
    asked = desk.buffer("query", heads, width)
    mixed = desk.buffer("mixed", heads * width)

    def beside(convolved: Tensor, before: Norm) -> Step:
        k, v = convolved[:, : 2 * borrowed.width].unflatten(-1, (2 * heads, width)).chunk(2, dim=1)

        def step(x: Tensor) -> None:
            desk.ops.project(x, query, asked.flatten(1), norm=before)
            desk.ops.remember(k, v, keys, values, desk.position, angles=angles)
            desk.ops.attend(asked, keys, values, mixed, desk.position, angles=angles)

        return step

    run = mamba2_step(desk, recurrent, norm, state["second"], seen, beside)

    def step(x: Tensor) -> None:
        run(x)
        x.add_(mixed)

    return step


def gated_delta_step(desk: Desk, mixer: GatedDeltaNet, norm: RMSNorm, state: State, seen: int) -> Step:
    """`x + gdn(norm(x))`."""
    heads, width, value = mixer.heads, mixer.head_dim, mixer.value_dim
    memory, before = take(state, "memory"), norm_of(norm)
    weight, out, after = mixer.project.weight.detach(), mixer.out.weight.detach(), norm_of(mixer.norm)
    projected = desk.buffer("projected", len(weight))
    mixed, gate, a, b = projected.split([mixer.mixed, mixer.value_width, heads, heads], dim=-1)
    convolve = _convolution(desk, mixer.conv, state, seen, mixer.mixed, silu=True)
    y = desk.buffer("o", mixer.value_width)
    own = {"log_a": mixer.A_log.detach(), "dt_bias": mixer.dt_bias.detach(), "beta_scale": mixer.beta_scale}

    def step(x: Tensor) -> None:
        desk.ops.project(x, weight, projected, norm=before)
        keys, v = convolve(mixed).split([2 * mixer.key_width, mixer.value_width], dim=-1)
        q, k = keys.unflatten(-1, (2 * heads, width)).chunk(2, dim=1)
        desk.ops.delta(q, k, v.unflatten(-1, (heads, value)), b, a, memory, y, norm=after, gate=gate, **own)
        desk.ops.project(y, out, x, residual=True)

    return step


def pack(linears: list[nn.Linear]) -> Tensor:
    """The weights of several maps of one input as one tensor `(sum of outputs, inputs)`.

    The maps keep their values and become views of it, so nothing is held twice.
    """
    packed = torch.cat([linear.weight.detach() for linear in linears])
    for linear, part in zip(linears, packed.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    return packed


MIXERS: dict[type[Mixer], Callable[..., Step]] = {
    Attention: attention_step,
    Mamba2: mamba2_step,
    GatedDeltaNet: gated_delta_step,
    Fused: fused_step,
}


def mixer_step(desk: Desk, mixer: Mixer, norm: RMSNorm, state: State, seen: int, mode: str) -> Step:
    """The step of a layer; `mode` is Oryx's. Raises `SpecError` for a mixer that has none."""
    from .oryx import oryx_step

    if isinstance(mixer, OryxMixer):
        return oryx_step(desk, mixer, norm, state, seen, mode)
    if mixer.stream is not None or type(mixer) not in MIXERS:
        names = ", ".join(cls.__name__ for cls in (*MIXERS, OryxMixer))
        what = type(mixer).__name__ if mixer.stream is None else "a layer that others read"
        raise SpecError(f"decoding: {what} has no fused step; those that have: {names}")
    return MIXERS[type(mixer)](desk, mixer, norm, state, seen)
