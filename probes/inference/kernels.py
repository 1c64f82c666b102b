"""A prefill's fast kernels are used once their outputs and final states agreed with the definition, in this run.

Inference has no gradients, so unlike `architectures.kernels.canary` these are not asked for: the kernels are approved
for this process's forward passes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from architectures import kernels, resolve
from architectures.decoding import Prefiller, prefill
from architectures.kernels import canary, finish
from probes.inference.models import control, make

TOKENS = 192
"""Tokens of the prefill that is judged, in two chunks: one from nothing, one that continues."""


def one_of_each(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A model of the same widths with one layer of each kind and a small vocabulary."""
    small = {**spec, "vocab_size": 64}
    if spec["kind"] == "oryx":
        return resolve({**small, "layers": 1, "modes": None} | {"modes": ["follow"]})
    backbone = {key: value for key, value in small.items() if key not in ("layers", "at")}
    layers = list(dict.fromkeys(spec["layers"]))
    if spec["kind"] == "amor":
        backbone |= {"blocks": 1}
    return resolve({**backbone, "layers": layers})


def recurrences(spec: Mapping[str, Any]) -> set[str]:
    """What tells the kernels' shapes apart: the width, and each recurrence with its parameters."""
    if spec["kind"] == "oryx":
        return {f"{spec['d_model']} oryx {spec['mixer']} {spec['head_dim']}"}
    used = {spec["mixers"][name]["recurrent"] if name == "fused" else name for name in spec["layers"]}
    return {f"{spec['d_model']} {name} {spec['mixers'][name]}" for name in used if name != "attention"}


@torch.no_grad()
def approve(spec: Mapping[str, Any], device: torch.device, dtype: torch.dtype, *, chunk: int = TOKENS) -> list[str]:
    """Judges the kernels that a model of this spec would use, and lets `auto` have the first that agrees.

    One line a judgement, with relative errors in the Frobenius norm against the definition in float64. Kernels choose
    their tiles at their first call and keep them, so that call has the `chunk` tokens of a prefill.
    """
    model = make(one_of_each(spec), device, dtype, kernels="chunked")
    tokens = torch.randint(64, (1, TOKENS), device=device)
    control = {"mode": torch.ones(1, TOKENS, dtype=torch.int64)} if spec["kind"] == "oryx" else {}
    with canary.record() as calls:
        prefill(model, tokens, model.init_state(1, TOKENS), chunk=TOKENS // 2, control=control)  # type: ignore[operator]
    lines = [finish.approve(device, dtype)]
    for call in calls.values():
        if call.operation == canary.ATTENTION:
            continue
        for backend in canary.candidates(call):
            error, word = _judge(call, backend, chunk)
            agreed = error <= canary.TOLERANCE[dtype]
            lines.append(f"{call.operation} {backend}: error {error:.1e}{word}: {'accepted' if agreed else 'refused'}")
            if agreed:
                kernels.approve(call.operation, backend)
                break
            kernels.withdraw(call.operation, backend)
    return lines


@torch.no_grad()
def prefiller(model: nn.Module, mode: str, batch: int, chunk: int) -> tuple[Prefiller, str]:
    """A prefill with graphs, if it gives the logits of the one without, in this run; else that one. A line says which.

    Compared after two chunks, and after a rest that goes on from their state; gates are as they are. The kernels are
    the same, so nothing should differ.
    """
    what = f"batch {batch}, chunks of {chunk}"
    try:
        made = Prefiller(model, batch, chunk)
    except Exception as reason:  # what a kernel does that a graph cannot hold shows in any way
        return Prefiller(model, batch, chunk, graph=False), f"{what}: no graph ({_word(reason)})"
    what = f"{what}: {made.replayed} layers replayed"
    if not made.replayed:
        return made, what
    device, whole, length = next(model.parameters()).device, 2 * chunk, 2 * chunk + max(1, chunk - chunk // 4)
    tokens = torch.randint(model.spec["vocab_size"], (batch, length), device=device)  # type: ignore[index, arg-type]
    given = control(mode, batch, length)
    states = [model.init_state(batch, length) for _ in range(2)]  # type: ignore[operator]
    error = 0.0
    for span in (slice(whole), slice(whole, length)):
        part = {name: value[:, span] for name, value in given.items()}
        expected, states[0] = prefill(model, tokens[:, span], states[0], chunk=chunk, control=part)
        found, states[1] = made(tokens[:, span], states[1], control=part)
        error = max(error, _error(found, expected.double()))
    if error <= canary.TOLERANCE[expected.dtype]:
        return made, f"{what}, logits differ by {error:.1e}: accepted"
    del made
    return Prefiller(model, batch, chunk, graph=False), f"{what}, logits differ by {error:.1e}: refused"


def _judge(call: canary.Call, backend: str, chunk: int) -> tuple[float, str]:
    """The larger relative error of the output and the final state; infinite where the kernel raised."""
    try:
        if kernels.OPERATIONS[call.operation][backend].cuda:
            kernels.run(call.operation, backend, *lengthened(call.arguments, chunk))
        found = kernels.run(call.operation, backend, *call.arguments)
        if call.arguments[0] is not None and call.arguments[0].is_cuda:
            torch.cuda.synchronize()
    except Exception as error:  # a kernel may fail in any way; it is then not used, and the line says why
        return float("inf"), f" ({_word(error)})"
    wide = [None if x is None else x.double() for x in call.arguments]
    expected = kernels.load(call.operation, "plain")(*wide)
    return max(_error(one, other) for one, other in zip(found, expected) if other is not None), ""


def _word(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]}"


def lengthened(arguments: Sequence[Tensor | None], tokens: int) -> list[Tensor | None]:
    """The arguments of an operation with what has a time repeated until it has `tokens` of them or a few more."""
    first = arguments[0]
    assert first is not None
    times = -(-tokens // first.shape[1])
    return [
        x.repeat(1, times, *(1 for _ in x.shape[2:])) if x is not None and x.shape[:2] == first.shape[:2] else x
        for x in arguments
    ]


def _error(found: Tensor | None, expected: Tensor) -> float:
    if found is None:
        return 0.0
    size = float(expected.norm())
    error = float((found.double() - expected).norm()) / (size or 1.0)
    return error if error == error else float("inf")
