"""The canary: a kernel's outputs and gradients against the definition in float64, on this machine and these inputs.

`record` runs a model once and keeps the arguments of every operation that has kernels, strides included, and of every
call of `scaled_dot_product_attention`; `judge` runs a kernel on such arguments, forward and backward, and compares
with the definition on the same numbers in float64:

    error(x) = |x - x_ref| / |x_ref|    (Frobenius norms), for the output and the gradient of every argument

A tensor that is all zero in the reference is compared with the absolute norm. The gradient of the output comes in every
layout that it may have in training, each after a forward pass of its own, and the largest error counts, that of outputs
too: a kernel need not do the same twice. Gradients flow from the first `ROWS` sequences of the batch alone, so that the
slow definition runs on those and the kernel at the full shape. `approve` lets through the fastest kernel whose every
error is within `TOLERANCE`, and refuses the others with their numbers. A kernel that is let through may hand the next
operation another layout than the form before it: `settle` records and approves until nothing new is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .. import kernels
from .softmax import scaled_dot_product

ROUNDS = 8
"""Times that a model is run at most until its calls are settled."""
ROWS = 2
"""Sequences of the batch on which the definition runs."""

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 5e-3, torch.float64: 1e-9}
"""Largest error by the dtype of the operation's first argument: bf16 keeps 8 bits of a product, and the matrix units
take float32 in tf32, 10 bits."""

ATTENTION = "attention"
"""The operation's name for `scaled_dot_product_attention`, whose backends PyTorch chooses among."""

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class Call:
    """One call of an operation: its arguments, detached. `options`: what is no tensor."""

    operation: str
    arguments: tuple[Tensor | None, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def signature(self) -> tuple[Any, ...]:
        """What kernels are chosen by: the operation, shapes, strides and dtypes."""
        shapes = tuple(None if x is None else (tuple(x.shape), x.stride(), str(x.dtype)) for x in self.arguments)
        return (self.operation, shapes, self.options)


@dataclass(frozen=True)
class Verdict:
    """What the canary found of one kernel at one shape. Errors are relative; `inf` where the kernel raised."""

    operation: str
    backend: str
    shapes: str
    dtype: str
    output_error: float
    gradient_error: float
    """The largest over the arguments."""
    worst_argument: int
    tolerance: float
    accepted: bool
    reason: str = ""

    def line(self) -> str:
        """One line for reports."""
        word = "accepted" if self.accepted else f"refused ({self.reason})"
        return (
            f"{self.operation} {self.backend} {self.shapes} {self.dtype}: output {self.output_error:.1e}, "
            f"gradient {self.gradient_error:.1e}, tolerance {self.tolerance:.0e}: {word}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class _Attention(TorchFunctionMode):
    def __init__(self, calls: dict[tuple[Any, ...], Call]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            q, k, v = (x.detach() for x in args[:3])
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            call = Call(ATTENTION, (q, k, v, mask), (("is_causal", bool(kwargs.get("is_causal", False))),))
            self.calls.setdefault(call.signature, call)
        return func(*args, **kwargs)


@contextmanager
def record() -> Iterator[dict[tuple[Any, ...], Call]]:
    """Collects the calls made inside the block, one for every operation, shapes, strides and dtypes."""
    calls: dict[tuple[Any, ...], Call] = {}

    def hear(operation: str, arguments: Sequence[Tensor | None]) -> None:
        detached = tuple(None if x is None else _copy(x) for x in arguments)
        call = Call(operation, detached)
        calls.setdefault(call.signature, call)

    kernels.listeners.append(hear)
    try:
        with _Attention(calls):
            yield calls
    finally:
        kernels.listeners.remove(hear)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
    """The definition of softmax attention, `(..., T, d)`; `mask` boolean, true where a key may be seen."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def _batched(call: Call, x: Tensor | None) -> bool:
    """Whether an argument has the batch as its first dimension; a weight or a mask may happen to have its size."""
    first = call.arguments[0]
    assert first is not None
    if x is None:
        return False
    if call.operation == ATTENTION:
        return x.ndim == first.ndim and x.shape[0] == first.shape[0]
    return x.shape[:2] == first.shape[:2]


def _copy(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`x` detached, with its strides: a kernel that reads them is judged on a slice where it gets a slice.

    Where elements of `x` share memory, in some layout.
    """
    reach = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride < reach:
            return x.detach().clone().to(dtype or x.dtype)
        reach += stride * (size - 1)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device=x.device).copy_(x.detach())


def _leaf(x: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    return x if x is None or not x.is_floating_point() else _copy(x, dtype).requires_grad_()


def _gradients(
    function: Callable[..., Any], arguments: Sequence[Tensor | None], direction: Tensor, layout: int = 0
) -> tuple[Tensor, list[Tensor | None], int]:
    """The output, the gradients of the arguments for `direction` in one of its layouts, and how many layouts it has."""
    output = function(*arguments)
    output = output[0] if isinstance(output, tuple) else output
    leaves = [x for x in arguments if x is not None and x.requires_grad]
    layouts = _layouts(direction.to(output.dtype), output)
    found = iter(torch.autograd.grad(output, leaves, layouts[layout], allow_unused=True))
    gradients = [next(found) if x is not None and x.requires_grad else None for x in arguments]
    return output.detach(), gradients, len(layouts)


def _in_all_layouts(
    function: Callable[..., Any], arguments: Sequence[Tensor | None], direction: Tensor
) -> tuple[list[Tensor], list[list[Tensor | None]]]:
    """The output and the gradients for each layout of `direction`, each from a forward pass of its own."""
    outputs: list[Tensor] = []
    found: list[list[Tensor | None]] = []
    count = 1
    while len(found) < count:
        output, gradients, count = _gradients(function, [_leaf(x) for x in arguments], direction, len(found))
        outputs.append(output)
        found.append(gradients)
    return outputs, found


def _layouts(direction: Tensor, output: Tensor) -> list[Tensor]:
    """`direction` contiguous, as the output lies in memory, and, of four dimensions, with the middle two exchanged: the
    gradient of heads that were put beside each other again."""
    kept = [direction.contiguous(), torch.empty_like(output, dtype=direction.dtype).copy_(direction)]
    if direction.ndim == 4:
        kept.append(direction.transpose(1, 2).contiguous().transpose(1, 2))
    return list({x.stride(): x for x in kept}.values())


def _error(found: Tensor | None, expected: Tensor | None) -> float:
    if expected is None:
        return 0.0
    if found is None:
        return math.inf
    size = expected.double().norm()
    error = (found.double() - expected.double()).norm()
    value = float(error / size) if size > 0 else float(error)
    return value if math.isfinite(value) else math.inf


def judge(call: Call, backend: str, *, seed: int = 0) -> Verdict:
    """Runs one backend on a recorded call and compares it with the definition in float64."""
    first = call.arguments[0]
    assert first is not None
    dtype = first.dtype
    shapes = " ".join("x".join(map(str, x.shape)) for x in call.arguments if x is not None)
    tolerance = TOLERANCE[dtype]
    expected, direction = _reference(call, seed)
    try:
        outputs, gradients = _in_all_layouts(_function(call, backend), call.arguments, direction)
        if first.is_cuda:
            torch.cuda.synchronize(first.device)
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
        infinite = math.inf
        return Verdict(
            call.operation, backend, shapes, str(dtype)[6:], infinite, infinite, -1, tolerance, False, reason
        )
    rows = _rows(call)
    output_error = max(_error(output[:rows], expected[0]) for output in outputs)
    errors = [
        max(_error(g[:rows] if g is not None and _batched(call, x) else g, e) for g in each)
        for x, e, *each in zip(call.arguments, expected[1], *gradients, strict=True)
    ]
    worst = max(range(len(errors)), key=lambda index: errors[index])
    accepted = max(output_error, errors[worst]) <= tolerance
    reason = "" if accepted else f"argument {worst}" if errors[worst] > tolerance else "output"
    return Verdict(
        call.operation, backend, shapes, str(dtype)[6:], output_error, errors[worst], worst, tolerance, accepted, reason
    )


def _rows(call: Call) -> int:
    first = call.arguments[0]
    assert first is not None
    return min(ROWS, first.shape[0])


def _reference(call: Call, seed: int) -> tuple[tuple[Tensor, list[Tensor | None]], Tensor]:
    """The definition's output and gradients in float64 on the first rows, and the direction the gradients are of."""
    first = call.arguments[0]
    assert first is not None
    batch, rows = first.shape[0], _rows(call)
    cut = [_leaf(x[:rows] if x is not None and _batched(call, x) else x, torch.float64) for x in call.arguments]
    function = _definition(call)
    with torch.no_grad():
        shape = function(*cut)
    shape = shape[0] if isinstance(shape, tuple) else shape
    generator = torch.Generator(device=first.device).manual_seed(seed)
    direction = torch.zeros(batch, *shape.shape[1:], dtype=torch.float64, device=first.device)
    direction[:rows] = torch.randn(shape.shape, generator=generator, dtype=torch.float64, device=first.device)
    direction = direction.to(first.dtype)
    output, gradients, _ = _gradients(function, cut, direction[:rows].double())
    return (output, gradients), direction


def _definition(call: Call) -> Callable[..., Any]:
    if call.operation != ATTENTION:
        return kernels.load(call.operation, "plain")
    options = dict(call.options)
    return lambda *arguments: attention(*arguments, **options)


def _function(call: Call, backend: str) -> Callable[..., Any]:
    if call.operation != ATTENTION:
        return lambda *arguments: kernels.run(call.operation, backend, *arguments)
    options = dict(call.options)

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with sdpa_kernel(SDPA[backend]):
            return scaled_dot_product(q, k, v, mask, **options)

    return run


def candidates(call: Call, chosen: kernels.Kernels = "auto") -> Iterator[str]:
    """The backends that may run a call on its device, fastest first, or the one that `chosen` names; the definition is
    not among them.

    For attention, what PyTorch chooses for these arguments, again and again until nothing is left to be switched off.
    """
    first = call.arguments[0]
    assert first is not None
    if call.operation != ATTENTION:
        told = kernels.told(call.operation, chosen)
        for name, backend in kernels.OPERATIONS[call.operation].items():
            if told not in (None, name):
                continue
            fits = not backend.half_only or first.dtype in kernels.HALF
            if name != "plain" and fits and (first.is_cuda or not backend.cuda) and kernels.installed(backend):
                yield name
        return
    names = {value.value: name for name, value in SDPA.items()}
    arguments: list[Any] = [_leaf(x) for x in call.arguments]
    q, k, v, mask = arguments
    for _ in SDPA:
        yield names[torch._fused_sdp_choice(q, k, v, attn_mask=mask, **dict(call.options))]


def approve(calls: Iterable[Call], chosen: kernels.Kernels = "auto") -> list[Verdict]:
    """Judges kernels on the calls, fastest first, until one agrees; only that one is approved for `auto`.

    `chosen`: what the model was built with; of an operation for which it names a backend, that one alone is judged.
    A kernel refused at one shape is not used at any, for the rest of the process. Attention kernels that disagree
    are switched off in PyTorch.
    """
    verdicts = []
    for call in calls:
        for backend in candidates(call, chosen):
            if (call.operation, backend) in _refused:
                continue
            verdict = judge(call, backend)
            verdicts.append(verdict)
            if verdict.accepted:
                if call.operation != ATTENTION:
                    kernels.approve(call.operation, backend)
                break
            _refuse(call.operation, backend, verdict.line())
    return verdicts


def settle(run: Callable[[], object], chosen: kernels.Kernels = "auto") -> list[Verdict]:
    """Records `run` and approves kernels, again and again until `run` makes no call of a signature not judged yet.

    Raises `SpecError` where a kernel that `chosen` names disagrees.
    """
    verdicts: list[Verdict] = []
    judged: set[tuple[Any, ...]] = set()
    for _ in range(ROUNDS):
        with record() as calls:
            run()
        new = {signature: call for signature, call in calls.items() if signature not in judged}
        if not new:
            break
        judged.update(new)
        verdicts += approve(new.values(), chosen)
    return verdicts


_refused: set[tuple[str, str]] = set()


def forget() -> None:
    """Forgets every refusal and withdraws every approval."""
    for pair in _refused:
        kernels.withdraw(*pair)
    _refused.clear()
    for operation, backends in kernels.OPERATIONS.items():
        for backend in backends:
            kernels.withdraw(operation, backend)


def _refuse(operation: str, backend: str, why: str) -> None:
    _refused.add((operation, backend))
    if operation != ATTENTION:
        kernels.refuse(operation, backend, why)
    elif backend in _SWITCHES:
        _SWITCHES[backend](False)


def tag_caches() -> None:
    """Keeps what torch.compile stores apart by the attention kernels that are switched on: it takes one where it first
    sees a program, and would take it again from its cache where it has been refused since."""
    on = [name for name, enabled in _ENABLED.items() if enabled()]
    torch.compiler.config.cache_key_tag = " ".join([_TAG, "attention:", *on])


_TAG: str = torch.compiler.config.cache_key_tag
_ENABLED = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}

_SWITCHES = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
}
