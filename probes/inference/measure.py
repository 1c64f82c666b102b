"""One model at one context length: prefill once, warmed; then decode in three runs of 32 tokens after eight.

The protocol is that of AMOR's Table 11: final-position logits, peak memory over the prefill with weights and caches,
and the mean time of a token over the runs. Running out of memory is a result.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, appendix F.3.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from architectures import accounting
from architectures.amor import Amor
from architectures.decoding import Decoder, prefill
from probes.inference.bound import decode_traffic, prefill_flops
from probes.inference.machine import Rates, seconds
from probes.inference.models import Case, control, dialled
from probes.inference.published import QUANTITIES, published


class Protocol(NamedTuple):
    """What one measurement does; `rates` are the firing rates in prefill and decoding, None for the gates' own."""

    context: int
    batch: int
    chunk: int
    warmup: int
    runs: int
    tokens: int
    rates: tuple[float, float] | None

    @property
    def room(self) -> int:
        """Tokens that the caches have place for: the prompt, and what is decoded."""
        return self.context + self.warmup + self.runs * self.tokens


@contextlib.contextmanager
def gates(model: nn.Module, protocol: Protocol) -> Iterator[None]:
    """AMOR's gates at the protocol's rates within this block."""
    if not isinstance(model, Amor) or protocol.rates is None:
        yield
        return
    with model.triggered(dialled(model, protocol.context, protocol.room, protocol.batch, *protocol.rates)):
        yield


def measure(case: Case, model: nn.Module, protocol: Protocol, rates: Rates) -> dict[str, Any]:
    """A row of the results; `status` is `ok`, or `out of memory` with what was found until then."""
    spec = cast(Mapping[str, Any], model.spec)
    row: dict[str, Any] = {
        "scale": case.group,
        "model": case.label,
        "gate": None if spec["kind"] != "amor" else "own" if protocol.rates is None else "dial",
        "context": protocol.context,
        "batch": protocol.batch,
        "chunk": protocol.chunk,
        "parameters": accounting.parameters(spec),
        "status": "ok",
        "published": {q: published(case.name, case.scale, protocol.context, q) for q in QUANTITIES},
    }
    try:
        with gates(model, protocol):
            row |= _prefill_and_decode(case, model, spec, protocol)
    except torch.OutOfMemoryError:
        row["status"] = "out of memory"
    if next(model.parameters()).is_cuda:
        gc.collect()
    return {**row, **bounds(spec, case.mode, row, rates)}


@torch.no_grad()
def _prefill_and_decode(case: Case, model: nn.Module, spec: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    device = next(model.parameters()).device
    prompt = torch.randint(spec["vocab_size"], (protocol.batch, protocol.context), device=device)
    mode = control(case.mode, *prompt.shape)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    state = model.init_state(protocol.batch, protocol.room)  # type: ignore[operator]
    found: list[torch.Tensor] = []
    row: dict[str, Any] = {
        "prefill_s": seconds(
            lambda: found.append(prefill(model, prompt, state, chunk=protocol.chunk, control=mode)[0]), device
        )
    }
    row["prefill_gb"] = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    if spec["kind"] == "amor":
        skips = state["skips"].read()
        row["prefill_rate"] = 1 - skips["queries"] / skips["queries_total"]
    decoder = Decoder(model, state, mode=case.mode)
    row["state_bytes"] = decoder.state_bytes
    row["counted_bytes"] = protocol.batch * accounting.state_bytes(spec, protocol.room, decoder.desk.dtype.itemsize)
    row["scratch_bytes"] = decoder.desk.scratch_bytes
    decoder.generate(found[0].argmax(-1), protocol.warmup)
    decoder.reset_gates()
    row["decode_runs_ms"] = [
        1e3 * seconds(lambda: decoder.generate(decoder.token, protocol.tokens), device) / protocol.tokens
        for _ in range(protocol.runs)
    ]
    row["decode_ms"] = sum(row["decode_runs_ms"]) / protocol.runs
    if decoder.gates:
        each = decoder.firing_rates(protocol.runs * protocol.tokens)
        row |= {"decode_rates": each, "decode_rate": sum(each) / len(each)}
    return row


def bounds(spec: Mapping[str, Any], mode: str, row: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """The least time of a prefill and of a step at the firing rates found, and how many times it was taken."""
    context, batch = row["context"], row["batch"]
    flops = prefill_flops(spec, context, batch, firing_rate=row.get("prefill_rate", 1.0), mode=mode)
    traffic = decode_traffic(spec, context, batch, firing_rate=row.get("decode_rate", 1.0), mode=mode)
    found: dict[str, Any] = {
        "prefill_flops": flops,
        "prefill_bound_s": flops / rates.product,
        "decode_bytes": traffic.total,
        "decode_bytes_parts": traffic._asdict(),
        "decode_bound_ms": 1e3 * traffic.total / rates.copy,
    }
    if "prefill_s" in row:
        found["prefill_over_bound"] = row["prefill_s"] / found["prefill_bound_s"]
    if "decode_ms" in row:
        found["decode_over_bound"] = row["decode_ms"] / found["decode_bound_ms"]
    return found
