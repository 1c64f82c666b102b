"""Prefill, peak memory and decoding against context length, AMOR's eight models and Oryx, with each figure's bound.

AMOR's tables 11 to 13 on this device, with random weights. First every model's greedy tokens are compared with the
full forward pass, every prefill kernel with its definition. Written after each row as `inference.json`, from which a
later run goes on; at the end the tables in the paper's layout, as `inference.md` too: each number, how many times its
bound that is, the paper's in brackets; and what they say of the bounds.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import torch

from probes import environment
from probes.cli_common import console, show_table, table
from probes.device_names import check_device
from probes.files import whole_file
from probes.inference import findings, machine, record, report, verify
from probes.inference.kernels import approve, prefiller, recurrences
from probes.inference.measure import Protocol, measure
from probes.inference.models import Case, cases, make, settle
from probes.messages import nearest
from probes.results import write_json

DIALS: dict[str, Any] = {
    "device": "cuda",
    "scales": ["1.5B", "440M", "180M"],
    "models": None,
    "contexts": [3072, 8192, 16384, 32768, 65536, 98304, 131072],
    "batches": [1],
    "prefill_rate": 0.4,
    "decode_rate": 0.22,
    "gates": ["dial", "own"],
    "own_contexts": None,
    "chunk": 4096,
    "prefills": 3,
    "patience": 2.0,
    "warmup": 8,
    "runs": 3,
    "tokens": 32,
    "verify": "180M",
    "copied": 2**31,
    "size": 8192,
    "resume": None,
    "again": False,
}
"""`models`: names as in the tables, None for all. `contexts`: a list, or one for each scale or model by name.
`gates`: `dial` fires at the two rates, `own` where the gate says, at `own_contexts` (None: at all).
`chunk`: tokens of a prefill at a time, over all sequences. `prefills`: whose median is taken; none is begun once those
before it took `patience` seconds. `resume`: an `inference.json` whose rows are kept, those of this run that it has not
measured again unless `again`.
`verify`: the scale at which tokens are compared, None not to. `copied`: bytes of the copy that is timed, `size` of the
matrices whose product is."""


def run(out: Path, **dials: Any) -> None:
    """Measures and writes. ValueError for an unknown scale, model or gate; RuntimeError where decoding disagrees."""
    chosen = {**DIALS, **dials}
    check_device(chosen["device"])
    device = torch.device(chosen["device"])
    dtype = torch.bfloat16
    wanted = _wanted(chosen)
    judged: set[str] = set()
    about = environment.describe(str(device), precision="bf16", kernels="auto")
    result = record.start(about, {key: value for key, value in chosen.items() if key != "device"})
    if chosen["resume"] is not None:
        record.resume(result, Path(chosen["resume"]))
    out.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        result["crossovers"] = report.crossovers(result["rows"])
        with whole_file(out / "inference.json") as temporary:
            write_json(temporary, result)

    if chosen["verify"]:
        _verify(chosen, device, result, write)
    rates = machine.measure(device, copied=chosen["copied"], size=chosen["size"])
    result["rates"] = rates._asdict()
    print(f"copy {rates.copy / 1e12:.2f} TB/s, product {rates.product / 1e12:.0f} TFLOP/s", flush=True)
    for case in wanted:
        protocols = _protocols(case, chosen, result["rows"])
        if not protocols:
            continue
        started = time.perf_counter()
        if not judged.issuperset(recurrences(case.spec)):
            judgements = approve(case.spec, device, dtype, chunk=chosen["chunk"])
            result["kernels"] += [f"{case.label} {case.scale}: {line}" for line in judgements]
            judged.update(recurrences(case.spec))
        _measure(case, protocols, device, dtype, rates, result, write)
        print(f"{case.label} {case.scale}: {time.perf_counter() - started:.1f} s", flush=True)
    with whole_file(out / "inference.md") as temporary:
        parts = (report.markdown(result["rows"]), report.crossing(result["rows"]), *findings.parts(result))
        temporary.write_text("\n".join(part for part in parts if part), encoding="utf-8")
    for title, head, lines in report.tables(result["rows"]):
        console.print(title)
        show_table(table(head, lines))


def _wanted(chosen: dict[str, Any]) -> list[Case]:
    for gate in chosen["gates"]:
        if gate not in ("dial", "own"):
            raise ValueError(f"gates: {gate!r}{nearest(str(gate), ('dial', 'own'))}")
    every = [case for scale in chosen["scales"] for case in cases(scale)]
    names = chosen["models"]
    if names is None:
        return every
    known = {case.label for case in every}
    for name in names:
        if name not in known:
            raise ValueError(f"models: unknown {name!r}{nearest(str(name), sorted(known))}")
    return [case for case in every if case.label in names]


def _contexts(case: Case, contexts: Any) -> list[int]:
    """The contexts of one case: its model's own, else its scale's."""
    if not isinstance(contexts, dict):
        return list(contexts)
    if case.label not in contexts and case.group not in contexts:
        raise ValueError(f"contexts: none for {case.label!r} or its scale {case.group!r}; nearest: {case.group!r}")
    return list(contexts[case.label if case.label in contexts else case.group])


def _verify(chosen: dict[str, Any], device: torch.device, result: dict[str, Any], write: Any) -> None:
    names, known = chosen["models"], {found["model"] for found in result["agreement"]}
    apart = []
    for case in cases(chosen["verify"]):
        if (names is not None and case.label not in names) or (case.label in known and not chosen["again"]):
            continue
        for dtype in (torch.float32, torch.bfloat16):
            found = verify.compare(case, device, dtype)
            record.put(result["agreement"], found.as_dict(), ("model", "dtype"))
            write()
            print(
                f"{found.model} {found.dtype}: {found.equal} of {found.tokens} tokens equal, shortfall "
                f"{found.shortfall:.3f}, rounding {found.rounding:.3f}, state {found.state_bytes} of "
                f"{found.counted_bytes} bytes",
                flush=True,
            )
            if not found.agrees:
                apart.append(f"{found.model} {found.dtype}")
            _free(device)
    if apart:
        raise RuntimeError(f"decoding and the full forward pass disagree: {', '.join(apart)}")


def _protocols(case: Case, chosen: dict[str, Any], rows: list[dict[str, Any]]) -> list[Protocol]:
    """What is to be measured of a case: gates, batches, contexts, without what `rows` has."""
    known = set() if chosen["again"] else {record.identity(row) for row in rows}
    contexts, amor, wanted = _contexts(case, chosen["contexts"]), case.spec["kind"] == "amor", []
    for gate in chosen["gates"] if amor else ["dial"]:
        dial = (chosen["prefill_rate"], chosen["decode_rate"]) if gate == "dial" else None
        for batch in chosen["batches"]:
            for context in contexts if gate == "dial" else chosen["own_contexts"] or contexts:
                if (case.group, case.label, gate if amor else None, context, batch) in known:
                    continue
                chunk = min(max(1, chosen["chunk"] // batch), context)
                repeats = (chosen["prefills"], chosen["patience"], chosen["warmup"], chosen["runs"], chosen["tokens"])
                wanted.append(Protocol(context, batch, chunk, *repeats, dial))
    return wanted


def _measure(
    case: Case,
    protocols: list[Protocol],
    device: torch.device,
    dtype: torch.dtype,
    rates: machine.Rates,
    result: dict[str, Any],
    write: Any,
) -> None:
    model = make(case.spec, device, dtype)
    length = min(protocol.batch * protocol.chunk for protocol in protocols)
    settle(model, torch.randint(case.spec["vocab_size"], (1, length), device=device))
    made = None
    for protocol in protocols:
        if made is None or (made.batch, made.chunk) != (protocol.batch, protocol.chunk):
            made = None
            _free(device)
            made, line = prefiller(model, case.mode, protocol.batch, protocol.chunk)
            result["kernels"].append(f"{case.label} {case.scale}: {line}")
            short = min(2 * protocol.chunk, protocol.context)
            measure(case, made, protocol._replace(context=short, prefills=1, runs=1, tokens=2), rates)
        row = {**measure(case, made, protocol, rates), "commit": result["environment"]["commit"]}
        record.put(result["rows"], row, record.IDENTITY)
        write()
        print(_line(row), flush=True)
    _free(device)


def _line(row: dict[str, Any]) -> str:
    parts = [f"{report.label(row)} {row['scale']} {report.short(row['context'])} batch {row['batch']}: {row['status']}"]
    parts += [f"{quantity} {report.cell(row, quantity)}" for quantity in report.TITLES]
    return "; ".join(parts)


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
