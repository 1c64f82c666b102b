"""The published schema of results: one row a trial, one `curves.npz` a trial. Importing this needs no torch.

A trial's folder holds `trial.json` (what fixes its numbers), `result.json` (its row), `curves.npz` (what is indexed
by step, position or label) and `weights.safetensors`. A sweep's folder holds `trials/` and `results.parquet`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from probes.files import whole_file

SCHEMA_VERSION = 1

COLUMNS: dict[str, tuple[str, str]] = {
    "schema_version": ("int64", "version of this schema"),
    "trial": ("string", "identity: SHA-256 of task, spec, recipe and seeds"),
    "folder": ("string", "the trial's folder below trials/"),
    "status": ("string", "ok | diverged (loss not finite) | failed (see error)"),
    "error": ("string", "one line; where status is ok, which variants could not be scored, else empty"),
    "task": ("string", "the task's name in the catalogue"),
    "task_kind": ("string", "the task's kind"),
    "task_version": ("int64", "version of the task's generator and references"),
    "architecture": ("string", "the architecture's name in the catalogue"),
    "point": ("string", "the grid point, as `key=value` pairs; empty without a grid"),
    "matched": ("string", "what the suite matched its architectures in; empty where it did not"),
    "match_residual": (
        "float64",
        "that quantity over the first architecture's, minus 1; NaN where nothing was matched",
    ),
    "model_seed": ("int64", "seed of the initialisation"),
    "data_seed": ("int64", "seed of the streams"),
    "lr": ("float64", "peak learning rate"),
    "steps": ("int64", "training steps"),
    "chosen": ("bool", "its learning rate was chosen on validation for its task, architecture and grid point"),
    "lr_at_edge": ("bool", "the chosen learning rate is an end of the grid"),
    "excess": ("float64", "nats over Bayes per scored test position: excess_kl, else excess_sampled"),
    "excess_se": ("float64", "its standard error over sequences"),
    "excess_kl": ("float64", "mean KL(Bayes || model), nats; NaN where no exact predictive is known"),
    "excess_kl_se": ("float64", "its standard error over sequences"),
    "excess_sampled": ("float64", "mean difference of log losses, nats"),
    "excess_sampled_se": ("float64", "its standard error over sequences"),
    "agreement": ("float64", "excess_sampled - excess_kl; beyond 4 standard errors the target has leaked"),
    "agreement_se": ("float64", "its standard error over sequences"),
    "nll": ("float64", "mean negative log-likelihood of the targets, nats"),
    "accuracy": ("float64", "fraction of scored positions whose most probable token is the target"),
    "accuracy_se": ("float64", "its standard error over sequences"),
    "sequence_accuracy": ("float64", "fraction of sequences with every scored position right"),
    "sequence_accuracy_se": ("float64", "its standard error over sequences"),
    "behaves_like": ("string", "the reference r with the smallest mean KL(r || model)"),
    "validation_excess": ("float64", "excess on validation at the end of training"),
    "still_improving": ("bool", "validation excess fell by more than 5% of itself since the evaluation before"),
    "receptive_field": ("Int64", "tokens that a prediction can depend on; null: all"),
    "parameters": ("Int64", "parameters: by formula, or counted where a model has none"),
    "state_bytes": ("Int64", "decoding state at the task's length, bytes"),
    "forward_flops": ("float64", "floating-point operations per token of a forward pass at the task's length"),
    "train_seconds": ("float64", "wall time of training, evaluations left out"),
    "seconds": ("float64", "wall time of the trial"),
    "test_digest": ("string", "SHA-256 of the test sequences"),
    "test_sequences": ("int64", "test sequences"),
}
"""Columns of every table: type and meaning. `PATTERNS` has the columns whose names depend on the task."""

PATTERNS: dict[str, str] = {
    "dial.NAME": "the task's dials",
    "reference.NAME.FIELD": "a reference on the same sequences: excess, excess_se, nll, accuracy, sequence_accuracy, "
    "is_bound; margin = model's excess minus its excess, with margin_se paired over sequences; to_model = mean "
    "KL(reference || model); farther = to_model minus that of `behaves_like`, with farther_se paired over sequences",
    "slice.NAME.LABEL.FIELD": "count, accuracy, nll, excess of the model at the positions of one label, for slices "
    "of at most 32 labels; all labels are in curves.npz",
    "variant.NAME.FIELD": "the model under another control: excess, excess_se, accuracy, sequence_accuracy; "
    "metric.KEY is what it reported of itself",
    "evaluation.NAME.FIELD": "the model on another task of `Task.evaluations`: as variant, and margin over its Bayes",
    "readout.BELIEF.layer_I.FIELD": "a linear probe of layer I (0: the embedding; the last: after the final norm) for "
    "the exact belief: kl in nats, explained = 1 - kl / that of the mean belief, explained_se over test sequences",
    "regime.FIELD": "recall tasks: load (pairs or tokens to hold), slots (how many the decoding state's bits could "
    "hold), inside (the load is larger, so that the size of the state limits recall)",
    "robustness.AXIS.FIELD": "recall tasks, over gap (from the slice gap_octave) or length (from length_xN): L90, the "
    "longest with at least 0.9 of the shortest's accuracy, and AUC, mean accuracy over octaves",
    "metric.NAME": "what the model reports of itself on the test sequences (firing rates, ...), mean over batches",
    "env.NAME": "device, device_name, precision, kernels, kernels_used (by operation, in training), engine (eager, "
    "graph, or why no graph), threads, versions, commit",
}

CURVES: dict[str, str] = {
    "train_step, train_loss": "mean training loss up to each evaluation, nats",
    "validation_step, validation_excess": "excess on validation",
    "metric/NAME": "what the model reports of itself in training at each evaluation step",
    "position_count, position_excess, position_nll": "by position on test, sums over sequences divided by count",
    "reference/NAME/position_excess": "a reference's excess by position",
    "slice/NAME/labels, /count, /accuracy, /nll, /excess": "by label of one slice",
    "variant/NAME/position_excess": "under another control",
    "variant/NAME/validation_excess": "under another control, by validation_step",
    "field/NAME/position": "what the model reports of every position (gate.K.fire, gate.K.score), mean over sequences",
    "field/GROUP/labels, /count; field/NAME/GROUP": "the same by label over scored positions; GROUP is slice/SLICE, or "
    "since_switch: tokens since the regime changed, 0 at the first token of the new one",
    "sample/tokens, /scored, /regimes; sample/field/NAME": "the first test sequences, as they are",
}
"""Arrays of a trial's `curves.npz`, and what they are."""


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The table of some rows: fixed columns first, in order, with their types; the others sorted by name."""
    names = set().union(*rows) - set(COLUMNS) if rows else set()
    table = pd.DataFrame(rows, columns=[*COLUMNS, *sorted(names)])
    for name, (kind, _) in COLUMNS.items():
        missing = bool(table[name].isna().any())
        nullable = {"bool": "boolean", "int64": "Int64"}.get(kind, kind) if missing else kind
        table[name] = table[name].astype(nullable)  # type: ignore[call-overload]
    return table


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as parquet, whole or not at all, with the schema's version in the file's metadata."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), "fastslow.schema": str(SCHEMA_VERSION)})
    with whole_file(path) as temporary:
        pq.write_table(arrow, temporary)


def read_table(path: Path) -> pd.DataFrame:
    """Reads `results.parquet` or the sweep's folder that holds it. ValueError for another schema version,
    `CorruptRecord` for a damaged file."""
    path = path / "results.parquet" if path.is_dir() else path
    try:
        arrow = pq.read_table(path)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise CorruptRecord(f"{path} is damaged ({reason}); remove it, and the same sweep writes it again") from None
    found = (arrow.schema.metadata or {}).get(b"fastslow.schema", b"none").decode()
    if found != str(SCHEMA_VERSION):
        raise ValueError(f"{path.name}: results schema {found} cannot be read; this version reads {SCHEMA_VERSION}")
    return arrow.to_pandas()


class CorruptRecord(ValueError):
    """A recorded file that is not whole: its path, and how to get it again."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes plain data as JSON; numbers that JSON has no word for become null."""
    path.write_text(json.dumps(_plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def single_runs(folder: Path) -> list[dict[str, Any]]:
    """The rows of the trials that `run` has written below `folder`; nothing was chosen among them."""
    found = sorted(path for path in folder.glob("trials/*/result.json") if not path.parent.name.startswith("."))
    return [{**read_row(path.parent), "chosen": False, "lr_at_edge": False} for path in found]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a trial's folder. Raises `CorruptRecord` where it is cut off or no mapping."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        found, reason = None, str(error)
    else:
        reason = "no mapping"
    if not isinstance(found, dict):
        raise CorruptRecord(
            f"{path} is damaged ({reason}); remove the folder {path.parent}, and the same command trains it again"
        )
    return found


def read_row(folder: Path) -> dict[str, Any]:
    """The row in a trial's folder; a number that JSON has no word for comes back as infinity or None.

    Raises `CorruptRecord`.
    """
    row = read_json(folder / "result.json")
    infinite = {"inf": math.inf, "-inf": -math.inf}
    return {name: infinite.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
