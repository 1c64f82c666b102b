"""From sums to the columns and curves of the published schema (`probes.results`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from architectures import SpecError, receptive_field
from architectures.accounting.count import forward_flops, parameters, state_bytes
from probes.scoring import Estimate, Sums, paired, ratio

LABELS_AS_COLUMNS = 32
"""A slice with more labels than this goes into `curves.npz` alone."""


def model_columns(spec: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Parameters, decoding state and FLOPs per token at `length`, and the receptive field; None where no formula
    is known (a user's own mixer or model)."""
    field = receptive_field(spec)
    try:
        return {
            "receptive_field": field,
            "parameters": parameters(spec),
            "state_bytes": state_bytes(spec, length),
            "forward_flops": forward_flops(spec, length),
        }
    except SpecError:
        return {"receptive_field": field, "parameters": None, "state_bytes": None, "forward_flops": math.nan}


def _put(row: dict[str, Any], name: str, estimate: Estimate | None) -> None:
    row[name], row[f"{name}_se"] = estimate or (math.nan, math.nan)


def reference_columns(sums: Mapping[str, Sums]) -> dict[str, Any]:
    """The model's scores, and each reference's beside it."""
    model = sums["model"]
    row: dict[str, Any] = {}
    _put(row, "excess", model.excess())
    _put(row, "excess_sampled", ratio(model.sampled, model.count))
    _put(row, "excess_kl", None if model.kl is None else model.excess())
    _put(row, "agreement", model.agreement())
    _put(row, "accuracy", model.accuracy())
    _put(row, "sequence_accuracy", model.sequence_accuracy())
    row["nll"] = float(model.nll.sum() / model.count.sum())
    distances: dict[str, np.ndarray] = {}
    for name, reference in sums.items():
        if name == "model":
            continue
        prefix = f"reference.{name}"
        _put(row, f"{prefix}.excess", reference.excess())
        _put(row, f"{prefix}.margin", paired(model, reference))
        row[f"{prefix}.nll"] = float(reference.nll.sum() / reference.count.sum())
        row[f"{prefix}.is_bound"] = reference.correct is None
        accuracy, whole = reference.accuracy(), reference.sequence_accuracy()
        row[f"{prefix}.accuracy"] = math.nan if accuracy is None else accuracy.mean
        row[f"{prefix}.sequence_accuracy"] = math.nan if whole is None else whole.mean
        if reference.to_model is not None:
            distance = row[f"{prefix}.to_model"] = float(reference.to_model.sum() / reference.count.sum())
            if math.isfinite(distance):
                distances[name] = reference.to_model
    nearest = min(distances, key=lambda name: (row[f"reference.{name}.to_model"], name), default="")
    row["behaves_like"] = nearest
    for name, sums_to_model in distances.items():
        _put(row, f"reference.{name}.farther", ratio(sums_to_model - distances[nearest], model.count))
    for name, table in model.slices.items():
        if len(table) <= LABELS_AS_COLUMNS:
            for label, (count, nll, correct, excess) in table.items():
                prefix = f"slice.{name}.{label}"
                row[f"{prefix}.count"] = count
                row[f"{prefix}.accuracy"] = correct / count
                row[f"{prefix}.nll"] = nll / count
                row[f"{prefix}.excess"] = excess / count
    return row


def curves_of(sums: Mapping[str, Sums]) -> dict[str, np.ndarray]:
    """Arrays by position and by label."""
    model = sums["model"]
    count = np.maximum(model.position["count"], 1)
    curves = {
        "position_count": model.position["count"],
        "position_excess": model.position["excess"] / count,
        "position_nll": model.position["nll"] / count,
    }
    for name, reference in sums.items():
        if name != "model":
            curves[f"reference/{name}/position_excess"] = reference.position["excess"] / count
    for name, table in model.slices.items():
        labels = sorted(table)
        values = np.array([table[label] for label in labels], dtype=float).reshape(len(labels), 4)
        curves[f"slice/{name}/labels"] = np.array(labels)
        curves[f"slice/{name}/count"] = values[:, 0]
        for column, field in ((1, "nll"), (2, "accuracy"), (3, "excess")):
            curves[f"slice/{name}/{field}"] = values[:, column] / np.maximum(values[:, 0], 1)
    return curves
