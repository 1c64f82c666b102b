"""Oryx's shared block: attention and a linear recurrence over the same keys and values, one output a token.

    k, v = act(conv(x W_k)), act(conv(x W_v))
    o_t  = softmax(q^a_t K^T / sqrt(d)) V   or   q^l_t S_t        as the mode of token t says
    y    = norm(o * SiLU(x W_g)) W_o   (Mamba-2)   or   (norm(o) * SiLU(x W_g)) W_o   (delta rules)

Queries are projected for each mixer and not convolved; keys and values are one projection for both, and both memories
take them in at every token, whichever mixer writes. Shapes: `B` sequences, `T` tokens, `H` heads of `d` channels.

Reference: Li et al., Oryx, arXiv 2605.28769, section 3 and appendix B.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .context import Context
from .kernels import Kernels, finish, full
from .layers import RMSNorm, ShortConvolution, rotary, rotate
from .mixers.attention import attend, empty_cache, extend_cache
from .mixers.base import Mixer, State
from .oryx_modes import Modes, Plan
from .oryx_recurrence import Recurrence, unit

STREAM = "oryx.modes"
"""The context's stream with the call's `Modes`."""

RECURRENCES = {
    "mamba2": "architectures.oryx_recurrence:SSD",
    "gdn": "architectures.oryx_recurrence:GatedDelta",
    "delta": "architectures.oryx_recurrence:Delta",
    "kda": "architectures.oryx_recurrence:KimiDelta",
    "gla": "architectures.oryx_recurrence:GatedLinear",
}


def build_recurrence(spec: Mapping[str, Any]) -> Recurrence:
    """The linear mixer of a resolved Oryx spec."""
    from .oryx_spec import OF_MIXER

    module, _, name = RECURRENCES[spec["mixer"]].partition(":")
    own = {field: spec[field] for field in OF_MIXER[spec["mixer"]]}
    return getattr(importlib.import_module(module), name)(spec["d_model"], spec["head_dim"], **own)


class OryxMixer(Mixer):
    """The mixer of layer `layer` of a resolved Oryx spec; the fields are explained in `architectures.oryx_spec`.

    State: `k`, `v` `(B, H, max_length, d)`, attention's own keys (rotated, of unit length if it is told so) and the
    values; `length`; `memory (B, H, d, d)` in float32 at least; `conv` the last inputs of the convolution.
    """

    def __init__(self, spec: Mapping[str, Any], layer: int, kernels: Kernels = "auto") -> None:
        super().__init__()
        width = spec["d_model"]
        self.layer, self.kernels = layer, kernels
        self.head_dim, self.heads = spec["head_dim"], width // spec["head_dim"]
        self.rope, self.rope_base = spec["rope"], spec["rope_base"]
        self.activation, self.query_activation = spec["activation"], spec["query_activation"]
        self.attention_l2, self.gating, self.full_norm = spec["attention_l2"], spec["gate"], spec["norm"] == "full"
        self.kv = nn.Linear(width, 2 * width, bias=False)
        self.attention_query = nn.Linear(width, width, bias=False)
        self.linear_query = nn.Linear(width, width, bias=False) if spec["queries"] == "own" else None
        silu = self.activation == "silu"
        self.conv = ShortConvolution(2 * width, spec["conv"], bias=False, silu=silu) if spec["conv"] else None
        self.recurrence = build_recurrence(spec)
        self.gate = nn.Linear(width, width, bias=False) if spec["gate"] != "none" else None
        self.norm = RMSNorm(width if self.full_norm else self.head_dim, spec["norm_eps"])
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        modes: Modes = context.streams[STREAM]
        plan = modes.plans[self.layer]
        start = 0 if state is None else state["length"]
        k, v, conv = self.associate(x, None if state is None else state.get("conv"))
        angles = None if self.rope == "none" else rotary(start, x.shape[1], self.head_dim, self.rope_base, x)
        k_linear = self._rotate(k, angles) if self.rope == "both" else k
        o: Tensor | None = None
        if plan.linear or state is not None:
            q = k_linear  # any query will do where no output of the recurrence is needed
            if plan.linear:
                q = self.query(self.attention_query if self.linear_query is None else self.linear_query, x)
                q = self._rotate(q, angles) if self.rope == "both" else q
            memory = None if state is None else state["memory"]
            o, memory = self.recurrence(self.run, x, q, k_linear, v, memory)
        if plan.attention or state is not None:
            k = k_linear if self.rope == "both" else self._rotate(k, angles)
            k = unit(k) if self.attention_l2 != "none" else k
            keys, values = k.transpose(1, 2), v.transpose(1, 2)
            if state is not None:
                keys, values = extend_cache(state, keys, values)
        if plan.attention:
            o = self._attention(x, keys, values, angles, plan, o)
        if state is not None:
            state = {**state, "memory": memory}
            if conv is not None:
                state["conv"] = conv
        assert o is not None
        return self.write(o, x), state

    def associate(self, x: Tensor, conv: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The shared keys and values `(B, T, H, d)` of both mixers, not rotated, and the convolution's state."""
        kv = self.kv(x)
        if self.conv is not None:
            kv, conv = self.conv(kv, conv, self.run)
        elif self.activation == "silu":
            kv = F.silu(kv)
        k, v = kv.unflatten(-1, (2 * self.heads, self.head_dim)).chunk(2, dim=2)
        return k, v, conv

    def query(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Queries `(B, T, H, d)` of one mixer, not rotated."""
        q = projection(x).unflatten(-1, (self.heads, self.head_dim))
        return F.silu(q) if self.query_activation == "silu" else q

    def write(self, o: Tensor, x: Tensor) -> Tensor:
        """Gate, norm and output projection of `o (B, T, H, d)`, the same for both mixers: `(B, T, D)`."""
        forms = {("before_norm", True): True, ("after_norm", False): False}
        if self.gate is not None and (self.gating, self.full_norm) in forms and finish.usable(o):
            z, before = self.gate(x).unflatten(-1, (self.heads, self.head_dim)), forms[self.gating, self.full_norm]
            return self.out(finish.fused(o, z, self.norm.weight, self.norm.eps, before=before))
        gate = None if self.gate is None else F.silu(full(self.gate(x)))
        y = full(o).flatten(2)
        if gate is not None and self.gating == "before_norm":
            y = y * gate
        y = self.norm(y) if self.full_norm else self.norm(y.unflatten(-1, (self.heads, self.head_dim))).flatten(2)
        if gate is not None and self.gating == "after_norm":
            y = y * gate
        return self.out(y.to(x.dtype))

    def _rotate(self, x: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        if angles is None:
            return x
        cos, sin = angles
        return rotate(x, cos[:, None], sin[:, None])

    def _attention(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        angles: tuple[Tensor, Tensor] | None,
        plan: Plan,
        linear: Tensor | None,
    ) -> Tensor:
        """Attention's output where the plan attends, `linear` elsewhere, `(B, T, H, d)`."""
        if plan.segments is None:
            o = self._attend(x, keys, values, angles)
            if plan.attends is None or linear is None:
                return o
            return torch.where(plan.attends[..., None, None], o, linear.to(o.dtype))
        assert linear is not None
        before = keys.shape[2] - x.shape[1]
        mixed = linear.clone()
        for segment in plan.segments:
            span, seen, rows = slice(segment.start, segment.stop), before + segment.stop, segment.rows
            part = None if angles is None else (angles[0][span], angles[1][span])
            inputs = (x[:, span], keys[:, :, :seen], values[:, :, :seen])
            if rows is None:
                mixed[:, span] = self._attend(*inputs, part).to(mixed.dtype)
            else:
                x_r, keys_r, values_r = (tensor[rows] for tensor in inputs)
                mixed[rows, span] = self._attend(x_r, keys_r, values_r, part).to(mixed.dtype)
        return mixed

    def _attend(self, x: Tensor, keys: Tensor, values: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        q = self._rotate(self.query(self.attention_query, x), angles)
        q = unit(q) if self.attention_l2 == "both" else q
        return attend(q.transpose(1, 2), keys, values).transpose(1, 2)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        wide = torch.promote_types(dtype, torch.float32)
        state = empty_cache((batch_size, self.heads, max_length, self.head_dim), device, dtype)
        state["memory"] = torch.zeros(batch_size, self.heads, self.head_dim, self.head_dim, device=device, dtype=wide)
        if self.conv is not None:
            state["conv"] = self.conv.init_state(batch_size, device=device, dtype=dtype)
        return state
