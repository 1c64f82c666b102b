"""Ctrl-C: one line, nothing left running, and the same command goes on where it stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes import sweep
from probes.catalogue import load_catalogue
from probes.executor import Job, run_jobs
from probes.interrupts import Terminated, held, none_lost, terminable, unheard_by_children
from probes.trial import Runtime

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = "fastslow: interrupted; the same command goes on where it stopped\n"
SWEEP = """
suites:
  interrupted:
    tasks: [parity]
    task: {length: 8}
    architectures: [attention]
    arch: {d_model: 16, d_ff: 16}
    train: {steps: 200, batch_size: 8, evaluations: 8}
    evaluate: {validation_sequences: 8, test_sequences: 16}
    learning_rates: [1.0e-4, 3.0e-4, 1.0e-3, 3.0e-3, 1.0e-2, 3.0e-2]
    smoke: true
"""


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """SIGINT as under a terminal: a shell without one has its background jobs, and what they start, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_held_until_it_is_asked_for():
    said = []

    def work() -> None:
        with held() as check:
            check()
            interrupt()
            said.append("after")
            check()
            said.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert said == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_was_not_asked_for_comes_at_the_end():
    said = []

    def work() -> None:
        with held():
            interrupt()
            said.append("whole")
        said.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert said == ["whole"]


def test_sigterm_is_held_too_and_handled_as_before_afterwards():
    said = []

    def work() -> None:
        with terminable() as ending:
            try:
                with held() as check:
                    signal.raise_signal(signal.SIGTERM)
                    said.append("after")
                    check()
                    said.append("never")
            finally:
                said.append("terminated" if ending.terminated else "not")

    with pytest.raises(Terminated):
        work()
    assert said == ["after", "terminated"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_is_not_lost_in_a_finaliser():
    class Finalised:
        def __del__(self) -> None:
            interrupt()

    def work() -> None:
        with none_lost():
            Finalised()
            time.sleep(10)

    hook, started = sys.unraisablehook, time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - started < 5
    assert sys.unraisablehook is hook


def test_children_do_not_hear_interrupts():
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with unheard_by_children():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert child.poll() is None
        child.terminate()


def start(tmp_path: Path) -> subprocess.Popen[str]:
    """A sweep of two workers, in a process group of its own as under a terminal."""
    config = tmp_path / "suite.yaml"
    config.write_text(SWEEP)
    words = ["sweep", "interrupted", "--config", str(config), "--out", str(tmp_path), "--workers", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "probes", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[str], times: int = 1, *, code: int = 130, group: bool = True) -> str:
    """What Ctrl-C does in a terminal, or SIGTERM for the code 143, to the group or the command alone, and what the
    sweep then says; nothing of its group is left."""
    for _ in range(times):
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT if code == 130 else signal.SIGTERM)
        time.sleep(0.1)
    try:
        _, said = process.communicate(timeout=60)
        for _ in range(50):
            time.sleep(0.1)
            os.killpg(process.pid, 0)
    except ProcessLookupError:
        assert process.returncode == code
        return said
    except subprocess.TimeoutExpired:
        pass
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("the sweep did not end")


@pytest.mark.slow
def test_an_interrupted_sweep_says_one_line_and_goes_on(tmp_path: Path):
    process, trials = start(tmp_path), tmp_path / "interrupted" / "trials"
    while process.poll() is None and not list(trials.glob("[!.]*/result.json")):
        time.sleep(0.02)
    assert stop(process) == INTERRUPTED
    kept = {path: path.stat().st_mtime_ns for path in trials.glob("[!.]*/result.json")}
    assert 0 < len(kept) < 6
    process = start(tmp_path)
    out, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    assert f"{len(kept)} of 6 trials found finished" in out
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(list(trials.glob("[!.]*/result.json"))) == 6


def test_an_interrupt_ends_the_workers_whatever_they_have_to_do(tmp_path: Path):
    """A thread of the pool that fails is an error of the test."""
    (tmp_path / "suite.yaml").write_text(SWEEP)
    catalogue = load_catalogue(tmp_path / "suite.yaml")
    (group,) = sweep.expand(catalogue.suite("interrupted"), catalogue, {"train": {"steps": 8}})
    finished = []

    def then(job: Job, row: dict[str, Any]) -> list[Job]:
        finished.append(row["status"])
        interrupt()
        return []

    with pytest.raises(KeyboardInterrupt):
        run_jobs(group.search, tmp_path, Runtime(), workers=2, threads=1, then=then)
    assert set(finished) == {"ok"}
    assert len(finished) < len(group.search)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("seconds", [2.5, 3, 3.5, 4, 4.5, 5])
def test_a_sweep_can_be_interrupted_at_any_time(tmp_path: Path, seconds: float, times: int):
    process = start(tmp_path)
    time.sleep(seconds)
    assert stop(process, times) == INTERRUPTED


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("seconds", [3, 4, 5])
def test_a_terminated_sweep_says_one_line_and_leaves_nothing(
    tmp_path: Path, seconds: float, ignored: bool, group: bool
):
    """Also where SIGINT is ignored, as in the background jobs of a script, and where the workers get SIGTERM too."""
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start(tmp_path)
    time.sleep(seconds)
    assert stop(process, code=143, group=group) == INTERRUPTED.replace("interrupted", "terminated")
