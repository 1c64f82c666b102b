"""The command `fastslow`. What a command needs is imported when it runs, so that listing and help are quick."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from probes.cli_common import import_user_errors, one_line
from probes.cli_usage import between, describe_usage
from probes.interrupts import Ending, none_lost, terminable
from probes.plugins import append_to_path
from probes.settings import CatalogueError

app = typer.Typer(
    name="fastslow",
    help="Sequence tasks whose best predictor is known exactly, and small models scored in nats over it.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Sets = Annotated[list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A dial, as task.overlap=1.0.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A file like tasks.yaml; its entries come first.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Seed = Annotated[
    int, typer.Option("--seed", callback=between(0, 2**63 - 1), help="Seed of the streams and of the initialisation.")
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="float32 or bf16; default: float32 on a CPU, bf16 on a GPU.")
]
Kernels = Annotated[str, typer.Option("--kernels", help="auto takes the fastest that this machine has.")]
Mix = Annotated[bool, typer.Option("--mix", help="Accept trials recorded under another environment.")]


def _folder(given: str | Path) -> Path:
    if not str(given).strip():
        raise typer.BadParameter(f"{given!r} names no folder; nearest is 'runs'")
    place = next((part for part in (Path(given), *Path(given).parents) if part.exists()), Path())
    if not place.is_dir():
        raise typer.BadParameter(f"{str(place)!r} is a file, not a folder; nearest is 'runs'")
    return Path(given)


Out = Annotated[Path, typer.Option("--out", metavar="DIR", parser=_folder, help="Folder for results.")]

INTERRUPTED, TERMINATED = 130, 143
"""The exit codes of a command that SIGINT or SIGTERM ended, as a shell has them."""


def _version(wanted: bool) -> None:
    if wanted:
        from probes.environment import version

        print(f"fastslow {version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sequence tasks whose best predictor is known exactly, and small models scored in nats over it."""


@app.command("ls")
def ls(
    what: Annotated[str, typer.Argument(help="tasks, architectures, suites or figures; all of them if left out.")] = "",
    scale: Annotated[
        str,
        typer.Option(help="Count the papers' models at this scale instead: 180M, 440M, 1.5B; 130M, 380M, 810M, 1.4B."),
    ] = "",
    config: Config = None,
) -> None:
    """List tasks, architectures, suites and figures, or what the papers' models cost at a scale."""
    from probes.cli_list import show, show_scale

    if scale:
        show_scale(what, scale)
    else:
        show(what, config)


@app.command()
def check(
    architecture: Annotated[str, typer.Argument(help="An architecture; the whole catalogue if left out.")] = "",
    task: Annotated[str, typer.Option("--task", help="The task whose vocabulary and head the model gets.")] = "",
    set_: Sets = [],  # noqa: B006
    device: Device = "cpu",
    kernels: Kernels = "auto",
    config: Config = None,
) -> None:
    """Check an architecture: shapes, causality, gradients, decoding, state, determinism, saving."""
    from probes.cli_check import check_architectures

    check_architectures(architecture, task, set_, kernels=kernels, device=device, config=config)


@app.command()
def bayes(
    task: Annotated[str, typer.Argument(help="A task of the catalogue, or task:package.module:Name.")] = "",
    set_: Sets = [],  # noqa: B006
    sweep: Annotated[str, typer.Option(metavar="KEY=A:B:N", help="A table over a dial, task.overlap=0.1:1:10.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="A table of all tasks of the catalogue.")] = False,
    compare: Annotated[
        str, typer.Option(metavar="SMALL,LARGE", help="For mqar: two memories, in pairs, over the load.")
    ] = "",
    sequences: Annotated[
        int | None,
        typer.Option(callback=between(2), help="Test sequences to score; default: 1024, 64 a task with --all."),
    ] = None,
    seed: Seed = 0,
    config: Config = None,
) -> None:
    """Print the exact references of a task: entropy, excess of each restriction, accuracy. Nothing is trained."""
    from probes import cli_bayes

    if all_ == bool(task) or (all_ and (set_ or sweep or compare)) or (sweep and compare):
        raise CatalogueError("bayes takes either a TASK (and --set, and --sweep or --compare) or --all")
    if all_:
        cli_bayes.show_all(sequences=sequences or 64, seed=seed, config=config)
        return
    if compare:
        cli_bayes.show_comparison(task, compare, set_, config=config)
        return
    sequences = sequences or 1024
    if sweep:
        cli_bayes.show_sweep(task, sweep, set_, sequences=sequences, seed=seed, config=config)
    else:
        cli_bayes.show(task, set_, sequences=sequences, seed=seed, config=config)


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="A task of the catalogue, or task:package.module:Name.")],
    architecture: Annotated[str, typer.Argument(help="An architecture, or mixer:, model: or fla: and its name.")],
    set_: Sets = [],  # noqa: B006
    seed: Seed = 0,
    device: Device = "cpu",
    precision: Precision = None,
    kernels: Kernels = "auto",
    out: Out = Path("runs"),
    mix: Mix = False,
    distil: Annotated[
        bool, typer.Option("--distil", help="Then replace an AMOR model's entropy gate by routers.")
    ] = False,
    config: Config = None,
) -> None:
    """Train one architecture on one task and score it."""
    from probes.cli_run import run_trial, runtime_options

    runtime = runtime_options(device, precision, kernels)
    if distil:
        from probes.cli_gate import refuse_to_distil

        refuse_to_distil(architecture, set_, config)
    result = run_trial(task, architecture, set_, seed=seed, out=out, config=config, mix=mix, runtime=runtime)
    if distil:
        from probes.cli_gate import distil_and_print

        distil_and_print(result, out, device)


