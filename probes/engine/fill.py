"""How many trials a pack holds: as many as measured memory allows, up to the number that keeps a device busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

LIMIT = 28
"""Members of a pack at most. PyTorch has 32 streams of one priority a device, and every member captures on its own."""
SPARE = 0.15
"""Fraction of the device's memory that is left for evaluation."""
MARGIN = 1.25
"""A newcomer is expected to take the largest measured member's memory times this."""


class Room:
    """Says whether one more trial fits. `free()`: bytes free and bytes in all on the device."""

    def __init__(self, free: Callable[[], tuple[int, int]], limit: int = LIMIT) -> None:
        self.free, self.limit = free, limit
        self.full = False
        """Set when an admission ran out of memory, until somebody leaves."""

    def has(self, memories: Sequence[int]) -> bool:
        """Whether another fits beside members that took `memories` bytes each. The first always may try."""
        if not memories:
            return True
        if self.full or len(memories) >= self.limit:
            return False
        free, total = self.free()
        return free - MARGIN * max(memories) >= SPARE * total


def device_room(device: torch.device, limit: int = LIMIT) -> Room:
    """The room on a device: all of it where memory is not the device's own to count."""
    if device.type != "cuda":
        return Room(lambda: (1, 1), limit)

    def free() -> tuple[int, int]:
        unused, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return unused + max(0, cached - _in_graphs(device)), total

    return Room(free, limit)


def _in_graphs(device: torch.device) -> int:
    """Bytes that graphs hold for their replays: reserved in private pools, not to be had by anybody else."""
    held = 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] == (device.index or 0) and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            held += segment["total_size"] - segment["allocated_size"]
    return held
