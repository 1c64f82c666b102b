"""Ctrl-C and SIGTERM: never lost, heard where nothing is half done, and ended by the command, not by its workers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.05
"""Seconds after which an interrupt that was lost comes again."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: another program (a scheduler, `timeout`, `kill`) ends this one."""


class Ending:
    """Hears SIGTERM as Python hears Ctrl-C, and remembers it: typer has an exit in place of the error."""

    terminated = False

    def __call__(self, *_: Any) -> None:
        self.terminated = True
        raise Terminated


@contextmanager
def terminable() -> Iterator[Ending]:
    """Within this block SIGTERM raises `Terminated`, so that it ends as after Ctrl-C.

    Only Python's own handling of the signal is replaced, in the main thread; elsewhere nothing changes.
    """
    ending = Ending()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield ending
        return
    signal.signal(signal.SIGTERM, ending)
    try:
        yield ending
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def none_lost() -> Iterator[None]:
    """Within this block an interrupt that Python can only report and ignore (in a finaliser, in a callback of the
    garbage collector) comes again a moment later."""
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
            threading.Timer(AGAIN, signal.pthread_kill, (threading.main_thread().ident, number)).start()
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
    `KeyboardInterrupt` is raised, `Terminated` for a SIGTERM.

    Process pools cannot stop at any point: a worker that is just being started would be lost, and waited for in vain.
    Only Python's own handling of SIGINT and `terminable`'s of SIGTERM are replaced, in the main thread; elsewhere
    nothing changes.
    """
    heard: list[int] = []

    def hear(number: int, _: Any) -> None:
        heard.append(number)

    def check() -> None:
        if heard:
            replaced[heard[0]](heard[0], None)

    replaced: dict[int, Callable[[int, Any], Any]] = {}
    if threading.current_thread() is threading.main_thread():
        interrupt, terminate = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
        if interrupt is signal.default_int_handler:
            replaced[signal.SIGINT] = signal.default_int_handler
        if isinstance(terminate, Ending):
            replaced[signal.SIGTERM] = terminate
    for number in replaced:
        signal.signal(number, hear)
    try:
        yield check
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
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
