"""How far the linear probes of layers can be told apart: probes of known features over fresh draws of sequences.

Layer i of a model that is not trained holds exactly the log posterior of the regime given the last `windows[i]` tokens,
so that all that varies from draw to draw is what the probe's validation and test sequences happen to be.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor, nn

from filters import torch_backend
from probes import environment
from probes.catalogue import CatalogueError, load_catalogue
from probes.cli_common import number, places, show_table, table
from probes.config import Evaluation
from probes.files import whole_file
from probes.readouts import layer_readouts
from probes.results import write_json
from probes.splits import evaluation_blocks
from probes.task import Task
from probes.tasks.two_timescale import TwoTimescale

DIALS: dict[str, Any] = {
    "task": "two_timescale_slow",
    "windows": [4, 7, 8],
    "positions": Evaluation.model_fields["readout_positions"].default,
    "draws": 8,
    "sequences": 256,
}
"""`positions`: for fitting, and for testing, of at most `sequences` sequences each."""


class Windows(nn.Module):
    """A model whose layer i is `log P(z_t | last windows[i] tokens)`, `(B, T, K)`, floored at 1e-30."""

    def __init__(self, task: TwoTimescale, windows: list[int]) -> None:
        super().__init__()
        self.task, self.windows = task, windows

    def forward(self, tokens: Tensor, *, positions: Tensor, features: bool) -> Any:
        found = (torch_backend.window(self.task.hmm, tokens, width).posterior for width in self.windows)
        return SimpleNamespace(extras={"features": [posterior.clamp_min(1e-30).log() for posterior in found]})


def run(
    out: Path,
    *,
    task: str = "two_timescale_slow",
    windows: list[int] = DIALS["windows"],
    positions: int = DIALS["positions"],
    draws: int = 8,
    sequences: int = 256,
) -> dict[str, Any]:
    """Probes every window on `draws` draws; prints mean, spread and the mean standard error that a trial would print,
    of each window and of its difference from the one before; writes `bench_readouts.json`.

    Raises `CatalogueError` for a task of another kind than `two_timescale`.
    """
    made: Task = load_catalogue().make_task(task)
    if not isinstance(made, TwoTimescale):
        raise CatalogueError(
            f"--set task={task}: probes of windows want a task of kind two_timescale; nearest is {DIALS['task']!r}"
        )
    model = Windows(made, windows)
    explained, errors = np.empty((draws, len(windows))), np.empty((draws, len(windows)))
    for draw in range(draws):
        fit, test = (evaluation_blocks(made, draw, split, sequences) for split in ("validation", "test"))
        for readout in layer_readouts(model, made, fit, test, positions=positions):
            explained[draw, readout.layer], errors[draw, readout.layer] = readout.explained, readout.explained_se
    rows = [_row(f"window {width}", explained[:, i], errors[:, i]) for i, width in enumerate(windows)]
    rows += [
        _row(f"window {windows[i]} less {windows[i - 1]}", explained[:, i] - explained[:, i - 1])
        for i in range(1, len(windows))
    ]
    columns = ("feature", "explained, mean", "s.d. over draws", "smallest", "largest", "mean s.e. of one")
    title = f"linear probes for the regime of {task}, {positions} positions, {draws} draws"
    show_table(table(columns, rows, right=columns[1:]), title)
    found = {
        "environment": environment.describe("cpu", precision="float64", kernels="auto"),
        "dials": {"task": task, "windows": windows, "positions": positions, "draws": draws, "sequences": sequences},
        "explained": explained.tolist(),
        "explained_se": errors.tolist(),
    }
    with whole_file(out / "bench_readouts.json") as temporary:
        write_json(temporary, found)
    return found


def _row(name: str, values: np.ndarray, errors: np.ndarray | None = None) -> list[str]:
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    digits = places(spread)
    cells = [number(float(value), digits=digits) for value in (values.mean(), spread, values.min(), values.max())]
    return [name, *cells, "" if errors is None else number(float(errors.mean()), digits=digits)]
