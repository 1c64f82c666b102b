"""The two rates that bound inference, measured on the device in the same run: a copy's bytes, a product's FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Rates(NamedTuple):
    """`copy`: bytes read and written a second by a copy; `product`: FLOPs a second of a square product in bf16."""

    copy: float
    product: float


def seconds(work: Callable[[], object], device: torch.device, *, repeats: int = 1) -> float:
    """Wall time of `repeats` calls, with everything they started finished."""
    synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(device: torch.device, *, copied: int, size: int, repeats: int = 10) -> Rates:
    """The best of three runs of `repeats` copies of `copied` bytes, and of products of `size x size` matrices."""
    source = torch.randint(127, (copied,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    target.copy_(source)
    product = left @ right

    def best(work: Callable[[], object]) -> float:
        return min(seconds(work, device, repeats=repeats) for _ in range(3)) / repeats

    copy = best(lambda: target.copy_(source))
    multiply = best(lambda: torch.mm(left, right, out=product))
    return Rates(2 * copied / copy, 2 * size**3 / multiply)
