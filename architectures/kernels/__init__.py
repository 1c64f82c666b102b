"""The operations that have several implementations, and which one is used.

Each operation lists its backends, fastest first. `plain` is the definition, a loop over time; `chunked` the fast form
in torch for any device; the others are GPU kernels, imported when first used. `auto` takes the fastest backend that
is here, and a GPU kernel only once `approve` says that its outputs and gradients agreed with the plain form in this
process. A sequence of one token always takes the definition.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import SpecError, unknown

Kernels = str | Mapping[str, str]
"""`auto`, a backend's name for every operation that has it, or a backend by operation."""


@dataclass(frozen=True)
class Backend:
    """`target` is `module:function`; `package` what must be installed; `cuda` whether it needs a CUDA device;
    `half_only` whether it takes half precision alone."""

    target: str
    package: str | None = None
    cuda: bool = False
    half_only: bool = False


def _torch(module: str, form: str = "") -> dict[str, Backend]:
    home = f"architectures.kernels.{module}"
    return {"chunked": Backend(f"{home}:chunked{form}"), "plain": Backend(f"{home}:plain{form}")}


def _convolution(name: str, form: str) -> dict[str, Backend]:
    return {
        "triton": Backend(f"architectures.kernels.conv_operator:{name}", "triton", cuda=True),
        "fla": Backend(f"{_GPU}:{name}", "fla", cuda=True),
        **_torch("conv", form),
    }


_GPU = "architectures.kernels.gpu"
OPERATIONS: dict[str, dict[str, Backend]] = {
    "scan": _torch("scan"),
    "short_conv": _convolution("short_conv", ""),
    "short_conv_silu": _convolution("short_conv_silu", "_silu"),
    "ssd": {"mamba_ssm": Backend(f"{_GPU}:ssd", "mamba_ssm", cuda=True), **_torch("ssd")},
    "gated_delta": {"fla": Backend(f"{_GPU}:gated_delta", "fla", cuda=True, half_only=True), **_torch("delta")},
    "delta": {"fla": Backend(f"{_GPU}:delta", "fla", cuda=True, half_only=True), **_torch("delta")},
    "kda": {"fla": Backend(f"{_GPU}:kda", "fla", cuda=True, half_only=True), **_torch("kda")},
    "gla": {"fla": Backend(f"{_GPU}:gla", "fla", cuda=True), **_torch("gla")},
}

HALF = (torch.bfloat16, torch.float16)
COMPILED: dict[str, tuple[str, ...]] = dict.fromkeys(("short_conv", "short_conv_silu"), ("triton", "fla", "plain"))
"""Backends in `auto`'s order under torch.compile on a GPU, where it is another than the table's: of these operations
the compiler makes kernels of the definition that are faster than torch's own. `("plain",)` leaves them to it."""

_approved: set[tuple[str, str]] = set()
_refused: dict[tuple[str, str], str] = {}

listeners: list[Callable[[str, tuple[Tensor | None, ...]], None]] = []
"""Each hears of every call: the operation and its arguments."""


def approve(operation: str, backend: str) -> None:
    """Lets `auto` use a GPU kernel: its outputs and gradients agreed with the plain form in this process."""
    if backend not in OPERATIONS[operation]:
        raise unknown(f"kernels.{operation}", backend, OPERATIONS[operation])
    _approved.add((operation, backend))


def refuse(operation: str, backend: str, why: str) -> None:
    """Undoes `approve`, and lets nobody have the kernel who asks for it by name: it disagreed in this process."""
    withdraw(operation, backend)
    _refused[operation, backend] = why


def withdraw(operation: str, backend: str) -> None:
    """Undoes `approve` and `refuse`."""
    _approved.discard((operation, backend))
    _refused.pop((operation, backend), None)


def check(kernels: Kernels, device: str | None = None) -> None:
    """Raises `SpecError` if `kernels` names an operation or a backend that no table has, or, where the type of a device
    is given (`cpu`, `cuda`), one that cannot run there."""
    everywhere = {"auto"}.union(*OPERATIONS.values())
    if isinstance(kernels, str):
        if kernels not in everywhere:
            raise unknown("kernels", kernels, everywhere)
        if device is not None and kernels != "auto":
            named = next(backends[kernels] for backends in OPERATIONS.values() if kernels in backends)
            _check_here("kernels", kernels, named, device)
        return
    if not isinstance(kernels, Mapping):
        raise SpecError(f"kernels: expected a name or `operation: backend`, not {kernels!r}; nearest: 'auto'")
    for operation, backend in kernels.items():
        if operation not in OPERATIONS:
            raise unknown("kernels", operation, OPERATIONS)
        if backend not in {"auto", *OPERATIONS[operation]}:
            raise unknown(f"kernels.{operation}", backend, {"auto", *OPERATIONS[operation]})
        if device is not None and backend != "auto":
            _check_here(f"kernels.{operation}", backend, OPERATIONS[operation][backend], device)


