"""What a prefill must compute and a decoding step must move, by formula from the spec: no run is faster than these.

    decode  t >= (weights read + recurrent state read and written + cache read) / copy bandwidth
    prefill t >= FLOPs of all products / matrix rate

The bandwidth is that of a copy, bytes read and written alike; the rate that of a large product in bf16. Both are
measured beside what they bound (`probes.inference.machine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from architectures import accounting
from architectures.accounting.models import head_cost
from architectures.amor_spec import NEEDS_HEAD, backbone


class Traffic(NamedTuple):
    """Bytes of one decoding step of all sequences."""

    weights: float
    """Read: every parameter once; AMOR's query and output maps where a gate is open, its head once more for each native
    gate; in Oryx the queries of the memory that writes."""
    state: float
    """Recurrent states, read and written, and the convolutions' inputs, read."""
    cache: float
    """Keys and values that are attended to."""

    @property
    def total(self) -> float:
        return self.weights + self.state + self.cache


def decode_traffic(
    spec: Mapping[str, Any], context: int, batch: int = 1, *, firing_rate: float = 1.0, mode: str = "attention"
) -> Traffic:
    """Bytes of a step after `context` tokens, 2 a number, 4 in the states that are float32.

    `firing_rate` is AMOR's. The query and output maps of a block are read where any of the `batch` sequences fires, at
    most a fraction `batch * firing_rate` of the steps.
    """
    cost = accounting.cost(spec, context)
    weights, cache = cost.parameters, cost.cache
    d = spec["d_model"]
    if not spec["tie"]:
        weights -= spec["vocab_size"] * d
    if spec["kind"] == "amor":
        weights -= (1 - min(1.0, batch * firing_rate)) * spec["blocks"] * 2 * d * d
        if spec["trigger"]["kind"] in NEEDS_HEAD:
            weights += spec["blocks"] * spec["vocab_size"] * d
        always = accounting.cost(backbone(spec), context).cache
        cache = always + firing_rate * (cache - always)
    if spec["kind"] == "oryx":
        weights -= spec["layers"] * d * d * (spec["queries"] == "own")
        cache *= mode == "attention"
    state = 2 * (2 * cost.recurrent + cost.conv) + 4 * 2 * cost.recurrent_wide
    return Traffic(2 * weights, batch * state, 2 * batch * cache)


def prefill_flops(
    spec: Mapping[str, Any], context: int, batch: int = 1, *, firing_rate: float = 1.0, mode: str = "attention"
) -> float:
    """FLOPs of a prefill of `context` tokens with the last position's logits; AMOR's native gates ask for all."""
    cost = accounting.cost(spec, context, firing_rate=firing_rate, linear_fraction=float(mode == "linear"))
    return batch * (context * cost.flops - (context - 1) * head_cost(spec).projections)
