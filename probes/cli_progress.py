"""The progress of a sweep: trials finished, and each running trial's step and excess, with the time that is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

if TYPE_CHECKING:
    from probes.trial import Event


class Pace:
    """Steps done and the time that the others will take, at the pace since the start.

    Steps taken by trials that were finished or under way before the start count as done, not towards the pace.
    """

    def __init__(self, steps: int, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.before, self.clock = steps, done, clock
        self.started = clock()
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def see(self, trial: str, step: int) -> None:
        """A trial has reached `step`."""
        self.first.setdefault(trial, step - 1)
        self.last[trial] = step

    @property
    def done(self) -> int:
        """Steps behind us, from trials found finished or reported since."""
        return min(self.steps, self.before + sum(self.last.values()))

    def seconds_left(self) -> float | None:
        """None before there is a pace."""
        taken = sum(self.last[trial] - self.first[trial] for trial in self.last)
        elapsed = self.clock() - self.started
        return None if taken <= 0 or elapsed <= 0 else (self.steps - self.done) * elapsed / taken


def duration(seconds: float | None) -> str:
    """`1:02:03` or `2:03`; dashes where it is not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Bar:
    """Listens to the events of trials. On a terminal a live display, elsewhere one line a finished trial."""

    def __init__(self, console: Console, *, trials: int, finished: int, steps: int) -> None:
        self.console, self.trials, self.finished = console, trials, finished
        self.pace = Pace(trials * steps, finished * steps)
        self.rows: dict[str, TaskID] = {}
        self.ended: set[str] = set()
        self.live = console.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.total = self.progress.add_task("trials", total=trials, completed=finished, note="time left -:--")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event.trial in self.ended:
            return
        name = re.sub(r"-[0-9a-f]{12}$", "", event.name)
        excess = "" if event.excess != event.excess else f"excess {event.excess:.4f}"
        self.pace.see(event.trial, event.step)
        left = f"time left {duration(self.pace.seconds_left())}"
        if event.trial not in self.rows:
            self.rows[event.trial] = self.progress.add_task(f"  {name}", total=event.steps, note=excess)
        self.progress.update(self.rows[event.trial], completed=event.step, note=excess)
        if event.step == event.steps:
            self.ended.add(event.trial)
            self.finished += 1
            self.progress.remove_task(self.rows[event.trial])
            self.progress.update(self.total, completed=self.finished)
            known = ", ".join(filter(None, (f"{event.steps} steps", excess and f"validation {excess}", left)))
            self.console.print(f"{self.finished}/{self.trials} {name}: {known}")
        self.progress.update(self.total, note=left)