def _check_here(key: str, name: str, backend: Backend, device: str) -> None:
    if backend.cuda and device != "cuda":
        raise SpecError(f"{key}: {name!r} needs a CUDA device, this is {device!r}; nearest: 'chunked'")
    if not installed(backend):
        raise SpecError(f"{key}: {name!r} needs the package {backend.package!r}; nearest: 'chunked'")


def told(operation: str, kernels: Kernels) -> str | None:
    """The backend that is asked for by name, None where it is left to `auto`."""
    name = kernels if isinstance(kernels, str) else kernels.get(operation, "auto")
    return name if name in OPERATIONS[operation] else None


_torch_forms = False


@contextmanager
def torch_forms() -> Iterator[None]:
    """Within, every operation runs in its fast form in torch, whatever was asked for or approved, and attention in
    torch's composite form."""
    global _torch_forms
    before, _torch_forms = _torch_forms, True
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _torch_forms = before


def choose(operation: str, kernels: Kernels, device: str, dtype: torch.dtype = torch.bfloat16) -> str:
    """The backend that runs `operation` on a device type (`cpu`, `cuda`) for inputs of `dtype`.

    One that was asked for and cannot run here raises `SpecError`; an operation without it takes what `auto` takes.
    """
    backends = OPERATIONS[operation]
    if _torch_forms:
        return next(name for name, backend in backends.items() if not backend.cuda)
    name = told(operation, kernels)
    if name is not None:
        backend = backends[name]
        _check_here(f"kernels.{operation}", name, backend, device)
        if backend.half_only and dtype not in HALF:
            raise SpecError(f"kernels.{operation}: {name!r} runs in half precision, not {dtype}; nearest: 'chunked'")
        if (operation, name) in _refused:
            raise SpecError(f"kernels.{operation}: {name!r}: {_refused[operation, name]}; nearest: 'auto'")
        return name
    names: Iterable[str] = backends
    if device == "cuda" and operation in COMPILED and torch.compiler.is_compiling():
        names = COMPILED[operation]
    for name in names:
        backend = backends[name]
        if not backend.cuda:
            return name
        if device == "cuda" and (operation, name) in _approved and (dtype in HALF or not backend.half_only):
            return name
    raise AssertionError(f"{operation} has no backend without a GPU")


_functions: dict[str, Callable[..., Any]] = {}


def load(operation: str, backend: str) -> Callable[..., Any]:
    """The function behind a backend."""
    target = OPERATIONS[operation][backend].target
    if target not in _functions:
        module, _, name = target.partition(":")
        _functions[target] = getattr(importlib.import_module(module), name)
    return _functions[target]


@functools.cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def installed(backend: Backend) -> bool:
    """Whether the package that a backend needs is here."""
    return backend.package is None or _installed(backend.package)


def call(operation: str, kernels: Kernels, used: dict[str, str], *args: Tensor | None) -> Any:
    """Runs `operation` on `args`, the first of them `(B, T, ...)`, and notes the backend in `used`."""
    first = args[0]
    assert first is not None
    for hear in listeners:
        hear(operation, args)
    if first.shape[1] == 1:
        backend = "plain"
    else:
        backend = choose(operation, kernels, first.device.type, first.dtype)
        used[operation] = backend
    return run(operation, backend, *args)


def run(operation: str, backend: str, *args: Tensor | None) -> Any:
    """Runs one backend of an operation.

    The forms in torch compute in float32 what comes in half precision; the outputs take the first argument's dtype,
    states keep theirs.
    """
    first = args[0]
    assert first is not None
    function = load(operation, backend)
    if OPERATIONS[operation][backend].cuda:
        return function(*args)
    with torch.autocast(first.device.type, enabled=False):
        output, state = function(*(full(x) if x is not None else None for x in args))
    return output.to(first.dtype), state


def full(x: Tensor) -> Tensor:
    """`x` in float32 if it is in half precision, else unchanged."""
    return x.float() if x.dtype in HALF else x
