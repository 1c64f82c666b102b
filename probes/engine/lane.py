"""A lane: one fixed sequence of device operations on a stream of its own, captured once and replayed.

On a device without CUDA graphs, or with `capture=False`, the operations are launched again each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

WARM_UP = 2
"""Runs before the capture: kernels are compiled and tuned, libraries set up."""


class Lane:
    """Runs `work` again and again.

    Each lane warms up and captures on a stream of its own, so that the workspaces of the matrix library, which belong
    to the stream of the capture, are never shared by two graphs that run at once. PyTorch has 32 streams a device and
    hands them out in turn: whoever keeps more lanes than that, or replaces them, gives `stream` and sees to it.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        *,
        capture: bool = True,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.work, self.device, self.captures = work, device, capture
        self.stream = stream or (torch.cuda.Stream(device) if device.type == "cuda" else None)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shared: torch.cuda.Stream | None = None
        """Where the graph is replayed, if not on its own stream: a stream that lanes share takes them in turn."""
        self.warm_up_seconds = 0.0
        self.capture_seconds = 0.0

    def capture(self, save: Callable[[], Callable[[], None]]) -> None:
        """Warms up and captures. `save` keeps the state that `work` changes and returns what puts it back in place.

        Whatever `work` raises passes through, with the state put back.
        """
        if self.stream is None or not self.captures:
            return
        started = time.perf_counter()
        restore = save()
        torch.cuda.synchronize(self.device)
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UP):
                    self.work()
            torch.cuda.synchronize(self.device)
            self.warm_up_seconds = time.perf_counter() - started
            started = time.perf_counter()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.work()
            self.graph = graph
        finally:
            torch.cuda.synchronize(self.device)
            restore()
            torch.cuda.synchronize(self.device)
            self.capture_seconds = time.perf_counter() - started

    @property
    def current(self) -> torch.cuda.Stream | None:
        """The stream that `run` launches on."""
        return self.stream if self.graph is None or self.shared is None else self.shared

    def here(self) -> AbstractContextManager[object]:
        """What is launched in this context is launched on the lane's stream, its memory belongs there."""
        return nullcontext() if self.current is None else torch.cuda.stream(self.current)

    def run(self) -> None:
        """Launches `work` once, without waiting for it."""
        launched = self.work if self.graph is None else self.graph.replay
        with self.here():
            launched()

    def mark(self) -> torch.cuda.Event | None:
        """An event after all that has been launched."""
        return None if self.current is None else self.current.record_event()

    def after(self, event: torch.cuda.Event | None) -> None:
        """What is launched from here on waits for `event`."""
        if self.current is not None and event is not None:
            self.current.wait_event(event)

    def wait(self) -> None:
        """Waits on the host until all that has been launched is done."""
        if self.current is not None:
            self.current.synchronize()
