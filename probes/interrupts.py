"""Ctrl-C: never lost, heard where nothing is half done, and by the command alone, not by its workers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.05
"""Seconds after which an interrupt that was lost comes again."""


@contextmanager
def none_lost() -> Iterator[None]:
    """Within this block an interrupt that Python can only report and ignore (in a finaliser, in a callback of the
    garbage collector) comes again a moment later."""
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Within this block an interrupt waits for its end, or until the function that it gives is called: then
    `KeyboardInterrupt` is raised.

    Process pools cannot stop at any point: a worker that is just being started would be lost, and waited for in vain.
    Only Python's own handling of SIGINT is replaced, in the main thread; elsewhere nothing changes.
    """
    heard = False

    def hear(*_: Any) -> None:
        nonlocal heard
        heard = True

    def check() -> None:
        if heard:
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    check()


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Processes started within this block never hear SIGINT, which a terminal sends to all of a command's processes.

    They inherit the signals that this thread blocks; what it misses itself is delivered at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
