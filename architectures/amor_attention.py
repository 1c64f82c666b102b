"""AMOR's attention: keys and values everywhere, queries where the gate fires.

    u_t = g_t alpha * W_O softmax(q_t K_{<=t} / sqrt(d)) V_{<=t},   q, K, V from h~, RoPE on q and K

Three forms of the same function: `dense` computes every query and masks the update (training), `sparse` gathers the
firing positions, `step` is one token after a cache. Where the gate is shut, neither the query's projection, rotation,
scores and values nor the output projection run in the last two.

Shapes: `B` sequences, `T` tokens after `start` earlier ones, `S = start + T` keys, `H` heads of `d` channels.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, eqs. 5 to 8 and section 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .amor_decode import Cached, decode
from .amor_trigger import Gate, make_trigger
from .context import Context
from .kernels.softmax import scaled_dot_product
from .layers import rotary, rotate
from .mixers.attention import attend
from .mixers.base import Mixer, State
from .mixers.partial import attend_chunk

Mode = Literal["dense", "sparse"]
Angles = tuple[Tensor, Tensor]


class Skips:
    """What gates saved in decoding: counters on the device, int64 scalars, read when asked for.

    `queries`: query (and output) projections that were not computed, and `scores`: products of a query and a key in one
    head; `*_total` what always-on attention would have computed.
    """

    def __init__(self, device: torch.device) -> None:
        self.queries, self.queries_total, self.scores, self.scores_total = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)
        )

    def count(self, fire: Tensor, per_query: Tensor | int, skipped: bool) -> None:
        """Adds positions `fire`, each with `per_query` score products; `skipped`: whether shut ones cost nothing."""
        every = torch.as_tensor(per_query, device=fire.device).expand(fire.shape)
        self.queries_total += fire.numel()
        self.scores_total += every.sum()
        if skipped:
            self.queries += (~fire).sum()
            self.scores += (every * ~fire).sum()

    def read(self) -> dict[str, int]:
        """The counters as numbers; waits for the device."""
        return {name: int(value) for name, value in vars(self).items()}


class GatedAttention(Mixer):
    """Maps normalised features `(B, T, D)` to the update of the residual, zero where the gate is shut.

    `number` counts the blocks from 0. The gate's decision and score are left in `context.extras["fields"]`, its
    statistics in `context.extras["metrics"]`, under `gate.NUMBER.*`.
    """

    own_initialisation = True

    def __init__(self, spec: Mapping[str, Any], number: int) -> None:
        super().__init__()
        d_model = spec["d_model"]
        self.number, self.head_dim, self.rope_base = number, spec["head_dim"], spec["rope_base"]
        self.heads = d_model // self.head_dim
        self.mode: Mode = "dense"
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.alpha: nn.Parameter | None = None
        if spec["alpha"] == "channel":
            self.alpha = nn.Parameter(torch.full((d_model,), float(spec["alpha_init"])))
        self.alpha_floor = spec["alpha_floor"]
        self.trigger = make_trigger(spec["trigger"], d_model, spec["vocab_size"], number)
        for linear in (self.query, self.key_value):
            nn.init.normal_(linear.weight, std=spec["init_std"])
        if spec["output_init"] == "zero":
            nn.init.zeros_(self.out.weight)
        else:
            nn.init.normal_(self.out.weight, std=spec["init_std"])

    def scale(self) -> Tensor | None:
        """`sigmoid(max(a, floor)) (D,)`, None where the update is added as it is."""
        if self.alpha is None:
            return None
        raw = self.alpha if self.alpha_floor is None else self.alpha.clamp(min=self.alpha_floor)
        return torch.sigmoid(raw)

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        start = 0 if state is None else state["length"]
        gate = self.trigger(x, context, start)
        angles = None
        if self.rope_base is not None:
            angles = rotary(start, x.shape[1], self.head_dim, self.rope_base, x)
        keys, values = self._remember(x, angles, start, state)
        if state is not None and x.shape[1] == 1:
            cached = Cached(state["k"], state["v"], start + 1)
            attended, skipped = decode(self.query, self.out, x[:, 0], gate.fire[:, 0], cached, angles)
            update = self._weigh(attended[:, None], gate.weight)
        elif self.mode == "sparse":
            update, skipped = self._sparse(x, gate, keys, values, angles, start), True
        else:
            update, skipped = self._dense(x, gate, keys, values, angles), False
        self._report(gate, context, start, skipped)
        return update, state

    def _remember(self, x: Tensor, angles: Angles | None, start: int, state: State | None) -> tuple[Tensor, Tensor]:
        """Rotated keys and values of all tokens so far, `(B, H, S, d)`; those of `x` are written into the cache."""
        heads = self.key_value(x).unflatten(-1, (2 * self.heads, self.head_dim)).transpose(1, 2)
        k, v = heads.chunk(2, dim=1)
        if angles is not None:
            k = rotate(k, *angles)
        if state is None:
            return k, v
        stop = start + x.shape[1]
        if stop > state["k"].shape[2]:
            raise ValueError(f"max_length: {state['k'].shape[2]} tokens of cache, token {stop} does not fit")
        state["k"][:, :, start:stop] = k
        state["v"][:, :, start:stop] = v
        state["length"] = stop
        return state["k"][:, :, :stop].to(x.dtype), state["v"][:, :, :stop].to(x.dtype)

    def _weigh(self, attended: Tensor, weight: Tensor | None) -> Tensor:
        scale = self.scale()
        update = attended if scale is None else scale.to(attended.dtype) * attended
        return update if weight is None else weight.to(update.dtype)[..., None] * update

    def _dense(self, x: Tensor, gate: Gate, keys: Tensor, values: Tensor, angles: Angles | None) -> Tensor:
        q = self.query(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        if angles is not None:
            q = rotate(q, *angles)
        attended = self.out(attend(q, keys.to(q.dtype), values.to(q.dtype)).transpose(1, 2).flatten(2))
        update = self._weigh(attended, gate.weight)
        return torch.where(gate.fire[..., None], update, torch.zeros_like(update))

    def _sparse(self, x: Tensor, gate: Gate, keys: Tensor, values: Tensor, angles: Angles | None, start: int) -> Tensor:
        """Queries of the firing positions alone, packed to the left of `(B, M)`, M the most in one sequence."""
        row, place = gate.fire.nonzero(as_tuple=True)
        q = self.query(x[row, place]).unflatten(-1, (self.heads, self.head_dim))
        if angles is not None:
            q = rotate(q, *(part[place][:, None] for part in angles))
        slot = gate.fire.cumsum(1)[row, place] - 1
        if (start or x.is_cuda) and not torch.is_grad_enabled():
            o = attend_chunk(q, row, place, slot, keys.to(q.dtype), values.to(q.dtype), x.shape[1])
            return self._scatter(x, gate, self.out(o.flatten(1)), row, place)
        width = int(gate.fire.sum(1).max()) if len(row) else 1
        packed = q.new_zeros(len(x), width, self.heads, self.head_dim).index_put((row, slot), q)
        last = torch.zeros(len(x), width, dtype=torch.int64, device=x.device).index_put((row, slot), start + place)
        sees = torch.arange(keys.shape[2], device=x.device) <= last[..., None]
        o = scaled_dot_product(packed.transpose(1, 2), keys.to(q.dtype), values.to(q.dtype), sees[:, None])
        return self._scatter(x, gate, self.out(o.transpose(1, 2)[row, slot].flatten(1)), row, place)

    def _scatter(self, x: Tensor, gate: Gate, attended: Tensor, row: Tensor, place: Tensor) -> Tensor:
        """Updates `(B, T, D)` from the attended positions' `(n, D)`."""
        update = self._weigh(attended, None if gate.weight is None else gate.weight[row, place])
        return update.new_zeros(*x.shape[:-1], update.shape[-1]).index_put((row, place), update)

    def _report(self, gate: Gate, context: Context, start: int, skipped: bool) -> None:
        name = f"gate.{self.number}"
        metrics = context.extras.setdefault("metrics", {})
        metrics[f"{name}.rate"] = gate.fire.float().mean()
        statistics = getattr(self.trigger, "statistics", None)
        if statistics is not None:
            metrics[f"{name}.mu"] = statistics.mu.clone()
            metrics[f"{name}.sigma"] = statistics.sigma.clone()
            metrics[f"{name}.tau"] = statistics.tau
        scale = self.scale()
        if scale is not None:
            metrics[f"{name}.alpha"] = scale.detach().mean()
        fields = context.extras.setdefault("fields", {})
        fields[f"{name}.fire"] = gate.fire
        if gate.score is not None:
            fields[f"{name}.score"] = gate.score
        skips = context.extras.get("skips")
        if skips is not None:
            seen = torch.arange(start + 1, start + gate.fire.shape[1] + 1, device=gate.fire.device)
            skips.count(gate.fire, self.heads * seen, skipped)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        shape = (batch_size, self.heads, max_length, self.head_dim)
        return {
            "k": torch.zeros(shape, device=device, dtype=dtype),
            "v": torch.zeros(shape, device=device, dtype=dtype),
            "length": 0,
        }


class Beside(Mixer):
    """A layer's own mixer with gated attention in parallel, their outputs added (fused placement)."""

    def __init__(self, mixer: Mixer, attention: GatedAttention) -> None:
        super().__init__()
        self.mixer, self.attention = mixer, attention

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        own, update = (None, None) if state is None else (state["mixer"], state["attention"])
        y, own = self.mixer.mix(x, own, context)
        z, update = self.attention.mix(x, update, context)
        return y + z, None if state is None else {"mixer": own, "attention": update}

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device, dtype: torch.dtype) -> State:
        parts = {"mixer": self.mixer, "attention": self.attention}
        return {
            name: part.init_state(batch_size, max_length, device=device, dtype=dtype) for name, part in parts.items()
        }
