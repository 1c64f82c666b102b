"""One model at one context length: the median of up to three prefills; then three runs of 32 tokens after eight.

The protocol is that of AMOR's Table 11: final-position logits, peak memory over the prefill with weights and caches,
and the mean time of a token over the runs. Running out of memory is a result.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, appendix F.3.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from architectures import accounting
from architectures.amor import Amor
from architectures.decoding import Decoder, Prefiller
from probes.inference.bound import decode_traffic, prefill_flops
from probes.inference.machine import Rates, seconds
from probes.inference.models import Case, control, dialled
from probes.inference.published import QUANTITIES, published


class Protocol(NamedTuple):
    """What one measurement does; `rates` are the firing rates in prefill and decoding, None for the gates' own.

    `chunk` counts the tokens of one sequence; no prefill is begun once those before it took `patience` seconds.
    """

    context: int
    batch: int
    chunk: int
    prefills: int
    patience: float
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


def measure(case: Case, prefill: Prefiller, protocol: Protocol, rates: Rates) -> dict[str, Any]:
    """A row of the results; `status` is `ok`, or `out of memory` with what was found until then."""
    model = prefill.model
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
        "published": {
            q: published(case.name, case.scale, protocol.context, q) if protocol.batch == 1 else None
            for q in QUANTITIES
        },
    }
    try:
        with gates(model, protocol):
            _prefill_and_decode(case, prefill, spec, protocol, row)
    except torch.OutOfMemoryError:
        row["status"] = "out of memory"
    if next(model.parameters()).is_cuda:
        gc.collect()  # a decoder's steps refer to it
    return {**row, **bounds(spec, case.mode, row, rates)}


@torch.no_grad()
def _prefill_and_decode(
    case: Case, prefill: Prefiller, spec: Mapping[str, Any], protocol: Protocol, row: dict[str, Any]
) -> None:
    """Fills `row` as it goes, so that what was found before memory ran out is kept."""
    model, device = prefill.model, next(prefill.model.parameters()).device
    prompt = torch.randint(spec["vocab_size"], (protocol.batch, protocol.context), device=device)
    mode = control(case.mode, *prompt.shape)
    found: list[torch.Tensor] = []
    times: list[float] = []
    state: dict[str, Any] = {}
    while len(times) < protocol.prefills and sum(times) <= protocol.patience:
        state = {}  # the last one's memory is free for this one's
        state = model.init_state(protocol.batch, protocol.room)  # type: ignore[operator]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        times.append(seconds(lambda: found.append(prefill(prompt, state, control=mode)[0]), device))  # noqa: B023
    row["prefill_runs_s"], row["prefill_s"] = times, statistics.median(times)
    row["replayed_layers"] = prefill.replayed
    peak = torch.cuda.max_memory_allocated(device) + prefill.pool_bytes if device.type == "cuda" else None
    row["prefill_gb"] = None if peak is None else peak / 1e9
    if spec["kind"] == "amor":
        skips = state["skips"].read()
        row["prefill_rate"] = 1 - skips["queries"] / skips["queries_total"]
    decoder = Decoder(model, state, mode=case.mode)
    row["state_bytes"] = decoder.state_bytes
    row["counted_bytes"] = protocol.batch * accounting.state_bytes(spec, protocol.room, decoder.desk.dtype.itemsize)
    row["scratch_bytes"] = decoder.desk.scratch_bytes
    decoder.generate(found[-1].argmax(-1), protocol.warmup)
    decoder.reset_gates()
    row["decode_runs_ms"] = [
        1e3 * seconds(lambda: decoder.generate(decoder.token, protocol.tokens), device) / protocol.tokens
        for _ in range(protocol.runs)
    ]
    row["decode_ms"] = sum(row["decode_runs_ms"]) / protocol.runs
    if decoder.gates:
        each = decoder.firing_rates(protocol.runs * protocol.tokens)
        row |= {"decode_rates": each, "decode_rate": sum(each) / len(each)}


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