@app.command()
def sweep(
    suite: Annotated[str, typer.Argument(help="A suite of the catalogue.")],
    set_: Sets = [],  # noqa: B006
    out: Out = Path("runs"),
    device: Device = "cpu",
    devices: Annotated[
        str | None, typer.Option(metavar="0,1", help="Several CUDA devices, or all; instead of --device.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(callback=between(1), help="Trials at a time; default: one a core.")
    ] = None,
    precision: Precision = None,
    kernels: Kernels = "auto",
    mix: Mix = False,
    config: Config = None,
) -> None:
    """Run a suite; the same command again goes on where it stopped."""
    from probes.cli_run import run_sweep, runtime_options
    from probes.device_names import read_devices

    runtime = runtime_options(device, precision, kernels)
    if devices is not None:
        runtime["devices"] = read_devices(devices)
    run_sweep(suite, set_, out=out, workers=workers, config=config, mix=mix, runtime=runtime)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a recorded sweep or trial.")],
    all_: Annotated[bool, typer.Option("--all", help="Also the trials at every learning rate that was tried.")] = False,
) -> None:
    """Print the table of a recorded sweep."""
    from probes.cli_report import print_report

    print_report(folder, search=all_)


@app.command()
def figures(
    name: Annotated[str, typer.Argument(help="A figure; all of them if left out.")] = "",
    out: Out = Path("runs/figures"),
    set_: Annotated[
        list[str], typer.Option("--set", metavar="DIAL=VALUE", help="A dial of the figure, as ls figures lists them.")
    ] = [],  # noqa: B006
) -> None:
    """Draw figures, from code or from recorded results, as PNG and SVG. `fastslow ls figures` lists their dials."""
    from probes.cli_figures import draw

    draw(name, out=out, sets=set_)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="A benchmark; the list of them if left out.")] = "",
    set_: Annotated[list[str], typer.Option("--set", metavar="DIAL=VALUE", help="A dial of the benchmark.")] = [],  # noqa: B006
    out: Out = Path("runs/bench"),
) -> None:
    """Measure speed."""
    from probes.cli_figures import benchmark

    benchmark(name, out=out, sets=set_)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits: 0, 1 for what a user can put right (one line on stderr), 2 for wrong usage, 130 for
    an interrupt, 143 for SIGTERM. `FASTSLOW_TRACEBACK=1` shows where an error came from."""
    append_to_path(Path.cwd())
    own = arguments is None  # the process is this command's
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with none_lost(), terminable() as ending:
            code = app(args=arguments or ["--help"], prog_name="fastslow", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if os.environ.get("FASTSLOW_TRACEBACK"):
            raise
        if isinstance(error, import_user_errors()):
            _fail(one_line(error), 1)
        if isinstance(error, ValueError):
            _fail(f"{error} (FASTSLOW_TRACEBACK=1 shows where)", 1)
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own, whose module has moved
            _fail(describe_usage(error), error.exit_code)
        if type(error).__name__ != "Abort":
            raise
        code = INTERRUPTED
    if code == INTERRUPTED and own:
        _end_at_once(*_interrupted(arguments, ending))
    if code == INTERRUPTED:
        _fail(*_interrupted(arguments, ending))
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted(arguments: list[str], ending: Ending) -> tuple[str, int]:
    """What is said, and the exit code."""
    what, code = ("terminated", TERMINATED) if ending.terminated else ("interrupted", INTERRUPTED)
    resumes = arguments[:1] in (["run"], ["sweep"])
    return f"{what}; the same command goes on where it stopped" if resumes else what, code


def _end_at_once(message: str, code: int) -> None:
    """Ends the process without Python's own clean-up, in which JAX crashes while it compiles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.collect()  # gives back what processes shared
    with suppress(OSError):
        sys.stdout.flush()
    _say(message)
    os._exit(code)


def _fail(message: str, code: int) -> None:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    print(f"fastslow: {' '.join(message.split())}", file=sys.stderr, flush=True)
