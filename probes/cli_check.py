"""`fastslow check`: whether an architecture does what every one must."""

from __future__ import annotations

from pathlib import Path

import typer

from probes.catalogue import CatalogueError, load_catalogue, parse_sets
from probes.cli_common import console, show_table, table
from probes.device_names import check_device

VOCABULARY = 16
"""Tokens of the models that are checked where no task is named."""


def check_architectures(
    name: str, task_name: str, sets: list[str], *, kernels: str, device: str, config: Path | None
) -> None:
    """Checks one architecture, or the whole catalogue, for a task's vocabulary. Exits with 1 where an item fails."""
    import torch

    from architectures.check import check as run_check
    from architectures.check import passed

    torch.set_num_threads(1)  # the models are small: more threads wait for each other longer than they work
    check_device(device)
    given = parse_sets(sets)
    for section, settings in given.items():
        if section not in ("arch", "task"):
            raise CatalogueError(f"--set {section}.{next(iter(settings))}: check takes dials of arch and task only")
    catalogue = load_catalogue(config)
    vocabulary, head = VOCABULARY, None
    if task_name:
        task = catalogue.make_task(task_name, given.get("task"))
        vocabulary, head = task.vocab_size, task.head
    elif "task" in given:
        raise CatalogueError("--set task: name the task with --task")
    names = [name] if name else list(catalogue.architectures)
    specs = {each: catalogue.make_spec(each, given.get("arch"), vocab_size=vocabulary, head=head) for each in names}
    failed = 0
    for each, spec in specs.items():
        results = run_check(spec, kernels=kernels, device=device)
        failed += not passed(results)
        show_table(table(["item", "status", "detail"], results), each)
    console.print(f"{len(specs) - failed} of {len(specs)} architectures pass")
    if failed:
        raise typer.Exit(1)
